//! The table as bytes, for the log of the worktree.
//!
//! A file: version (1 byte), number of locks (varint), and of each: session (16 bytes), owner (u64), flags (1 byte: mode, and
//! the kind from bit 1 on), first and last byte (varints), process (varint). `fcntl` and OFD locks come first, by owner and
//! start; then each `flock` by owner, without its range. A table: version (1 byte), number of files (varint), and of each,
//! in order: inode (u64), length (varint), the file.
//!
//! Invariant: what decodes encodes to the same bytes, and breaks no invariant of the table. A count is bounded by the bytes
//! that follow it: a table that was encoded is never too large to be decoded.

use vellum_types::{DecodeError, FieldReader, FieldWriter, Ino};

use super::file::{FileLocks, FlockLock};
use super::ranges::RangeLock;
use super::request::{HeldLock, LockKind, LockLimits, LockMode, LockOwner, LockRange, LockSession};
use super::state::LockState;

/// Version of both forms.
const VERSION: u8 = 1;

pub(super) fn encode_table(state: &LockState) -> Vec<u8> {
    let files = state.locked_files();
    let mut out = FieldWriter::new();
    out.write_u8(VERSION).write_varint(files.len() as u64);
    for (ino, file) in files {
        out.write_u64(ino.0).write_bytes(&encode_file(file).unwrap_or_default());
    }
    out.into_vec()
}

pub(super) fn decode_table(bytes: &[u8], limits: LockLimits) -> Result<LockState, DecodeError> {
    let mut state = LockState::new(limits);
    let mut reader = FieldReader::new(bytes);
    read_version(&mut reader)?;
    let mut last = None;
    for _ in 0..reader.read_count(bytes.len())? {
        let ino = Ino(reader.read_u64()?);
        if last.is_some_and(|last| last >= ino) {
            return Err(DecodeError::Invalid("file"));
        }
        last = Some(ino);
        state.insert_file(ino, decode_file(reader.read_bytes(bytes.len())?)?)?;
    }
    reader.expect_end()?;
    Ok(state)
}

/// None if nobody holds a lock.
pub(super) fn encode_file(file: &FileLocks) -> Option<Vec<u8>> {
    let locks: Vec<_> = file.list_locks().collect();
    if locks.is_empty() {
        return None;
    }
    let mut out = FieldWriter::new();
    out.write_u8(VERSION).write_varint(locks.len() as u64);
    for lock in locks {
        let HeldLock { owner, kind, mode, range, pid } = lock;
        out.write_raw(&owner.session.0).write_u64(owner.number).write_u8(flags_of(kind, mode));
        if kind != LockKind::Flock {
            out.write_varint(range.start).write_varint(range.end);
        }
        out.write_varint(u64::from(pid));
    }
    Some(out.into_vec())
}

pub(super) fn decode_file(bytes: &[u8]) -> Result<FileLocks, DecodeError> {
    let mut file = FileLocks::default();
    let mut reader = FieldReader::new(bytes);
    read_version(&mut reader)?;
    let count = reader.read_count(bytes.len())?;
    if count == 0 {
        return Err(DecodeError::Invalid("count"));
    }
    for _ in 0..count {
        read_lock(&mut reader, &mut file)?;
    }
    reader.expect_end()?;
    expect_no_conflicts(&file)?;
    Ok(file)
}

fn read_version(reader: &mut FieldReader<'_>) -> Result<(), DecodeError> {
    match reader.read_u8()? {
        VERSION => Ok(()),
        other => Err(DecodeError::Version(u32::from(other))),
    }
}

/// Reads a lock, which comes behind those of the file in the order of encoding.
fn read_lock(reader: &mut FieldReader<'_>, file: &mut FileLocks) -> Result<(), DecodeError> {
    let session = LockSession(reader.read_array()?);
    let owner = LockOwner { session, number: reader.read_u64()? };
    let (kind, mode) = kind_and_mode(reader.read_u8()?)?;
    if kind == LockKind::Flock {
        let pid = reader.read_varint_u32()?;
        if file.flocks.last_key_value().is_some_and(|(last, _)| *last >= owner) {
            return Err(DecodeError::Invalid("owner"));
        }
        file.flocks.insert(owner, FlockLock { mode, pid });
        return Ok(());
    }
    let is_behind = file.ranges.last_key_value().is_none_or(|(last, _)| *last <= owner);
    if !is_behind || !file.flocks.is_empty() {
        return Err(DecodeError::Invalid("owner"));
    }
    let start = reader.read_varint()?;
    let range = LockRange::new(start, reader.read_varint()?).ok_or(DecodeError::Invalid("range"))?;
    let pid = reader.read_varint_u32()?;
    file.ranges.entry(owner).or_default().append(RangeLock { range, kind, mode, pid })
}

fn flags_of(kind: LockKind, mode: LockMode) -> u8 {
    let kind = match kind {
        LockKind::Posix => 0,
        LockKind::Ofd => 1,
        LockKind::Flock => 2,
    };
    (kind << 1) | u8::from(mode == LockMode::Exclusive)
}

fn kind_and_mode(flags: u8) -> Result<(LockKind, LockMode), DecodeError> {
    let mode = if flags & 1 == 0 { LockMode::Shared } else { LockMode::Exclusive };
    let kind = match flags >> 1 {
        0 => LockKind::Posix,
        1 => LockKind::Ofd,
        2 => LockKind::Flock,
        _ => return Err(DecodeError::Invalid("flags")),
    };
    Ok((kind, mode))
}

/// Locks of one owner were seen not to overlap; an exclusive lock overlaps with nobody's.
fn expect_no_conflicts(file: &FileLocks) -> Result<(), DecodeError> {
    let mut locks: Vec<RangeLock> = file.ranges.values().flat_map(|locks| locks.iter()).collect();
    locks.sort_unstable_by_key(|lock| lock.range);
    let mut last_end = None;
    let mut last_exclusive_end = None;
    for lock in locks {
        let is_exclusive = lock.mode == LockMode::Exclusive;
        let earlier = if is_exclusive { last_end } else { last_exclusive_end };
        if earlier.is_some_and(|end| end >= lock.range.start) {
            return Err(DecodeError::Invalid("mode"));
        }
        last_end = last_end.max(Some(lock.range.end));
        if is_exclusive {
            last_exclusive_end = last_exclusive_end.max(Some(lock.range.end));
        }
    }
    let has_exclusive = file.flocks.values().any(|lock| lock.mode == LockMode::Exclusive);
    if has_exclusive && file.flocks.len() > 1 { Err(DecodeError::Invalid("mode")) } else { Ok(()) }
}

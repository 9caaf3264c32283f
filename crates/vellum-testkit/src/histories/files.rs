//! System calls as programs make them, with the errors that the standard library swallows.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What stands for the content of an empty file.
pub(super) const EMPTY: u64 = u64::MAX;
/// What stands for a content that nobody wrote.
pub(super) const TORN: u64 = u64::MAX - 1;

/// Length of a record, bytes: a divisor of the page size.
pub(super) const RECORD: usize = 64;

/// How a lock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockCall {
    /// `fcntl` with `F_SETLKW`.
    Posix,
    /// `fcntl` with `F_OFD_SETLKW`.
    Ofd,
    /// `flock`.
    Flock,
}

impl LockCall {
    pub(super) const ALL: [Self; 3] = [Self::Posix, Self::Ofd, Self::Flock];
}

/// Closes a file, and returns the error that this may have: what was written is perhaps lost.
pub(super) fn close(file: File) -> io::Result<()> {
    // Dropping a `File` would hide the error.
    // SAFETY: the descriptor is this file's, which is given up here.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of a file that are locked.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockedBytes {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Waits for an exclusive lock, or unlocks; `flock` locks all bytes.
pub(super) fn set_lock(file: &File, call: LockCall, is_locked: bool, bytes: LockedBytes) -> io::Result<()> {
    let kind = if is_locked { libc::F_WRLCK } else { libc::F_UNLCK };
    // SAFETY: all bits zero are a record.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    // `l_pid` stays 0, as `fcntl` demands for OFD locks.
    record.l_type = kind as i16;
    record.l_whence = libc::SEEK_SET as i16;
    record.l_start = bytes.start.cast_signed();
    record.l_len = bytes.len.cast_signed();
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open, and the record outlives the call.
    let result = match call {
        LockCall::Posix => unsafe { libc::fcntl(fd, libc::F_SETLKW, &raw const record) },
        LockCall::Ofd => unsafe { libc::fcntl(fd, libc::F_OFD_SETLKW, &raw const record) },
        LockCall::Flock => unsafe { libc::flock(fd, if is_locked { libc::LOCK_EX } else { libc::LOCK_UN }) },
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes what was created, removed or renamed in a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The number that a small file holds.
pub(super) fn read_number(path: &Path) -> io::Result<u64> {
    let mut content = Vec::new();
    let mut file = File::open(path)?;
    file.read_to_end(&mut content)?;
    close(file)?;
    Ok(match content[..] {
        [] => EMPTY,
        _ => content.try_into().map_or(TORN, u64::from_le_bytes),
    })
}

/// Writes a number into a file that holds one.
pub(super) fn write_number(file: File, number: u64, is_synced: bool) -> io::Result<()> {
    // So short that it is one call: others find the old number or the new one.
    file.write_all_at(&number.to_le_bytes(), 0)?;
    if is_synced {
        file.sync_all()?;
    }
    close(file)
}

/// Puts a new file with a number in the place of one.
pub(super) fn replace_number(path: &Path, temporary: &Path, number: u64, is_synced: bool) -> io::Result<()> {
    write_number(File::create(temporary)?, number, is_synced)?;
    std::fs::rename(temporary, path)
}

/// A record that holds a number, and shows whether it is whole.
pub(super) fn encode_record(number: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    for (position, word) in record.chunks_exact_mut(8).enumerate() {
        // Each word depends on its place, so that a record that is shifted, or mixed with another one, is noticed.
        word.copy_from_slice(&number.rotate_left(7 * position as u32).to_le_bytes());
    }
    record
}

/// The numbers of the records in a file; [`TORN`] for what is none.
pub(super) fn decode_records(content: &[u8]) -> Vec<u64> {
    let decode = |piece: &[u8]| {
        let number = piece.first_chunk().map_or(TORN, |first| u64::from_le_bytes(*first));
        if piece == encode_record(number) { number } else { TORN }
    };
    // A last piece that is shorter counts as torn.
    content.chunks(RECORD).map(decode).collect()
}

/// Appends a record in one call.
pub(super) fn append_record(mut file: &File, number: u64) -> io::Result<()> {
    let record = encode_record(number);
    // `write_all` would append what is left behind the records of others.
    let written = file.write(&record)?;
    // A regular file takes all of it, unless the disk is full.
    if written == RECORD { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// FNV-1a with 64 bits: short and good enough to tell two contents apart.
pub(super) fn hash_of(content: &[u8]) -> u64 {
    extend_hash(0xcbf2_9ce4_8422_2325, content)
}

/// The hash of a content from that of its beginning and the rest.
pub(super) fn extend_hash(hash: u64, rest: &[u8]) -> u64 {
    rest.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

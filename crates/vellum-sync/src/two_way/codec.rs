//! The encoding of an archive, which docs/format.md specifies.
//!
//! Invariant: `decode` of the output of `encode` returns an equal archive. Of any other bytes it returns an error, or
//! an archive whose tree is consistent; it never panics. An archive of another pair is an error: entries that the other
//! pair deleted would otherwise count as deleted here.

use vellum_types::limits::NAME_MAX;
use vellum_types::{DecodeError, FieldReader, FieldWriter, FileKind, UnixTime};

use crate::model::listing::{ListingEntry, ListingEntryId, ListingError};

use super::TwoWayPair;
use super::archive::{AgreedEntry, TwoWayArchive};
use super::state::EntryState;

/// First bytes of an archive.
const MAGIC: &[u8; 8] = b"VLMPAIRS";
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of the checksum: BLAKE3 of all bytes before.
const CHECKSUM_LEN: usize = 32;
/// Longest target of a symlink, bytes: `PATH_MAX` of Linux.
const TARGET_MAX: usize = 4096;

/// The second side's attributes follow the first's.
const HAS_SECOND: u8 = 1;
/// A digest follows.
const HAS_DIGEST: u8 = 2;
/// Hashes of attributes follow, of both sides.
const HAS_MARKS: u8 = 4;
/// The entry was not agreed on itself.
const IS_IMPLIED: u8 = 8;
/// The change times of both sides follow.
const HAS_STAMPS: u8 = 16;
/// A later edit may leave the same size and time.
const IS_UNSURE: u8 = 32;

/// Why bytes are not an archive of this pair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The bytes were cut off or overwritten.
    #[error("its checksum is wrong")]
    Checksum,
    /// It belongs to another pair.
    #[error("it belongs to another pair")]
    Foreign,
    /// Its fields have impossible values.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Its entries do not form a tree.
    #[error(transparent)]
    Listing(#[from] ListingError),
}

impl TwoWayArchive {
    /// Encodes the archive.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_raw(MAGIC).write_u32(VERSION).write_raw(&self.pair.0);
        self.encode_dir(&mut writer, self.root());
        for entry in self.tree.iter().skip(1).filter(ListingEntry::is_dir) {
            self.encode_dir(&mut writer, entry);
        }
        let mut bytes = writer.into_vec();
        // The archive decides what is deleted. A damaged one must not be read, so the checksum is a strong
        // hash.
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    fn encode_dir(&self, writer: &mut FieldWriter, dir: ListingEntry<'_>) {
        writer.write_varint(dir.children().len() as u64);
        for child in dir.children() {
            writer.write_bytes(child.name());
            encode_agreed(writer, &self.agreed_entry(child));
        }
    }

    /// Decodes bytes from any source.
    pub fn decode(bytes: &[u8], pair: TwoWayPair) -> Result<Self, ArchiveError> {
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or(DecodeError::Truncated)?;
        // A torn or damaged file fails here. The limits below are for files that were made on purpose.
        if blake3::hash(body).as_bytes() != checksum {
            return Err(ArchiveError::Checksum);
        }
        Self::decode_body(body, pair)
    }

    /// Decodes the bytes before the checksum.
    pub fn decode_body(body: &[u8], pair: TwoWayPair) -> Result<Self, ArchiveError> {
        let mut reader = FieldReader::new(body);
        if reader.read_array()? != *MAGIC {
            return Err(DecodeError::Magic.into());
        }
        match reader.read_u32()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other).into()),
        }
        // The name of the file contains only half of the hash of the pair, and a user can copy files. An
        // archive of another pair would turn its missing entries into deletions.
        if TwoWayPair(reader.read_array()?) != pair {
            return Err(ArchiveError::Foreign);
        }
        let mut archive = Self::new(pair);
        // Entries are numbered as they are read, and directories come in the order of their numbers: the walk over
        // the numbers is the walk over the bytes.
        let mut place = 0;
        while let Some(dir) = ListingEntryId::from_u32(place).and_then(|id| archive.tree.get(id)) {
            if dir.is_dir() {
                let id = dir.id();
                let entries = decode_dir(&mut reader)?;
                archive.attach_entries(id, &entries)?;
            }
            place += 1;
        }
        reader.expect_end()?;
        Ok(archive)
    }
}

fn decode_dir<'b>(reader: &mut FieldReader<'b>) -> Result<Vec<(&'b [u8], AgreedEntry)>, DecodeError> {
    let count = reader.read_count(u32::MAX as usize)?;
    // No more is set aside than is there: an entry takes more bytes than one.
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = reader.read_bytes(NAME_MAX)?;
        entries.push((name, decode_agreed(reader)?));
    }
    Ok(entries)
}

fn encode_agreed(writer: &mut FieldWriter, agreed: &AgreedEntry) {
    let flag = |set: bool, bit| if set { bit } else { 0 };
    let has_second = agreed.second != agreed.first;
    let has_marks = (agreed.first.mark, agreed.second.mark) != (0, 0);
    let flags = flag(has_second, HAS_SECOND)
        | flag(agreed.digest.is_some(), HAS_DIGEST)
        | flag(has_marks, HAS_MARKS)
        | flag(agreed.implied, IS_IMPLIED)
        | flag(agreed.stamps != [0; 2], HAS_STAMPS)
        | flag(agreed.unsure, IS_UNSURE);
    writer.write_u8(agreed.first.kind.as_byte()).write_u8(flags);
    encode_state(writer, &agreed.first);
    if has_second {
        encode_state(writer, &agreed.second);
    }
    if has_marks {
        writer.write_u64(agreed.first.mark).write_u64(agreed.second.mark);
    }
    if agreed.stamps != [0; 2] {
        writer.write_u64(agreed.stamps[0]).write_u64(agreed.stamps[1]);
    }
    if let Some(digest) = &agreed.digest {
        writer.write_raw(digest);
    }
    match agreed.first.kind {
        FileKind::Symlink => {
            writer.write_bytes(&agreed.target);
        }
        // The number of the device and the target are written once: they are content, and content is equal on
        // both sides when it is recorded.
        FileKind::CharDevice | FileKind::BlockDevice => {
            writer.write_varint(agreed.first.rdev);
        }
        FileKind::File | FileKind::Dir | FileKind::Fifo | FileKind::Socket => {}
    }
}

fn encode_state(writer: &mut FieldWriter, state: &EntryState) {
    writer
        .write_varint(u64::from(state.mode))
        .write_varint(u64::from(state.uid))
        .write_varint(u64::from(state.gid));
    writer.write_varint(state.size);
    state.mtime.encode(writer);
}

fn decode_agreed(reader: &mut FieldReader<'_>) -> Result<AgreedEntry, DecodeError> {
    let kind = FileKind::from_byte(reader.read_u8()?)?;
    let flags = reader.read_u8()?;
    let implied = flags & IS_IMPLIED != 0;
    let known = HAS_SECOND | HAS_DIGEST | HAS_MARKS | IS_IMPLIED | HAS_STAMPS | IS_UNSURE;
    // Unknown flags mean fields of unknown length. The version should have changed with them, so this is
    // damage.
    if flags & !known != 0 || implied && kind != FileKind::Dir {
        return Err(DecodeError::Invalid("flags"));
    }
    let mut first = decode_state(reader, kind)?;
    let mut second = if flags & HAS_SECOND != 0 { decode_state(reader, kind)? } else { first };
    if flags & HAS_MARKS != 0 {
        (first.mark, second.mark) = (reader.read_u64()?, reader.read_u64()?);
    }
    let stamps = if flags & HAS_STAMPS != 0 { [reader.read_u64()?, reader.read_u64()?] } else { [0; 2] };
    let unsure = flags & IS_UNSURE != 0;
    let digest = if flags & HAS_DIGEST != 0 { Some(reader.read_array()?) } else { None };
    let target =
        if kind == FileKind::Symlink { reader.read_bytes(TARGET_MAX)?.into() } else { Box::default() };
    if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
        first.rdev = reader.read_varint()?;
        second.rdev = first.rdev;
    }
    Ok(AgreedEntry { first, second, target, digest, stamps, unsure, implied })
}

fn decode_state(reader: &mut FieldReader<'_>, kind: FileKind) -> Result<EntryState, DecodeError> {
    let mode = reader.read_varint_u32()?;
    if mode > 0o7777 {
        return Err(DecodeError::Invalid("mode"));
    }
    let uid = reader.read_varint_u32()?;
    let gid = reader.read_varint_u32()?;
    let size = reader.read_varint()?;
    let mtime = UnixTime::decode(reader)?;
    Ok(EntryState { kind, mode, uid, gid, size, mtime, rdev: 0, mark: 0 })
}

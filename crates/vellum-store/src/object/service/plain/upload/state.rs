//! What this machine remembers of uploads in parts, so that the next run can continue or remove them: one file for each.
//!
//! Layout: `vlupload`, a version byte, the fields in the order of [`UploadRecord`] as varints and byte strings, and the
//! BLAKE3 hash of all that. Invariant: a file belongs to the process that has its lock, and an upload is recorded as long
//! as the service may have it. A record that cannot be read counts as none.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_host::lock::find_file_lock_holder;
use vellum_host::private_dir::create_private_dir;
use vellum_types::codec::{DecodeError, FieldReader, FieldWriter};
use vellum_types::{LookupResult, UnixTime};

const MAGIC: &[u8; 8] = b"vlupload";
const VERSION: u8 = 1;
const HASH_LEN: usize = 32;
/// Longest key or id, bytes: keys of S3 have 1,024 at most.
const TEXT_MAX: usize = 4096;
/// Longest file, bytes.
const FILE_MAX: u64 = 16 << 10;

/// What is known of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UploadRecord {
    /// The key below the folder.
    pub key: String,
    /// By which the service knows the upload.
    pub id: String,
    /// Length of the file, bytes.
    pub size: u64,
    /// When it was last changed.
    pub mtime: UnixTime,
    /// Length of all parts but the last, bytes.
    pub part_len: u64,
    /// Whether the tags of parts are hashes of their bytes.
    pub has_hashes: bool,
}

/// The folder of the records of uploads to one place.
#[derive(Debug, Clone)]
pub(in crate::object::service::plain) struct UploadStates {
    folder: PathBuf,
}

/// The record of one upload, which no other process has.
#[derive(Debug)]
pub(super) struct UploadState {
    path: PathBuf,
    file: File,
}

impl UploadRecord {
    /// The record as bytes.
    fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::from_vec(MAGIC.to_vec());
        out.write_u8(VERSION).write_bytes(self.key.as_bytes()).write_bytes(self.id.as_bytes());
        out.write_varint(self.size).write_signed_varint(self.mtime.secs);
        out.write_varint(self.mtime.nanos.into())
            .write_varint(self.part_len)
            .write_u8(self.has_hashes.into());
        let hash = blake3::hash(out.as_slice());
        out.write_raw(hash.as_bytes());
        out.into_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let fields_len = bytes.len().checked_sub(HASH_LEN).ok_or(DecodeError::Truncated)?;
        let (fields, hash) = bytes.split_at_checked(fields_len).ok_or(DecodeError::Truncated)?;
        if blake3::hash(fields).as_bytes() != hash {
            return Err(DecodeError::Invalid("hash"));
        }
        let mut fields = FieldReader::new(fields);
        if fields.read_raw(MAGIC.len())? != MAGIC {
            return Err(DecodeError::Magic);
        }
        match fields.read_u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other.into())),
        }
        let record = Self {
            key: fields.read_string(TEXT_MAX)?.to_owned(),
            id: fields.read_string(TEXT_MAX)?.to_owned(),
            size: fields.read_varint()?,
            mtime: UnixTime { secs: fields.read_signed_varint()?, nanos: fields.read_varint_u32()? },
            part_len: fields.read_varint()?,
            has_hashes: match fields.read_u8()? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::Invalid("flag")),
            },
        };
        fields.expect_end()?;
        Ok(record)
    }
}

impl UploadStates {
    /// The records of uploads to a place, below a directory that is made when it is needed.
    pub fn for_place(dir: &Path, place: &str) -> Self {
        Self { folder: dir.join(short_hash(place)) }
    }

    /// Takes the record of a key; none if another process has it, which is uploading the same object.
    pub(super) fn take_state(&self, key: &str) -> io::Result<Option<UploadState>> {
        // Keys say what a user keeps, so that nobody else may read them.
        create_private_dir(&self.folder)?;
        UploadState::take_file(self.folder.join(short_hash(key)), true)
    }

    /// Takes the records that no process has.
    pub(super) fn take_abandoned(&self) -> io::Result<Vec<UploadState>> {
        let Some(entries) = std::fs::read_dir(&self.folder).none_if_missing()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in entries {
            found.extend(UploadState::take_file(entry?.path(), false)?);
        }
        Ok(found)
    }
}

impl UploadState {
    /// Opens and locks a file; none if another process has it, or if there is none and none is to be made.
    fn take_file(path: PathBuf, is_made: bool) -> io::Result<Option<Self>> {
        loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(is_made)
                // It may have the record of an earlier run.
                .truncate(false)
                .mode(0o600)
                .custom_flags(no_follow_flag())
                .open(&path);
            let file = match opened {
                Err(error) if !is_made && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The process that had the lock before may have removed the file: then another one has its name.
            if file.metadata()?.nlink() > 0 {
                return Ok(Some(Self { path, file }));
            }
        }
    }

    /// What is recorded.
    pub fn read_record(&self) -> io::Result<Option<UploadRecord>> {
        let mut bytes = Vec::new();
        let mut file = &self.file;
        file.rewind()?;
        file.take(FILE_MAX).read_to_end(&mut bytes)?;
        // A crash while it was written leaves one that is not whole, which counts as none.
        Ok(UploadRecord::decode(&bytes).ok())
    }

    /// Records an upload instead of what was recorded.
    pub fn write_record(&self, record: &UploadRecord) -> io::Result<()> {
        let mut file = &self.file;
        // In place, since the lock is one of this file: a new one that is renamed to its name would be without it.
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&record.encode())?;
        // Otherwise a crash of the machine would make the service keep the parts for ever.
        file.sync_data()
    }

    /// Forgets the upload, which the service does not have any more.
    pub fn remove(self) {
        // A record that stays is that of an upload that the service does not know, which the next run finds out.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An upload in parts that was interrupted, and that no process is working on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptedUpload {
    /// The key below the folder of the service.
    pub key: String,
    /// Length of the file, bytes.
    pub size: u64,
    /// How long ago it was begun or continued; None if that cannot be told.
    pub age: Option<Duration>,
}

/// Lists the interrupted uploads of which there are records below a directory, in order of their keys. They are not taken:
/// a run that begins meanwhile continues them.
#[must_use]
pub fn list_interrupted_uploads(dir: &Path) -> Vec<InterruptedUpload> {
    let list =
        |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let records = list(dir).flat_map(|folder| list(&folder).collect::<Vec<_>>());
    let mut found: Vec<_> = records.filter_map(|path| read_interrupted_upload(&path)).collect();
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}

fn read_interrupted_upload(path: &Path) -> Option<InterruptedUpload> {
    // The process that has the lock is uploading.
    // Asked for, and not tried: while this process had the lock, no run could continue the upload.
    if find_file_lock_holder(path).is_some() {
        return None;
    }
    let opened = OpenOptions::new().read(true).custom_flags(no_follow_flag()).open(path).ok()?;
    let modified = opened.metadata().and_then(|found| found.modified()).ok();
    let mut bytes = Vec::new();
    opened.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    let UploadRecord { key, size, .. } = UploadRecord::decode(&bytes).ok()?;
    Some(InterruptedUpload { key, size, age: modified.and_then(|time| time.elapsed().ok()) })
}

/// A symlink in the folder is not followed.
fn no_follow_flag() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// A name for a text of any length.
fn short_hash(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    hash.chars().take(32).collect()
}

/// Reads any bytes as a record.
///
/// # Panics
/// When a record that is read has another encoding.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    // Few inputs have their own hash at the end.
    let sealed = [bytes, blake3::hash(bytes).as_bytes()].concat();
    if let Ok(record) = UploadRecord::decode(&sealed) {
        assert_eq!(record.encode(), sealed, "one record has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> UploadRecord {
        UploadRecord {
            key: "a\nb".to_owned(),
            id: "upload 1".to_owned(),
            size: 1 << 40,
            mtime: UnixTime { secs: -5, nanos: 999_999_999 },
            part_len: 8 << 20,
            has_hashes: true,
        }
    }

    #[test]
    fn records_are_found_again_and_damaged_ones_are_none() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let states = UploadStates::for_place(dir.path(), "s3://b/p");
        let Some(state) = states.take_state("a")? else { panic!("nobody else has it") };
        assert_eq!(state.read_record()?, None);
        state.write_record(&UploadRecord { key: "longer ".repeat(9), ..record() })?;
        state.write_record(&record())?;
        assert_eq!(state.read_record()?, Some(record()));
        assert!(list_interrupted_uploads(dir.path()).is_empty(), "it is under way");
        drop(state);
        let interrupted = list_interrupted_uploads(dir.path());
        assert_eq!(interrupted.iter().map(|found| found.key.as_str()).collect::<Vec<_>>(), ["a\nb"]);
        let bytes = record().encode();
        for len in 0..bytes.len() {
            assert!(UploadRecord::decode(&bytes[..len]).is_err(), "{len}");
        }
        Ok(())
    }

    #[test]
    fn a_record_has_one_owner() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let states = UploadStates::for_place(dir.path(), "s3://b/p");
        assert!(states.take_abandoned()?.is_empty());
        let state = states.take_state("a")?;
        assert!(states.take_state("a")?.is_none() && states.take_abandoned()?.is_empty());
        drop(state);
        assert_eq!(states.take_abandoned()?.len(), 1);
        let Some(state) = states.take_state("a")? else { panic!("nobody else has it") };
        state.remove();
        assert!(states.take_abandoned()?.is_empty());
        Ok(())
    }
}

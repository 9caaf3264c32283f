//! Snapshot records: what a snapshot is, apart from its tree. Encoded, then sealed into `snapshots/<id>`.
//!
//! Invariant: a record's id is the keyed hash of its identity, which is all of it but the tree and the statistics: a
//! live worktree names a snapshot at once and publishes its tree later. Equal records have equal encodings.

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_host::process::{host_name, user_name};
use vellum_map::MapRoot;
use vellum_types::limits::{NOTE_MAX, REF_NAME_MAX};
use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter, SnapshotId, UnixTime};

/// Version of the encoding.
const VERSION: u8 = 1;

/// Most parents of one snapshot: a merge of a few forks; more is damage.
const PARENTS_MAX: usize = 16;

/// Longest author or host name, bytes: `HOST_NAME_MAX` is 64, user names are shorter; generous.
pub(crate) const WHO_MAX: usize = 1024;

/// The user of this process, as records have the name.
pub(crate) fn recorded_user_name() -> String {
    clamp_who(user_name())
}

/// This machine, as records have the name.
pub(crate) fn recorded_host_name() -> String {
    clamp_who(host_name())
}

fn clamp_who(mut name: String) -> String {
    // A reader refuses longer names: the record would not decode again.
    name.truncate(name.floor_char_boundary(WHO_MAX));
    name
}

/// Length of a record's nonce, bytes.
pub const NONCE_LEN: usize = 16;

/// Longest list of paths, bytes: a thousand of the longest that Linux takes.
const PATHS_LEN_MAX: usize = 4 << 20;

/// Longest record, bytes: its longest list of paths, and room for all the rest, of which the note is the longest.
pub const RECORD_MAX: usize = PATHS_LEN_MAX + (1 << 20);

/// Longest object, bytes: the longest record, sealed.
pub const OBJECT_MAX: u64 = RECORD_MAX as u64 + 64;

/// Why a snapshot was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotOrigin {
    /// Somebody asked for it.
    User,
    /// Made by `restore`, before it overwrote what no snapshot held.
    Safety,
}

/// What a snapshot holds, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotStatistics {
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub dirs: u64,
    /// Symlinks, fifos, sockets and devices.
    pub others: u64,
    /// Bytes of content of all files.
    pub bytes: u64,
    /// Inodes that differ from the first parent.
    pub changed: u64,
    /// Bytes that this snapshot added to the store, compressed and sealed.
    pub stored: u64,
}

impl SnapshotRecord {
    /// Whether it is what a merge with conflicts has made so far: it may have conflict markers, and is forgotten when the
    /// merge ends. No other safety snapshot has two parents.
    #[must_use]
    pub fn is_unfinished_merge(&self) -> bool {
        self.origin == SnapshotOrigin::Safety && self.parents.len() > 1
    }
}

impl SnapshotStatistics {
    /// Adds the stored form.
    pub fn encode(&self, writer: &mut FieldWriter) {
        for number in [self.files, self.dirs, self.others, self.bytes, self.changed, self.stored] {
            writer.write_varint(number);
        }
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let mut number = || reader.read_varint();
        Ok(Self {
            files: number()?,
            dirs: number()?,
            others: number()?,
            bytes: number()?,
            changed: number()?,
            stored: number()?,
        })
    }
}

/// An immutable record of one moment of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Random, given by [`crate::Volume::assign_snapshot_id`]: no two snapshots have one identity.
    pub nonce: [u8; NONCE_LEN],
    /// The tree.
    pub root: MapRoot,
    /// The snapshots that it came from, the line's own first.
    pub parents: Vec<SnapshotId>,
    /// Place in its line: one more than its highest parent.
    pub counter: u64,
    /// When it was made.
    pub time: UnixTime,
    /// Name of the worktree.
    pub worktree: String,
    /// User name.
    pub author: String,
    /// Host name.
    pub host: String,
    /// The note, possibly empty.
    pub note: String,
    /// Why it was made.
    pub origin: SnapshotOrigin,
    /// The paths it was restricted to (`vellum snapshot PATH`); empty for a whole one.
    pub paths: Vec<Vec<u8>>,
    /// What it holds.
    pub statistics: SnapshotStatistics,
}

/// What a record says of when and where it was made.
#[derive(Debug, Clone, Copy)]
pub struct RecordSummary<'a> {
    /// When it was made.
    pub time: UnixTime,
    /// Place in its line.
    pub counter: u64,
    /// Name of the worktree.
    pub worktree: &'a str,
}

impl<'a> RecordSummary<'a> {
    /// Decodes the beginning of an encoded record; what follows is not checked.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let RecordStart { counter, time, worktree, .. } = RecordStart::decode(&mut reader)?;
        Ok(Self { time, counter, worktree })
    }
}

/// The first fields of an encoded record.
struct RecordStart<'a> {
    nonce: [u8; NONCE_LEN],
    parents: Vec<SnapshotId>,
    counter: u64,
    time: UnixTime,
    worktree: &'a str,
}

impl<'a> RecordStart<'a> {
    fn decode(reader: &mut FieldReader<'a>) -> Result<Self, DecodeError> {
        reader.expect_version(VERSION)?;
        let nonce = reader.read_array()?;
        let parents = (0..reader.read_count(PARENTS_MAX)?)
            .map(|_| reader.read_array().map(SnapshotId))
            .collect::<Result<_, _>>()?;
        let counter = reader.read_varint()?;
        let time = UnixTime::decode(reader)?;
        // The last that a summary needs; lists of many snapshots read no further.
        let worktree = reader.read_string(REF_NAME_MAX)?;
        Ok(Self { nonce, parents, counter, time, worktree })
    }
}

/// Most paths that a record lists; the rest is counted only in the caller's message.
const PATHS_MAX: usize = 1000;

impl SnapshotRecord {
    /// Computes the id of this record: a keyed hash of all that is known when the snapshot is made, so without its tree.
    #[must_use]
    pub fn compute_id(&self, keys: &VolumeKeys) -> SnapshotId {
        SnapshotId(keys.compute_record_id(RecordDomain::Snapshot, &self.encode_identity()))
    }

    /// Returns when and where it was made.
    #[must_use]
    pub fn summarize(&self) -> RecordSummary<'_> {
        RecordSummary { time: self.time, counter: self.counter, worktree: &self.worktree }
    }

    /// Encodes what the id is the hash of. A mounted worktree needs the id before the tree exists.
    fn encode_identity(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // The nonce makes the ids of two snapshots differ that say the same, as of two worktrees in one tick of the
        // clock.
        writer.write_u8(VERSION).write_raw(&self.nonce).write_varint(self.parents.len() as u64);
        for parent in &self.parents {
            writer.write_raw(parent.as_bytes());
        }
        writer.write_varint(self.counter);
        self.time.encode(&mut writer);
        for text in [&self.worktree, &self.author, &self.host, &self.note] {
            writer.write_bytes(text.as_bytes());
        }
        writer.write_u8(match self.origin {
            SnapshotOrigin::User => 0,
            SnapshotOrigin::Safety => 1,
        });
        writer.write_varint(self.paths.len() as u64);
        for path in &self.paths {
            writer.write_bytes(path);
        }
        writer.into_vec()
    }

    /// Encodes the plaintext of the stored record (docs/format.md).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // What the id covers comes first, so that a summary is read without the rest.
        let mut writer = FieldWriter::from_vec(self.encode_identity());
        writer.write_raw(self.root.0.as_bytes());
        self.statistics.encode(&mut writer);
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote. Fails with [`DecodeError::Version`] if another version wrote it, and if a field
    /// is longer than [`Self::clamp_fields`] leaves it.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let RecordStart { nonce, parents, counter, time, worktree } = RecordStart::decode(&mut reader)?;
        let mut text = |max| reader.read_string(max).map(str::to_owned);
        let author = text(WHO_MAX)?;
        let host = text(WHO_MAX)?;
        let note = text(NOTE_MAX)?;
        // Refused and not taken for the nearest: equal records have equal encodings.
        let origin = match reader.read_u8()? {
            0 => SnapshotOrigin::User,
            1 => SnapshotOrigin::Safety,
            _ => return Err(DecodeError::Invalid("origin")),
        };
        // All paths share one limit: many short ones or a few long ones.
        let mut room = PATHS_LEN_MAX;
        let mut path = |reader: &mut FieldReader<'_>| {
            let path = reader.read_bytes(room)?;
            room -= path.len();
            Ok(path.to_vec())
        };
        let paths =
            (0..reader.read_count(PATHS_MAX)?).map(|_| path(&mut reader)).collect::<Result<_, _>>()?;
        let root = MapRoot(BlobId(reader.read_array()?));
        let statistics = SnapshotStatistics::decode(&mut reader)?;
        reader.expect_end()?;
        Ok(Self {
            nonce,
            root,
            parents,
            counter,
            time,
            worktree: worktree.to_owned(),
            author,
            host,
            note,
            origin,
            paths,
            statistics,
        })
    }

    /// Shortens the fields that are longer than the format allows, so that every record can be read back.
    pub fn clamp_fields(&mut self) {
        let mut room = PATHS_LEN_MAX;
        let fits = |path: &&Vec<u8>| {
            let left = room.checked_sub(path.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        // Up to the first one that does not fit, so that the list is a beginning of what was asked for.
        let fitting = self.paths.iter().take(PATHS_MAX).take_while(fits).count();
        self.paths.truncate(fitting);
        for (text, max) in
            [(&mut self.author, WHO_MAX), (&mut self.host, WHO_MAX), (&mut self.note, NOTE_MAX)]
        {
            text.truncate(text.floor_char_boundary(max));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(note: String, nanos: u32, parents: Vec<[u8; 32]>) -> SnapshotRecord {
        SnapshotRecord {
            nonce: [9; NONCE_LEN],
            root: MapRoot(BlobId([7; 32])),
            parents: parents.into_iter().map(SnapshotId).collect(),
            counter: 3,
            time: UnixTime { secs: -5, nanos },
            worktree: "main".into(),
            author: "ann".into(),
            host: "box".into(),
            note,
            origin: SnapshotOrigin::Safety,
            paths: vec![b"a/\xff".to_vec()],
            statistics: SnapshotStatistics { files: 1, dirs: 2, others: 3, bytes: 4, changed: 5, stored: 6 },
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(note in ".{0,40}", nanos in 0..1_000_000_000u32, parents: [[u8; 32]; 2]) {
            let record = record(note, nanos, parents.to_vec());
            prop_assert_eq!(SnapshotRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn damaged_records_never_panic(at: prop::sample::Index, flip in 1..=255u8) {
            let mut bytes = record("note".into(), 1, vec![]).encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(decoded) = SnapshotRecord::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_longest_record_fits_its_object() {
        let mut long = record("n".repeat(NOTE_MAX + 1), 999_999_999, vec![[9; 32]; PARENTS_MAX]);
        long.paths = vec![vec![b'p'; 4096]; 2 * PATHS_MAX];
        (long.author, long.host) = ("a".repeat(2 * WHO_MAX), "h".repeat(2 * WHO_MAX));
        (long.counter, long.time.secs) = (u64::MAX, i64::MIN);
        long.clamp_fields();
        assert_eq!(long.paths.len(), PATHS_MAX);
        let encoded = long.encode();
        assert!(encoded.len() <= RECORD_MAX, "{} bytes", encoded.len());
        assert_eq!(SnapshotRecord::decode(&encoded).as_ref(), Ok(&long));
        long.paths = vec![vec![b'p'; PATHS_LEN_MAX - 1], vec![b'p'; 2]];
        assert!(SnapshotRecord::decode(&long.encode()).is_err(), "paths that no writer keeps");
        long.clamp_fields();
        assert_eq!(SnapshotRecord::decode(&long.encode()).map(|record| record.paths.len()), Ok(1));
    }

    #[test]
    fn an_overlong_note_is_shortened_at_a_character() {
        let mut long = record("é".repeat(NOTE_MAX), 0, vec![]);
        long.clamp_fields();
        assert_eq!(SnapshotRecord::decode(&long.encode()), Ok(long));
    }
}

//! The record of one operation. Encoded, then sealed into `operations/<chain>/<sequence>`.
//!
//! Invariant: equal records have equal encodings. A record says no secret.

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::limits::REF_NAME_MAX;
use vellum_types::{DecodeError, FieldReader, FieldWriter, PackId, SnapshotId, UnixTime};

use crate::record::WHO_MAX;
use crate::refs::RefKind;

use super::command::CommandId;

const VERSION: u8 = 1;
/// The version of a record that says which run of a command it belongs to.
const RUN_VERSION: u8 = 2;
const HASH_LEN: usize = 32;
/// Most words of a command in a record: what tells a reader enough.
pub(super) const WORDS_MAX: usize = 64;
/// The longest of them, bytes.
pub(super) const WORD_MAX: usize = 512;
/// Longest value of a ref, bytes: as long as a ref may have.
const VALUE_MAX: usize = 48 << 10;
/// Most effects of one operation.
const EFFECTS_MAX: usize = 8192;
/// Most snapshots that one operation forgets. Who forgets more at once has several operations. Less than it may have: there
/// is room for what else it says.
pub(crate) const FORGOTTEN_MAX: usize = EFFECTS_MAX - 16;
/// Longest plaintext, bytes.
pub(super) const RECORD_MAX: usize = 1 << 20;

/// The last record of a chain, as the next one and the worktree's ref name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationLink {
    /// Its place in the chain. Numbers of records that were not carried out are left out.
    pub sequence: u64,
    /// The keyed hash of its plaintext.
    pub hash: [u8; HASH_LEN],
}

impl OperationLink {
    /// Adds the stored form.
    pub fn encode(&self, writer: &mut FieldWriter) {
        writer.write_varint(self.sequence).write_raw(&self.hash);
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { sequence: reader.read_varint()?, hash: reader.read_array()? })
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRecord {
    /// Its place in the chain.
    pub sequence: u64,
    /// The operation before it in the chain; none if it is the first.
    pub previous: Option<OperationLink>,
    /// When it was begun.
    pub time: UnixTime,
    /// On which host.
    pub host: String,
    /// By which user.
    pub user: String,
    /// In which process.
    pub pid: u32,
    /// The worktree that the command was run from.
    pub worktree: String,
    /// The words of the command, without secrets; none if a program of its own did it.
    pub command: Vec<String>,
    /// The run of the command, if its operations belong together.
    pub command_id: Option<CommandId>,
    /// What it changed.
    pub effects: Vec<OperationEffect>,
}

/// One change that an operation made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationEffect {
    /// A ref.
    Ref(RefEffect),
    /// A snapshot was forgotten.
    Forgotten(SnapshotId),
    /// A collection deleted packs: how many, and the hash of the sorted list of their names.
    Collected {
        /// A count.
        packs: u64,
        /// Of the list.
        hash: [u8; HASH_LEN],
        /// The one that was deleted first; None in records of early versions.
        first: Option<PackId>,
    },
    /// A key.
    Key(KeyChange, String),
    /// A snapshot was made, on which the worktree then stood.
    Made(SnapshotId),
    /// The operation takes back another one, or carries it out once more.
    Reverted(RevertedOperation),
    /// A snapshot that was forgotten is in the history again.
    Recovered(SnapshotId),
    /// A snapshot that a merge had made for itself was forgotten at its end.
    Discarded(SnapshotId),
    /// Old records of the chain were deleted.
    Thinned(Checkpoint),
}

/// Where a chain ends since its old records were deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last record that was deleted, with all before it.
    pub last: OperationLink,
    /// How many were deleted, a count.
    pub records: u64,
    /// When the last of them was begun.
    pub time: UnixTime,
}

/// What happened to a key. The text beside it says to which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// A slot was added.
    SlotAdded,
    /// A slot was removed.
    SlotRemoved,
    /// A new key epoch was begun.
    Rotated,
}

/// Which way an operation is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RevertDirection {
    /// It is taken back.
    Undo,
    /// It is carried out once more, after it was taken back.
    Redo,
}

impl RevertDirection {
    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Undo => Self::Redo,
            Self::Redo => Self::Undo,
        }
    }
}

/// An operation that another one takes back, or carries out once more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevertedOperation {
    /// Which of both.
    pub direction: RevertDirection,
    /// The worktree in whose chain it is; none if it is in that of the volume.
    pub worktree: Option<String>,
    /// Its place there.
    pub link: OperationLink,
}

/// A ref before and after an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefEffect {
    /// Its kind.
    pub kind: RefKind,
    /// Its name.
    pub name: String,
    /// Its counter after the operation; before, it was one less.
    pub counter: u64,
    /// What it said before; empty if it was not there. Of a worktree's head, the part that operations record.
    pub before: Vec<u8>,
    /// What it said then; empty if it was removed.
    pub after: Vec<u8>,
}

impl OperationRecord {
    /// What names this record.
    #[must_use]
    pub fn link(&self, keys: &VolumeKeys) -> OperationLink {
        let hash = keys.compute_record_id(RecordDomain::Operation, &self.encode());
        OperationLink { sequence: self.sequence, hash }
    }

    /// The checkpoint that the record is, if it is one.
    #[must_use]
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.effects.iter().find_map(|effect| match effect {
            OperationEffect::Thinned(checkpoint) => Some(*checkpoint),
            OperationEffect::Ref(_)
            | OperationEffect::Forgotten(_)
            | OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Made(_)
            | OperationEffect::Recovered(_)
            | OperationEffect::Discarded(_)
            | OperationEffect::Reverted(_) => None,
        })
    }

    /// The snapshot that was made in a line that no worktree has, if that is what was done.
    #[must_use]
    pub fn outside_snapshot(&self) -> Option<SnapshotId> {
        find_outside_snapshot(&self.effects)
    }

    /// The operation that this one takes back or carries out once more, if it does.
    #[must_use]
    pub fn reverted_operation(&self) -> Option<&RevertedOperation> {
        self.effects.iter().find_map(|effect| match effect {
            OperationEffect::Reverted(reverted) => Some(reverted),
            OperationEffect::Ref(_)
            | OperationEffect::Forgotten(_)
            | OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Made(_)
            | OperationEffect::Recovered(_)
            | OperationEffect::Discarded(_)
            | OperationEffect::Thinned(_) => None,
        })
    }

    /// Encodes the plaintext of the stored record (docs/format.md).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // Records without it encode to the bytes of the first version, since their hashes name them.
        let version = if self.command_id.is_some() { RUN_VERSION } else { VERSION };
        writer.write_u8(version).write_varint(self.sequence);
        match &self.previous {
            None => drop(writer.write_u8(0)),
            Some(link) => link.encode(writer.write_u8(1)),
        }
        self.time.encode(&mut writer);
        for text in [&self.host, &self.user] {
            writer.write_bytes(text.as_bytes());
        }
        writer.write_u32(self.pid).write_bytes(self.worktree.as_bytes());
        writer.write_varint(self.command.len() as u64);
        for word in &self.command {
            writer.write_bytes(word.as_bytes());
        }
        if let Some(CommandId(id)) = &self.command_id {
            writer.write_raw(id);
        }
        writer.write_varint(self.effects.len() as u64);
        for effect in &self.effects {
            effect.encode(&mut writer);
        }
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = FieldReader::new(bytes);
        let reader = &mut rest;
        let version = reader.read_u8()?;
        if !matches!(version, VERSION | RUN_VERSION) {
            return Err(DecodeError::Version(u32::from(version)));
        }
        let sequence = reader.read_varint()?;
        let previous = match reader.read_u8()? {
            0 => None,
            1 => Some(OperationLink::decode(reader)?),
            _ => return Err(DecodeError::Invalid("previous operation")),
        };
        // A chain leads backwards, and therefore ends.
        if previous.is_some_and(|previous| previous.sequence >= sequence) {
            return Err(DecodeError::Invalid("previous operation"));
        }
        let time = UnixTime::decode(reader)?;
        let host = reader.read_string(WHO_MAX)?.to_owned();
        let user = reader.read_string(WHO_MAX)?.to_owned();
        let pid = reader.read_u32()?;
        let worktree = reader.read_string(REF_NAME_MAX)?.to_owned();
        let command = (0..reader.read_count(WORDS_MAX)?)
            .map(|_| reader.read_string(WORD_MAX).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let command_id = match version {
            RUN_VERSION => Some(CommandId(reader.read_array()?)),
            _ => None,
        };
        let effects = (0..reader.read_count(EFFECTS_MAX)?)
            .map(|_| OperationEffect::decode(reader))
            .collect::<Result<_, _>>()?;
        rest.expect_end()?;
        Ok(Self { sequence, previous, time, host, user, pid, worktree, command, command_id, effects })
    }
}

impl OperationEffect {
    /// A change of a key; `subject` says of which.
    pub(crate) fn key(change: KeyChange, subject: &str) -> Self {
        // Shortened to what a reader accepts: a record that cannot be read back would break its chain.
        let end = subject.floor_char_boundary(WHO_MAX);
        Self::Key(change, subject.get(..end).unwrap_or_default().to_owned())
    }

    /// What a collection did that deleted these packs, in ascending order.
    pub(crate) fn collected(packs: &[PackId]) -> Self {
        let names: Vec<_> = packs.iter().map(ToString::to_string).collect();
        Self::Collected {
            packs: names.len() as u64,
            first: packs.first().copied(),
            // The record is authenticated; this only has to tell one list from another.
            hash: blake3::hash(names.join("\n").as_bytes()).into(),
        }
    }

    fn encode(&self, writer: &mut FieldWriter) {
        match self {
            Self::Ref(RefEffect { kind, name, counter, before, after }) => {
                writer.write_u8(1).write_u8(kind.stored_byte()).write_bytes(name.as_bytes());
                writer.write_varint(*counter).write_bytes(before).write_bytes(after);
            }
            Self::Forgotten(id) => drop(writer.write_u8(2).write_raw(id.as_bytes())),
            Self::Collected { packs, hash, first } => {
                // Early versions wrote 3, without the first pack. Such a record must encode to the same bytes, since its hash
                // names it.
                writer.write_u8(if first.is_some() { 10 } else { 3 }).write_varint(*packs).write_raw(hash);
                if let Some(first) = first {
                    writer.write_raw(first.as_bytes());
                }
            }
            Self::Key(change, subject) => {
                let change = match change {
                    KeyChange::SlotAdded => 0,
                    KeyChange::SlotRemoved => 1,
                    KeyChange::Rotated => 2,
                };
                writer.write_u8(4).write_u8(change).write_bytes(subject.as_bytes());
            }
            Self::Made(id) => drop(writer.write_u8(5).write_raw(id.as_bytes())),
            Self::Reverted(RevertedOperation { direction, worktree, link }) => {
                let direction = match direction {
                    RevertDirection::Undo => 0,
                    RevertDirection::Redo => 1,
                };
                // No worktree has an empty name.
                let worktree = worktree.as_deref().unwrap_or_default();
                link.encode(writer.write_u8(6).write_u8(direction).write_bytes(worktree.as_bytes()));
            }
            Self::Recovered(id) => drop(writer.write_u8(7).write_raw(id.as_bytes())),
            Self::Discarded(id) => drop(writer.write_u8(8).write_raw(id.as_bytes())),
            Self::Thinned(Checkpoint { last, records, time }) => {
                last.encode(writer.write_u8(9));
                writer.write_varint(*records);
                time.encode(writer);
            }
        }
    }

    fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.read_u8()? {
            1 => Self::Ref(RefEffect {
                kind: RefKind::from_stored_byte(reader.read_u8()?)?,
                name: reader.read_string(REF_NAME_MAX)?.to_owned(),
                counter: reader.read_varint()?,
                before: reader.read_bytes(VALUE_MAX)?.to_vec(),
                after: reader.read_bytes(VALUE_MAX)?.to_vec(),
            }),
            2 => Self::Forgotten(SnapshotId(reader.read_array()?)),
            3 => Self::Collected { packs: reader.read_varint()?, hash: reader.read_array()?, first: None },
            4 => {
                let change = match reader.read_u8()? {
                    0 => KeyChange::SlotAdded,
                    1 => KeyChange::SlotRemoved,
                    2 => KeyChange::Rotated,
                    _ => return Err(DecodeError::Invalid("key change")),
                };
                Self::Key(change, reader.read_string(WHO_MAX)?.to_owned())
            }
            5 => Self::Made(SnapshotId(reader.read_array()?)),
            6 => {
                let direction = match reader.read_u8()? {
                    0 => RevertDirection::Undo,
                    1 => RevertDirection::Redo,
                    _ => return Err(DecodeError::Invalid("direction of an operation")),
                };
                let worktree = reader.read_string(REF_NAME_MAX)?;
                let worktree = (!worktree.is_empty()).then(|| worktree.to_owned());
                Self::Reverted(RevertedOperation {
                    direction,
                    worktree,
                    link: OperationLink::decode(reader)?,
                })
            }
            7 => Self::Recovered(SnapshotId(reader.read_array()?)),
            8 => Self::Discarded(SnapshotId(reader.read_array()?)),
            10 => Self::Collected {
                packs: reader.read_varint()?,
                hash: reader.read_array()?,
                first: Some(PackId(reader.read_array()?)),
            },
            9 => Self::Thinned(Checkpoint {
                last: OperationLink::decode(reader)?,
                records: reader.read_varint()?,
                time: UnixTime::decode(reader)?,
            }),
            _ => return Err(DecodeError::Invalid("effect")),
        })
    }
}

/// The snapshot of an operation that only made one: no ref came to name it, so that it is in a line that no worktree has.
pub(crate) fn find_outside_snapshot(effects: &[OperationEffect]) -> Option<SnapshotId> {
    match effects {
        [OperationEffect::Made(id)] => Some(*id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> OperationRecord {
        OperationRecord {
            sequence: 7,
            previous: Some(OperationLink { sequence: 5, hash: [3; 32] }),
            time: UnixTime { secs: 5, nanos: 6 },
            host: "box".into(),
            user: "ann".into(),
            pid: 9,
            worktree: "main".into(),
            command: vec!["snapshot".into()],
            command_id: None,
            effects: vec![
                OperationEffect::Ref(RefEffect {
                    kind: RefKind::Tag,
                    name: "v1".into(),
                    counter: 2,
                    before: Vec::new(),
                    after: vec![1; 32],
                }),
                OperationEffect::Forgotten(SnapshotId([4; 32])),
                OperationEffect::Collected { packs: 3, hash: [5; 32], first: None },
                OperationEffect::Collected { packs: 3, hash: [5; 32], first: Some(PackId([12; 32])) },
                OperationEffect::Key(KeyChange::SlotRemoved, "laptop".into()),
                OperationEffect::Made(SnapshotId([6; 32])),
                OperationEffect::Recovered(SnapshotId([9; 32])),
                OperationEffect::Discarded(SnapshotId([10; 32])),
                OperationEffect::Thinned(Checkpoint {
                    last: OperationLink { sequence: 2, hash: [11; 32] },
                    records: 2,
                    time: UnixTime { secs: 4, nanos: 5 },
                }),
                OperationEffect::Reverted(RevertedOperation {
                    direction: RevertDirection::Redo,
                    worktree: Some("main".into()),
                    link: OperationLink { sequence: 2, hash: [7; 32] },
                }),
                OperationEffect::Reverted(RevertedOperation {
                    direction: RevertDirection::Undo,
                    worktree: None,
                    link: OperationLink { sequence: 3, hash: [8; 32] },
                }),
            ],
        }
    }

    #[test]
    fn records_round_trip_and_lead_backwards() {
        assert_eq!(OperationRecord::decode(&record().encode()), Ok(record()));
        let with_id = OperationRecord { command_id: Some(CommandId([13; 8])), ..record() };
        assert_eq!(OperationRecord::decode(&with_id.encode()), Ok(with_id));
        let circle = OperationRecord { sequence: 5, ..record() };
        assert!(OperationRecord::decode(&circle.encode()).is_err());
    }

    proptest! {
        #[test]
        fn damaged_records_never_panic(at: prop::sample::Index, flip in 1..=255u8) {
            let mut bytes = record().encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(decoded) = OperationRecord::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }
}

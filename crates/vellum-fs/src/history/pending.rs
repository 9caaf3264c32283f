//! Pending snapshots: durable here, not yet published.

use vellum_live::{LiveError, VisitScan};
use vellum_map::KeySpan;
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId};
use vellum_volume::operations::{WORD_MAX, WORDS_MAX};
use vellum_volume::{SnapshotOrigin, SnapshotRecord};

use crate::error::Result;
use crate::tree::head::{LayeredState, PENDING};
use crate::tree::{LiveMap, UsageAmount, read_numbered_records};

/// Maximum number of tags of a new snapshot.
const TAGS_MAX: usize = 64;

/// A pending snapshot: its tree is not in the store yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSnapshot {
    /// Its state.
    pub state: LayeredState,
    /// Its id.
    pub id: SnapshotId,
    /// Its record; root and statistics are added with the tree.
    pub record: SnapshotRecord,
    /// The usage of that state.
    pub used: UsageAmount,
    /// The tags that it gets.
    pub tags: Vec<String>,
    /// The words of the command that made it, as its operation records them; none if no command did.
    pub command: Vec<String>,
}

impl PendingSnapshot {
    /// The words of the command that its operation is recorded for.
    pub(crate) fn recorded_command(&self) -> Vec<String> {
        let known = || match self.record.origin {
            SnapshotOrigin::User => "snapshot",
            SnapshotOrigin::Safety => "restore",
        };
        if self.command.is_empty() { vec![known().into()] } else { self.command.clone() }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        self.state.encode(&mut writer);
        self.used.encode(&mut writer);
        writer
            .write_raw(self.id.as_bytes())
            .write_bytes(&self.record.encode())
            .write_varint(self.tags.len() as u64);
        for tag in &self.tags {
            writer.write_bytes(tag.as_bytes());
        }
        // Without words the form is that of early versions.
        if !self.command.is_empty() {
            writer.write_varint(self.command.len() as u64);
            for word in &self.command {
                writer.write_bytes(word.as_bytes());
            }
        }
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let state = LayeredState::decode(&mut reader)?;
        let used = UsageAmount::decode(&mut reader)?;
        let id = SnapshotId(reader.read_array()?);
        let record = SnapshotRecord::decode(reader.read_bytes(usize::MAX)?)?;
        let tags = (0..reader.read_count(TAGS_MAX)?)
            .map(|_| reader.read_string(usize::MAX).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let words = if reader.remaining() == 0 { 0 } else { reader.read_count(WORDS_MAX)? };
        let command = (0..words)
            .map(|_| reader.read_string(WORD_MAX).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        reader.expect_end()?;
        Ok(Self { state, used, id, record, tags, command })
    }
}

/// Returns all pending snapshots, oldest first, with the numbers in their keys. `scan` is that of a store or of a
/// transaction.
pub fn read_pending_snapshots(
    scan: impl FnOnce(&KeySpan, &mut VisitScan<'_>) -> Result<(), LiveError>,
) -> Result<Vec<(u64, PendingSnapshot)>> {
    read_numbered_records(PENDING, "a snapshot that waits to be published", PendingSnapshot::decode, scan)
}

impl LiveMap {
    /// Returns the pending snapshots, oldest first, with their numbers.
    pub fn pending_snapshots(&self) -> Result<Vec<(u64, PendingSnapshot)>> {
        read_pending_snapshots(|span, visit| self.live_store().scan(span, visit))
    }
}

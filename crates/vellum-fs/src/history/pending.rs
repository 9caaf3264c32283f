//! Pending snapshots: durable here, not yet published.

use vellum_live::{LiveError, VisitScan};
use vellum_map::KeySpan;
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId};
use vellum_volume::operations::RecordedCommand;
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
    /// The command that made it, as its operation records it; None if no command did.
    pub command: Option<RecordedCommand>,
}

impl PendingSnapshot {
    /// The command that its operation is recorded for.
    pub(crate) fn recorded_command(&self) -> RecordedCommand {
        let known = || match self.record.origin {
            SnapshotOrigin::User => "snapshot",
            SnapshotOrigin::Safety => "restore",
        };
        self.command.clone().unwrap_or_else(|| RecordedCommand::from_words(&[known()]))
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
        // Without a command the form is that of early versions.
        if let Some(command) = &self.command {
            command.encode(&mut writer);
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
        let has_command = reader.remaining() > 0;
        let command = has_command.then(|| RecordedCommand::decode(&mut reader)).transpose()?;
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

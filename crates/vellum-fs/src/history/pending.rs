//! Pending snapshots: durable here, not yet published.

use std::ops::ControlFlow;

use vellum_live::{LiveError, VisitScan};
use vellum_map::KeySpan;
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId};
use vellum_volume::SnapshotRecord;

use crate::error::Result;
use crate::tree::head::{LayeredState, PENDING, pending_snapshot_key};
use crate::tree::{UsageAmount, wrap_decode_error};

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
}

impl PendingSnapshot {
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
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let state = LayeredState::decode(&mut reader)?;
        let used = UsageAmount::decode(&mut reader)?;
        let id = SnapshotId(reader.read_array()?);
        let record = SnapshotRecord::decode(reader.read_bytes(usize::MAX)?)?;
        let tags = (0..reader.read_count(TAGS_MAX)?)
            .map(|_| reader.read_string(usize::MAX).map(str::to_owned))
            .collect::<std::result::Result<_, _>>()?;
        reader.expect_end()?;
        Ok(Self { state, used, id, record, tags })
    }
}

/// Returns all pending snapshots, oldest first, with the numbers in their keys. `scan` is that of a store or of a
/// transaction.
pub fn read_pending_snapshots(
    scan: impl FnOnce(&KeySpan, &mut VisitScan<'_>) -> std::result::Result<(), LiveError>,
) -> Result<Vec<(u64, PendingSnapshot)>> {
    let mut found: Vec<Result<_>> = Vec::new();
    scan(&KeySpan::from_prefix(PENDING), &mut |key, value| {
        let number = key.last_chunk().map_or(0, |digits| u64::from_be_bytes(*digits));
        let decoded = PendingSnapshot::decode(value)
            .map_err(wrap_decode_error("a snapshot that waits to be published"));
        found.push(decoded.map(|pending| (number, pending)));
        ControlFlow::Continue(())
    })?;
    found.into_iter().collect()
}

/// Returns the key of a pending snapshot.
#[must_use]
pub fn pending_snapshot_key_of(number: u64) -> [u8; 9] {
    pending_snapshot_key(number)
}

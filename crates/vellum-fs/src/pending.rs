//! Snapshots that were made and are not published yet.

use std::ops::ControlFlow;

use vellum_live::{LiveError, Visit};
use vellum_map::Span;
use vellum_types::{DecodeError, Reader, SnapshotId, Writer};
use vellum_volume::SnapshotRecord;

use crate::error::Result;
use crate::head::{PENDING, State, pending_key};
use crate::tree::{Amount, damaged};

/// Most tags that a snapshot gets when it is made.
const TAGS_MAX: usize = 64;

/// A snapshot whose tree is not in the store yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What it holds.
    pub state: State,
    /// Its id.
    pub id: SnapshotId,
    /// Its record; root and statistics come with the tree.
    pub record: SnapshotRecord,
    /// How much that is.
    pub used: Amount,
    /// The tags that it gets.
    pub tags: Vec<String>,
}

impl Pending {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.state.encode(&mut writer);
        self.used.encode(&mut writer);
        writer.raw(self.id.as_bytes()).bytes(&self.record.encode()).varint(self.tags.len() as u64);
        for tag in &self.tags {
            writer.bytes(tag.as_bytes());
        }
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let state = State::decode(&mut reader)?;
        let used = Amount::decode(&mut reader)?;
        let id = SnapshotId(reader.array()?);
        let record = SnapshotRecord::decode(reader.bytes(usize::MAX)?)?;
        let tags = (0..reader.count(TAGS_MAX)?)
            .map(|_| reader.string(usize::MAX).map(str::to_owned))
            .collect::<std::result::Result<_, _>>()?;
        reader.finish()?;
        Ok(Self { state, used, id, record, tags })
    }
}

/// All snapshots that wait, the oldest first, with their keys' numbers. `scan` is a store's or a transaction's.
pub fn all_pending(
    scan: impl FnOnce(&Span, &mut Visit<'_>) -> std::result::Result<(), LiveError>,
) -> Result<Vec<(u64, Pending)>> {
    let mut found: Vec<Result<_>> = Vec::new();
    scan(&Span::prefix(PENDING), &mut |key, value| {
        let number = key.last_chunk().map_or(0, |digits| u64::from_be_bytes(*digits));
        let decoded = Pending::decode(value).map_err(damaged("a snapshot that waits to be published"));
        found.push(decoded.map(|pending| (number, pending)));
        ControlFlow::Continue(())
    })?;
    found.into_iter().collect()
}

/// The key of a snapshot that waits.
#[must_use]
pub fn key_of(number: u64) -> [u8; 9] {
    pending_key(number)
}

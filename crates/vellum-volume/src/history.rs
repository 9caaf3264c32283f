//! Walking the history: newest first, along the parents or over all snapshots of the store.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use vellum_types::SnapshotId;

use crate::catalog::SnapshotCatalog;
use crate::error::{Result, VolumeError};
use crate::record::SnapshotRecord;

/// A snapshot with its record.
#[derive(Debug, Clone)]
pub struct HistoryEntry {
    /// Its id.
    pub id: SnapshotId,
    /// What it is.
    pub record: Arc<SnapshotRecord>,
}

impl HistoryEntry {
    /// Order of time; the counter decides within one tick of the clock, the id where all else is equal.
    fn time_order_key(&self) -> (vellum_types::UnixTime, u64, SnapshotId) {
        // The counter keeps children before their parents where the times are equal, and the id makes the order total.
        (self.record.time, self.record.counter, self.id)
    }
}

impl PartialEq for HistoryEntry {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for HistoryEntry {}

impl PartialOrd for HistoryEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HistoryEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time_order_key().cmp(&other.time_order_key())
    }
}

/// Snapshots from some heads back along all parents: none before its children, newest first among those that may
/// come next. Forgotten snapshots are passed through, not shown; where even the record is gone, the line ends.
pub struct AncestorWalk<'a> {
    catalog: &'a SnapshotCatalog,
    live: Arc<[SnapshotId]>,
    queue: BinaryHeap<HistoryEntry>,
    met: HashSet<SnapshotId>,
}

impl<'a> AncestorWalk<'a> {
    /// Starts at these snapshots. Fails if the store cannot list its snapshots, or a record of one of them cannot be read.
    pub fn from_heads(
        catalog: &'a SnapshotCatalog,
        heads: impl IntoIterator<Item = SnapshotId>,
    ) -> Result<Self> {
        let live = catalog.last_listed_ids()?;
        let mut walk = Self { catalog, live, queue: BinaryHeap::new(), met: HashSet::new() };
        for id in heads {
            walk.visit_snapshot(id)?;
        }
        Ok(walk)
    }

    fn visit_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        if !self.met.insert(id) {
            return Ok(());
        }
        match self.catalog.get_record(&id) {
            Ok(record) => self.queue.push(HistoryEntry { id, record }),
            // Forgotten so long ago that its record is gone too. A listed snapshot without a record is damage.
            Err(VolumeError::MissingRecord(_)) if self.live.binary_search(&id).is_err() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Iterator for AncestorWalk<'_> {
    type Item = Result<HistoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = self.queue.pop()?;
            // Also of forgotten snapshots: their ancestors may be there still.
            for parent in entry.record.parents.clone() {
                if let Err(error) = self.visit_snapshot(parent) {
                    return Some(Err(error));
                }
            }
            if self.live.binary_search(&entry.id).is_ok() {
                return Some(Ok(entry));
            }
        }
    }
}

/// Returns the nearest ancestors of a snapshot that are among `wanted`, which are in ascending order: on the first parent's
/// line first. Others, such as forgotten ones, are passed through. Fails if a record is damaged.
pub fn find_nearest_ancestors(
    catalog: &SnapshotCatalog,
    wanted: &[SnapshotId],
    entry: &HistoryEntry,
) -> Result<Vec<SnapshotId>> {
    let mut found = Vec::new();
    let mut met = HashSet::new();
    // A stack: with the first parent on top, its line is followed first.
    let mut queue: Vec<_> = entry.record.parents.iter().rev().copied().collect();
    while let Some(id) = queue.pop() {
        if !met.insert(id) {
            continue;
        }
        if wanted.binary_search(&id).is_ok() {
            found.push(id);
            continue;
        }
        match catalog.get_record(&id) {
            Ok(record) => queue.extend(record.parents.iter().rev()),
            // The collector has deleted the record of a forgotten snapshot: what came before it on this line is not
            // known any more.
            Err(VolumeError::MissingRecord(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns every snapshot of the store, newest first. Fails if a record is damaged.
pub fn list_history(catalog: &SnapshotCatalog) -> Result<Vec<HistoryEntry>> {
    let mut entries: Vec<_> =
        catalog.load_all_records()?.into_iter().map(|(id, record)| HistoryEntry { id, record }).collect();
    entries.sort_unstable_by(|a, b| b.cmp(a));
    Ok(entries)
}

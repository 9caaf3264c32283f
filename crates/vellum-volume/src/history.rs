//! Walking the history: newest first, along the parents or over all snapshots of the store.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use vellum_types::{Ino, SnapshotId};

use crate::catalog::SnapshotCatalog;
use crate::error::{Result, VolumeError};
use crate::record::SnapshotRecord;
use crate::volume::Volume;

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

impl Volume {
    /// Returns the inode number from which on two snapshots' numbers were given out by different lines of history: below it,
    /// a number means the same file in both. None if that cannot be known.
    pub fn find_shared_bound(&self, a: SnapshotId, b: SnapshotId) -> Result<Option<Ino>> {
        // Without common history, both lines began to count after the root.
        let Some(base) = self.find_common_ancestor(a, b)? else { return Ok(Some(Ino(Ino::ROOT.0 + 1))) };
        // The tree of a forgotten snapshot may be gone.
        Ok(self.open_tree(base.record.root).read_super_block().ok().map(|record| record.next_ino))
    }

    /// Returns the newest snapshot that two descend from, which is one of them if the other descends from it. None if they
    /// have no common history, or what joined it is gone.
    pub fn find_common_ancestor(&self, a: SnapshotId, b: SnapshotId) -> Result<Option<HistoryEntry>> {
        let mut sides: HashMap<SnapshotId, u8> = HashMap::new();
        let mut queue = BinaryHeap::new();
        let mut reach = |queue: &mut BinaryHeap<HistoryEntry>, id: SnapshotId, side: u8| {
            let reached = sides.entry(id).or_default();
            if *reached == 0 {
                match self.catalog.get_record(&id) {
                    Ok(record) => queue.push(HistoryEntry { id, record }),
                    Err(VolumeError::MissingRecord(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            *reached |= side;
            Ok(*reached)
        };
        reach(&mut queue, a, 1)?;
        reach(&mut queue, b, 2)?;
        // A snapshot comes after its parents, so that all that descend from an entry were met before it.
        while let Some(entry) = queue.pop() {
            let side = reach(&mut queue, entry.id, 0)?;
            if side == 3 {
                return Ok(Some(entry));
            }
            for parent in &entry.record.parents {
                reach(&mut queue, *parent, side)?;
            }
        }
        Ok(None)
    }
}

/// Returns every snapshot of the store, newest first. Fails if a record is damaged.
pub fn list_history(catalog: &SnapshotCatalog) -> Result<Vec<HistoryEntry>> {
    let mut entries: Vec<_> =
        catalog.load_all_records()?.into_iter().map(|(id, record)| HistoryEntry { id, record }).collect();
    entries.sort_unstable_by(|a, b| b.cmp(a));
    Ok(entries)
}

//! Walking the history: newest first, along the parents or over all snapshots of the store.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use vellum_types::{SnapshotId, UnixTime};

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
    fn time_order_key(&self) -> (UnixTime, u64, SnapshotId) {
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
/// come next. From the first one on that is dated before its parent, which a clock that was ahead leads to, the counters
/// decide in place of the times; what was met on other lines until then may be a parent of one that comes later.
/// Forgotten snapshots are passed through, not shown; where even the record is gone, the line ends.
pub struct AncestorWalk<'a> {
    catalog: &'a SnapshotCatalog,
    live: Arc<[SnapshotId]>,
    queue: BinaryHeap<QueuedEntry>,
    /// Whether a snapshot was met that is dated before its parent.
    goes_by_counter: bool,
    met: HashSet<SnapshotId>,
}

/// A snapshot that comes next or later. The greatest comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct QueuedEntry {
    /// Zero as long as the times decide.
    counter: u64,
    entry: HistoryEntry,
}

impl<'a> AncestorWalk<'a> {
    /// Starts at these snapshots. Fails if the store cannot list its snapshots, or a record of one of them cannot be read.
    pub fn from_heads(
        catalog: &'a SnapshotCatalog,
        heads: impl IntoIterator<Item = SnapshotId>,
    ) -> Result<Self> {
        let live = catalog.last_listed_ids()?;
        let queue = BinaryHeap::new();
        let mut walk = Self { catalog, live, queue, goes_by_counter: false, met: HashSet::new() };
        for id in heads {
            walk.visit_snapshot(id, None)?;
        }
        Ok(walk)
    }

    fn visit_snapshot(&mut self, id: SnapshotId, child: Option<UnixTime>) -> Result<()> {
        if !self.met.insert(id) {
            return Ok(());
        }
        match self.catalog.get_record(&id) {
            Ok(record) => {
                if !self.goes_by_counter && child.is_some_and(|child| child < record.time) {
                    self.goes_by_counter = true;
                    let queue = std::mem::take(&mut self.queue).into_iter();
                    self.queue = queue.map(|queued| QueuedEntry::new(queued.entry, true)).collect();
                }
                self.queue.push(QueuedEntry::new(HistoryEntry { id, record }, self.goes_by_counter));
            }
            // Forgotten so long ago that its record is gone too. A listed snapshot without a record is damage.
            Err(VolumeError::MissingRecord(_)) if self.live.binary_search(&id).is_err() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl QueuedEntry {
    fn new(entry: HistoryEntry, goes_by_counter: bool) -> Self {
        // A counter is greater than those of all parents, whatever clocks said.
        Self { counter: if goes_by_counter { entry.record.counter } else { 0 }, entry }
    }
}

impl Iterator for AncestorWalk<'_> {
    type Item = Result<HistoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let QueuedEntry { entry, .. } = self.queue.pop()?;
            // Also of forgotten snapshots: their ancestors may be there still.
            for parent in entry.record.parents.clone() {
                if let Err(error) = self.visit_snapshot(parent, Some(entry.record.time)) {
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

/// Returns every snapshot of the store, newest first. One from a clock that was ahead counts as no later than those that
/// follow it, so that none comes before its children. Fails if a record is damaged.
pub fn list_history(catalog: &SnapshotCatalog) -> Result<Vec<HistoryEntry>> {
    let mut entries: Vec<_> =
        catalog.load_all_records()?.into_iter().map(|(id, record)| HistoryEntry { id, record }).collect();
    // Children before their parents: a counter is greater than those of all parents.
    entries.sort_unstable_by_key(|entry| Reverse(entry.record.counter));
    let mut bounds: HashMap<SnapshotId, UnixTime> = HashMap::new();
    let mut timed = Vec::with_capacity(entries.len());
    for entry in entries {
        let own = entry.record.time;
        let time = bounds.get(&entry.id).map_or(own, |bound| own.min(*bound));
        for parent in &entry.record.parents {
            bounds.entry(*parent).and_modify(|bound| *bound = time.min(*bound)).or_insert(time);
        }
        timed.push((time, entry));
    }
    timed.sort_unstable_by_key(|(time, entry)| Reverse((*time, entry.record.counter, entry.id)));
    Ok(timed.into_iter().map(|(_, entry)| entry).collect())
}

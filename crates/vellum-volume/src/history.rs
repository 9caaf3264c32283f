//! Walking the history: newest first, along the parents or over all snapshots of the store.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use vellum_types::SnapshotId;

use crate::catalog::Catalog;
use crate::error::{Result, VolumeError};
use crate::record::SnapshotRecord;

/// A snapshot with its record.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its id.
    pub id: SnapshotId,
    /// What it is.
    pub record: Arc<SnapshotRecord>,
}

impl Entry {
    /// Order of time; the counter decides within one tick of the clock, the id where all else is equal.
    fn moment(&self) -> (vellum_types::Time, u64, SnapshotId) {
        (self.record.time, self.record.counter, self.id)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.moment().cmp(&other.moment())
    }
}

/// Snapshots from some heads back along all parents: none before its children, newest first among those that may
/// come next. Forgotten snapshots are passed through, not shown; where even the record is gone, the line ends.
pub struct Ancestors<'a> {
    catalog: &'a Catalog,
    live: Arc<[SnapshotId]>,
    queue: BinaryHeap<Entry>,
    met: HashSet<SnapshotId>,
}

impl<'a> Ancestors<'a> {
    /// Starts at these snapshots.
    pub fn of(catalog: &'a Catalog, heads: impl IntoIterator<Item = SnapshotId>) -> Result<Self> {
        let live = catalog.ids_seen()?;
        let mut walk = Self { catalog, live, queue: BinaryHeap::new(), met: HashSet::new() };
        for id in heads {
            walk.visit(id)?;
        }
        Ok(walk)
    }

    fn visit(&mut self, id: SnapshotId) -> Result<()> {
        if !self.met.insert(id) {
            return Ok(());
        }
        match self.catalog.get(&id) {
            Ok(record) => self.queue.push(Entry { id, record }),
            Err(VolumeError::MissingRecord(_)) if self.live.binary_search(&id).is_err() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Iterator for Ancestors<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = self.queue.pop()?;
            for parent in entry.record.parents.clone() {
                if let Err(error) = self.visit(parent) {
                    return Some(Err(error));
                }
            }
            if self.live.binary_search(&entry.id).is_ok() {
                return Some(Ok(entry));
            }
        }
    }
}

/// Every snapshot of the store, newest first.
pub fn all(catalog: &Catalog) -> Result<Vec<Entry>> {
    let mut entries: Vec<_> = catalog.all()?.into_iter().map(|(id, record)| Entry { id, record }).collect();
    entries.sort_unstable_by(|a, b| b.cmp(a));
    Ok(entries)
}

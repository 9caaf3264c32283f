//! How two snapshots descend from others: merge bases, and merges that are one merge made twice.
//!
//! Two devices that merge the same snapshots make two records with the same tree. Such *twins* count as one snapshot
//! here; otherwise devices would answer each other's merges for ever. The graph alone decides, never a clock.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

use vellum_types::SnapshotId;

use crate::catalog::SnapshotCatalog;
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;

/// What twins have in common: of a merge its tree and its parents, of another snapshot its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct MergeIdentity([u8; 32]);

/// Follows parents, and recognises twins.
pub(crate) struct AncestrySearch<'a> {
    catalog: &'a SnapshotCatalog,
    /// Where records are looked for that the first has not.
    other: Option<&'a SnapshotCatalog>,
    identities: HashMap<SnapshotId, MergeIdentity>,
}

/// A snapshot to be looked at: those with the highest counters come first, so that each comes before its parents.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WaitingSnapshot {
    counter: u64,
    identity: MergeIdentity,
}

/// How a snapshot is reached from the two that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SnapshotReach {
    from_first: bool,
    from_second: bool,
    /// A common ancestor descends from it.
    is_below_common: bool,
}

impl SnapshotReach {
    fn union(self, other: Self) -> Self {
        Self {
            from_first: self.from_first || other.from_first,
            from_second: self.from_second || other.from_second,
            is_below_common: self.is_below_common || other.is_below_common,
        }
    }
}

/// A snapshot that was reached, or one of its twins.
struct ReachedSnapshot {
    entry: HistoryEntry,
    reach: SnapshotReach,
}

/// Snapshots that were reached, and those of them whose parents are still to be looked at.
#[derive(Default)]
struct ReachedSnapshots {
    found: BTreeMap<MergeIdentity, ReachedSnapshot>,
    queue: BinaryHeap<WaitingSnapshot>,
}

impl ReachedSnapshots {
    fn add_snapshot(&mut self, entry: HistoryEntry, identity: MergeIdentity, reach: SnapshotReach) {
        let counter = entry.record.counter;
        let mut is_changed = true;
        match self.found.entry(identity) {
            Entry::Vacant(vacant) => drop(vacant.insert(ReachedSnapshot { entry, reach })),
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                let union = held.reach.union(reach);
                is_changed = held.reach != union;
                held.reach = union;
                // The lowest id of the twins, whichever was met first: all machines must find the same base.
                if entry.id < held.entry.id {
                    held.entry = entry;
                }
            }
        }
        // Queued again, also if its parents were looked at: they have to be told of the new reach. A reach only
        // grows, so that this ends.
        if is_changed {
            self.queue.push(WaitingSnapshot { counter, identity });
        }
    }

    /// Whether only ancestors of common ancestors are left.
    fn is_settled(&self) -> bool {
        let is_below = |identity| self.found.get(identity).is_some_and(|found| found.reach.is_below_common);
        self.queue.iter().all(|waiting| is_below(&waiting.identity))
    }
}

impl<'a> AncestrySearch<'a> {
    pub fn new(catalog: &'a SnapshotCatalog) -> Self {
        Self { catalog, other: None, identities: HashMap::new() }
    }

    /// A search in the records of two stores.
    pub fn across_stores(catalog: &'a SnapshotCatalog, other: Option<&'a SnapshotCatalog>) -> Self {
        Self { catalog, other, identities: HashMap::new() }
    }

    /// The record of a snapshot; None: it is not known here any more.
    fn find_entry(&self, id: SnapshotId) -> Result<Option<HistoryEntry>> {
        for catalog in [Some(self.catalog), self.other].into_iter().flatten() {
            match catalog.get_record(&id) {
                Ok(record) => return Ok(Some(HistoryEntry { id, record })),
                Err(VolumeError::MissingRecord(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// What a snapshot and its twins have in common. Merges of merges are followed without recursion.
    fn find_identity(&mut self, id: SnapshotId) -> Result<MergeIdentity> {
        let mut waiting = vec![id];
        // A merge stays on the stack until the identities of its parents are known, which its own is made of. Ids are hashes over
        // those of the parents, so that no snapshot waits for itself.
        while let Some(at) = waiting.last().copied() {
            if self.identities.contains_key(&at) {
                waiting.pop();
                continue;
            }
            let entry = self.find_entry(at)?;
            let merge = entry.filter(|entry| entry.record.parents.len() > 1);
            // Only merges have twins: whatever else there is was made once.
            let Some(merge) = merge else {
                self.identities.insert(at, MergeIdentity(at.0));
                continue;
            };
            let parents = &merge.record.parents;
            let unknown: Vec<_> = parents.iter().filter(|id| !self.identities.contains_key(*id)).collect();
            if !unknown.is_empty() {
                waiting.extend(unknown);
                continue;
            }
            // As a set: twins name their parents in either order.
            let parents: BTreeSet<_> = parents.iter().filter_map(|id| self.identities.get(id)).collect();
            let mut hasher = blake3::Hasher::new();
            hasher.update(merge.record.root.0.as_bytes());
            for parent in parents {
                hasher.update(&parent.0);
            }
            self.identities.insert(at, MergeIdentity(*hasher.finalize().as_bytes()));
        }
        Ok(self.identities.get(&id).copied().unwrap_or(MergeIdentity(id.0)))
    }

    /// Counts the snapshots of which neither they nor twins of them are among others.
    pub fn count_missing(
        &mut self,
        snapshots: &HashSet<SnapshotId>,
        others: &HashSet<SnapshotId>,
    ) -> Result<u64> {
        let mut known = HashSet::new();
        for id in others {
            known.insert(self.find_identity(*id)?);
        }
        let mut missing = HashSet::new();
        for id in snapshots {
            missing.insert(self.find_identity(*id)?);
        }
        Ok(missing.difference(&known).count() as u64)
    }

    /// Returns whether two snapshots are one, or one merge made twice.
    pub fn are_twins(&mut self, a: SnapshotId, b: SnapshotId) -> Result<bool> {
        Ok(a == b || self.find_identity(a)? == self.find_identity(b)?)
    }

    /// Returns whether `descendant` is `ancestor`, or has it or a twin of it in its history.
    pub fn has_ancestor(&mut self, descendant: SnapshotId, ancestor: SnapshotId) -> Result<bool> {
        // Without its record, nothing tells whether it is a merge and which are its twins.
        if self.find_entry(ancestor)?.is_none() {
            return Ok(false);
        }
        let identity = self.find_identity(ancestor)?;
        let mut met = HashSet::new();
        let mut waiting = vec![descendant];
        while let Some(id) = waiting.pop() {
            if id == ancestor || self.find_identity(id)? == identity {
                return Ok(true);
            }
            if let Some(entry) = self.find_entry(id)? {
                waiting.extend(entry.record.parents.iter().filter(|parent| met.insert(**parent)));
            }
        }
        Ok(false)
    }

    /// Returns the common ancestors of two snapshots from which no other common ancestor descends, sorted by id. Of twins only
    /// one, with the lowest id that was met.
    pub fn find_merge_bases(&mut self, a: SnapshotId, b: SnapshotId) -> Result<Vec<HistoryEntry>> {
        let mut reached = ReachedSnapshots::default();
        let from_first = SnapshotReach { from_first: true, ..SnapshotReach::default() };
        let from_second = SnapshotReach { from_second: true, ..SnapshotReach::default() };
        self.reach_snapshot(a, from_first, &mut reached)?;
        self.reach_snapshot(b, from_second, &mut reached)?;
        let mut common = BTreeSet::new();
        while !reached.is_settled()
            && let Some(WaitingSnapshot { identity, .. }) = reached.queue.pop()
        {
            let Some(found) = reached.found.get(&identity) else { continue };
            let mut reach = found.reach;
            // A common ancestor is a candidate as long as no other one descends from it. The mark travels to its own
            // ancestors, and takes away candidates that were found earlier.
            if reach.from_first && reach.from_second {
                if !reach.is_below_common {
                    common.insert(identity);
                }
                reach.is_below_common = true;
            }
            for parent in found.entry.record.parents.clone() {
                self.reach_snapshot(parent, reach, &mut reached)?;
            }
        }
        common
            .retain(|identity| reached.found.get(identity).is_some_and(|found| !found.reach.is_below_common));
        let mut bases: Vec<_> =
            common.iter().filter_map(|identity| Some(reached.found.get(identity)?.entry.clone())).collect();
        // Several bases are merged one after the other: the order must be the same whoever merges.
        bases.sort_by_key(|entry| entry.id);
        Ok(bases)
    }

    fn reach_snapshot(
        &mut self,
        id: SnapshotId,
        reach: SnapshotReach,
        reached: &mut ReachedSnapshots,
    ) -> Result<()> {
        if let Some(entry) = self.find_entry(id)? {
            let identity = self.find_identity(id)?;
            reached.add_snapshot(entry, identity, reach);
        }
        Ok(())
    }
}

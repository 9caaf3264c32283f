//! Where the lines of worktrees join: the snapshots that merges of them take as bases.

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};

use vellum_types::SnapshotId;

use crate::catalog::SnapshotCatalog;
use crate::error::{Result, VolumeError};

/// The heads that descend from a snapshot, one bit each.
type HeadSet = Vec<u64>;

/// A snapshot that was reached, and how: from each of its children that was reached, by these heads.
type WaitingSnapshots = HashMap<SnapshotId, Vec<HeadSet>>;

/// Returns the snapshots from which at least two heads descend, and none of whose children has the same heads above it. The
/// best common ancestors of each two heads are among them. Snapshots that were forgotten are passed through.
pub(super) fn find_line_joins(
    catalog: &SnapshotCatalog,
    heads: &BTreeSet<SnapshotId>,
) -> Result<HashSet<SnapshotId>> {
    let mut joins = HashSet::new();
    // One line joins no other.
    if heads.len() < 2 {
        return Ok(joins);
    }
    let mut waiting = WaitingSnapshots::new();
    let mut queue = BinaryHeap::new();
    for (number, id) in heads.iter().enumerate() {
        let mut own = vec![0; heads.len().div_ceil(64)];
        own[number / 64] |= 1 << (number % 64);
        reach_snapshot(catalog, *id, own, &mut waiting, &mut queue)?;
    }
    // A child's counter is above those of its parents, so that all that leads to a snapshot was seen before it is.
    while let Some((_, id)) = queue.pop() {
        let Some(ways) = waiting.remove(&id) else { continue };
        let reached = ways.iter().fold(vec![0; heads.len().div_ceil(64)], unite);
        let count: u32 = reached.iter().map(|word| word.count_ones()).sum();
        // If one child has the same heads above it, that child, or one above it, is the join.
        if count >= 2 && !ways.contains(&reached) {
            joins.insert(id);
        }
        for parent in &catalog.get_record(&id)?.parents {
            reach_snapshot(catalog, *parent, reached.clone(), &mut waiting, &mut queue)?;
        }
    }
    Ok(joins)
}

fn reach_snapshot(
    catalog: &SnapshotCatalog,
    id: SnapshotId,
    heads: HeadSet,
    waiting: &mut WaitingSnapshots,
    queue: &mut BinaryHeap<(u64, SnapshotId)>,
) -> Result<()> {
    if let Some(ways) = waiting.get_mut(&id) {
        ways.push(heads);
        return Ok(());
    }
    match catalog.get_record(&id) {
        Ok(record) => {
            queue.push((record.counter, id));
            waiting.insert(id, vec![heads]);
            Ok(())
        }
        // Forgotten so long ago that its record is gone, too: no merge can use it, or what is behind it.
        Err(VolumeError::MissingRecord(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn unite(mut all: HeadSet, more: &HeadSet) -> HeadSet {
    for (word, other) in all.iter_mut().zip(more) {
        *word |= other;
    }
    all
}

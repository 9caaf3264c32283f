//! How far a worktree and a remote's worktree of the same name are apart.

use std::collections::HashSet;

use vellum_types::SnapshotId;

use super::{MAIN_WORKTREE, Remote};
use crate::catalog::SnapshotCatalog;
use crate::error::{Result, VolumeError};
use crate::merge::ancestry::AncestrySearch;
use crate::volume::Volume;

/// Where a remote's worktree is, compared with this one: the worktree of the same name or, in a store that can only be
/// read and has none, the one that a clone takes its files from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteStanding {
    /// The snapshot on which it stands there; none if it has none, or if there is no such worktree.
    pub there: Option<SnapshotId>,
    /// Snapshots in the history here that are not in the history there. A merge that was made twice counts as one
    /// snapshot.
    pub ahead: u64,
    /// Snapshots in the history there that are not in the history here.
    pub behind: u64,
    /// Whether nothing can be pushed there.
    pub is_read_only: bool,
}

/// Asks a remote where the worktree is that is compared with this one.
pub fn compare_with_remote(volume: &Volume, remote: &Remote) -> Result<RemoteStanding> {
    let here = volume.read_head()?;
    let target = volume.open_remote(remote)?;
    let is_read_only = target.as_ref().is_some_and(|target| target.objects.is_read_only());
    let mut head = match &target {
        Some(target) => target.read_worktree_head(&volume.worktree.worktree)?,
        None => None,
    };
    // No push makes a worktree there: the one of that name is the one that goes on.
    if let (None, true, Some(target)) = (&head, is_read_only, &target) {
        head = target.read_worktree_head(MAIN_WORKTREE)?;
    }
    let there = head.and_then(|head| head.head);
    let ours = collect_ancestors(&volume.catalog, here)?;
    let theirs = match &target {
        Some(target) => collect_ancestors(&target.catalog, there)?,
        None => HashSet::new(),
    };
    // Two machines that made the same merge have not diverged: neither has anything that the other lacks.
    let mut search =
        AncestrySearch::across_stores(&volume.catalog, target.as_ref().map(|target| &target.catalog));
    Ok(RemoteStanding {
        there,
        ahead: search.count_missing(&ours, &theirs)?,
        behind: search.count_missing(&theirs, &ours)?,
        is_read_only,
    })
}

/// How far a snapshot here and the one on which a remote's worktree stood when it was seen last are apart. The remote is not
/// asked: what others have pushed there since is unknown.
pub fn estimate_standing(
    volume: &Volume,
    here: Option<SnapshotId>,
    there: Option<SnapshotId>,
) -> Result<RemoteStanding> {
    let ours = collect_ancestors(&volume.catalog, here)?;
    let theirs = collect_ancestors(&volume.catalog, there)?;
    let mut search = AncestrySearch::across_stores(&volume.catalog, None);
    Ok(RemoteStanding {
        there,
        ahead: search.count_missing(&ours, &theirs)?,
        behind: search.count_missing(&theirs, &ours)?,
        // Only the store could tell.
        is_read_only: false,
    })
}

/// A snapshot and all its ancestors, forgotten ones included.
fn collect_ancestors(catalog: &SnapshotCatalog, head: Option<SnapshotId>) -> Result<HashSet<SnapshotId>> {
    let mut met = HashSet::new();
    let mut waiting: Vec<_> = head.into_iter().collect();
    while let Some(id) = waiting.pop() {
        if !met.insert(id) {
            continue;
        }
        match catalog.get_record(&id) {
            Ok(record) => waiting.extend(record.parents.iter().copied()),
            // Where even the record is gone, the line ends.
            Err(VolumeError::MissingRecord(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(met)
}

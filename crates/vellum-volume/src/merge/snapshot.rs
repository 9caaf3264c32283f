//! Merges of snapshots into snapshots: the base, the tree, and the record with both as parents.

use vellum_host::process::{host_name, user_name};
use vellum_types::SnapshotId;

use super::{ConflictPolicies, MergeBase, MergeBaseOrigin, MergeInput, MergeSide, MergedTree};
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;
use crate::record::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics};
use crate::session::{WriteSession, current_time};
use crate::volume::Volume;

/// Two snapshots to merge.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotMerge<'a> {
    /// The one that the worktree is on.
    pub ours: &'a HistoryEntry,
    /// The other one.
    pub theirs: &'a HistoryEntry,
    /// What the merge starts from; None: what they have in common.
    pub base: Option<&'a HistoryEntry>,
    /// How conflicts are dealt with.
    pub policies: &'a ConflictPolicies,
}

/// A merge of two snapshots that is in the store, and on no worktree yet.
#[derive(Debug, Clone)]
pub struct StoredMerge {
    /// The snapshot of the result.
    pub entry: HistoryEntry,
    /// The result.
    pub merged: MergedTree,
    /// What it started from.
    pub origin: MergeBaseOrigin,
}

impl Volume {
    /// Merges two snapshots and returns the result. Nothing names what this may put into the store, so the next collection
    /// deletes it.
    pub fn preview_merge(&self, merge: &SnapshotMerge<'_>) -> Result<MergedTree> {
        let mut session = self.begin_write_session()?;
        Ok(self.merge_in_session(merge, &mut session)?.1)
    }

    /// Merges two snapshots and records the result, with the note that `note` makes of its conflicts. No worktree stands on it
    /// yet: `announce` is called before the snapshot is stored, and writes down its id, so that it is found if this process
    /// dies before anything else names it. Fails with [`VolumeError::NotCommon`] if the given base is not in the history of
    /// both.
    pub fn store_merge(
        &self,
        merge: &SnapshotMerge<'_>,
        note: impl FnOnce(&MergedTree) -> String,
        announce: impl FnOnce(SnapshotId, &MergedTree) -> Result<()>,
    ) -> Result<StoredMerge> {
        let mut session = self.begin_write_session()?;
        let (base, merged) = self.merge_in_session(merge, &mut session)?;
        let written = session.flush_blobs()?;
        let has_conflicts = !merged.conflicts.is_empty();
        let mut record = SnapshotRecord {
            nonce: Default::default(),
            root: merged.root,
            parents: vec![merge.ours.id, merge.theirs.id],
            // Raised above the counters of both parents when it is stored.
            counter: 0,
            time: current_time(),
            worktree: self.worktree.worktree.clone(),
            author: user_name(),
            host: host_name(),
            note: note(&merged),
            // With conflicts, nobody has asked for this state: it is kept so that the merge can be finished or taken
            // back.
            origin: if has_conflicts { SnapshotOrigin::Safety } else { SnapshotOrigin::User },
            paths: Vec::new(),
            statistics: SnapshotStatistics { stored: written.bytes_stored, ..merged.statistics },
        };
        // The record before the end of the session: a collector that finds no session must find the record.
        let id = self.prepare_snapshot(&mut record)?;
        announce(id, &merged)?;
        self.catalog.store_record(&record)?;
        session.end_session()?;
        let record = self.catalog.get_record(&id)?;
        Ok(StoredMerge { entry: HistoryEntry { id, record }, merged, origin: base.origin })
    }

    fn merge_in_session(
        &self,
        merge: &SnapshotMerge<'_>,
        session: &mut WriteSession,
    ) -> Result<(MergeBase, MergedTree)> {
        let SnapshotMerge { ours, theirs, base, policies } = *merge;
        let base = match base {
            Some(base) => {
                for side in [ours, theirs] {
                    // From a base that a side does not descend from, all that the side never had would look deleted
                    // by it.
                    if !self.has_in_history(side.id, base.id)? {
                        return Err(VolumeError::NotCommon { base: base.id, snapshot: side.id });
                    }
                }
                self.open_merge_base(base)?
            }
            None => self.find_merge_base(ours.id, theirs.id, session)?,
        };
        let side = |entry: &HistoryEntry| MergeSide { id: entry.id, root: entry.record.root };
        let input = MergeInput {
            base,
            ours: side(ours),
            statistics: ours.record.statistics,
            theirs: side(theirs),
            policies,
        };
        Ok((base, self.merge_trees(&input, session)?))
    }
}

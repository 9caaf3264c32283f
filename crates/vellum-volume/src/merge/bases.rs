//! What two snapshots are to each other, and the state that a merge of them starts from.

use vellum_map::MapRoot;
use vellum_types::{Ino, SnapshotId};

use super::ancestry::AncestrySearch;
use super::side::read_next_number;
use super::{ConflictPolicies, MergeInput, MergeSide};
use crate::error::Result;
use crate::history::HistoryEntry;
use crate::record::SnapshotStatistics;
use crate::session::WriteSession;
use crate::volume::Volume;

/// How deep bases of bases are merged. Then the newest one counts alone: a worse base costs conflicts, not content.
const DEPTH_MAX: usize = 8;

/// The first number that a worktree gives out.
const FIRST_NUMBER: Ino = Ino(Ino::ROOT.0 + 1);

/// What two snapshots are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotRelation {
    /// They are one snapshot.
    Same,
    /// They are the same merge, made twice.
    Twins,
    /// The other one is in this one's history.
    Contains,
    /// This one is in the other one's history.
    IsContained,
    /// Each has something that the other lacks.
    Diverged,
}

/// Where the state comes from that a merge starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBaseOrigin {
    /// It is that of a snapshot.
    Snapshot(SnapshotId),
    /// Several snapshots were merged.
    Merged,
    /// It is empty: the sides have no common history.
    Nothing,
}

/// What a merge starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeBase {
    /// The tree.
    pub root: MapRoot,
    /// From this number on, a number says nothing of which file it is: the tree is a merge of its own.
    pub shared: Ino,
    /// Where it comes from.
    pub origin: MergeBaseOrigin,
}

impl Volume {
    /// Returns what two snapshots are to each other. A merge that was made twice counts as one snapshot.
    pub fn relate_snapshots(&self, ours: SnapshotId, theirs: SnapshotId) -> Result<SnapshotRelation> {
        let mut search = AncestrySearch::new(&self.catalog);
        Ok(if ours == theirs {
            SnapshotRelation::Same
        } else if search.are_twins(ours, theirs)? {
            SnapshotRelation::Twins
        } else if search.has_ancestor(ours, theirs)? {
            SnapshotRelation::Contains
        } else if search.has_ancestor(theirs, ours)? {
            SnapshotRelation::IsContained
        } else {
            SnapshotRelation::Diverged
        })
    }

    /// Returns whether a snapshot is another one, or has it or the same merge made elsewhere in its history.
    pub fn has_in_history(&self, descendant: SnapshotId, ancestor: SnapshotId) -> Result<bool> {
        AncestrySearch::new(&self.catalog).has_ancestor(descendant, ancestor)
    }

    /// Returns the common ancestors of two snapshots from which no other common one descends, sorted by id.
    pub fn find_merge_bases(&self, ours: SnapshotId, theirs: SnapshotId) -> Result<Vec<HistoryEntry>> {
        AncestrySearch::new(&self.catalog).find_merge_bases(ours, theirs)
    }

    /// Returns the inode number from which on two snapshots' numbers were given out by different lines of history: below it,
    /// a number means the same file in both. None if that cannot be known.
    pub fn find_shared_bound(&self, a: SnapshotId, b: SnapshotId) -> Result<Option<Ino>> {
        let bases = self.find_merge_bases(a, b)?;
        // Without common history, both lines began to count after the root. Of several bases the newest counts: a merge
        // numbers what its sides made above the numbers of both, so that no number of one base is another file's.
        let Some(base) = select_newest_base(&bases) else { return Ok(Some(FIRST_NUMBER)) };
        // The tree of a forgotten snapshot may be gone.
        Ok(self.open_tree(base.record.root).read_super_block().ok().map(|record| record.next_ino))
    }

    /// Returns what a merge of two snapshots starts from. Several bases are merged into a tree that is stored by `session`.
    pub fn find_merge_base(
        &self,
        ours: SnapshotId,
        theirs: SnapshotId,
        session: &mut WriteSession,
    ) -> Result<MergeBase> {
        self.find_base_at_depth(ours, theirs, session, 0)
    }

    fn find_base_at_depth(
        &self,
        ours: SnapshotId,
        theirs: SnapshotId,
        session: &mut WriteSession,
        depth: usize,
    ) -> Result<MergeBase> {
        let bases = self.find_merge_bases(ours, theirs)?;
        let Some(newest) = select_newest_base(&bases) else {
            let origin = MergeBaseOrigin::Nothing;
            return Ok(MergeBase { root: self.empty_root(), shared: FIRST_NUMBER, origin });
        };
        // Several common ancestors: histories crossed before. To start from only one of them would show each change that
        // only the others have as made on both sides.
        if bases.len() == 1 || depth >= DEPTH_MAX {
            return self.open_merge_base(newest);
        }
        self.merge_bases(&bases, session, depth)
    }

    /// Returns a snapshot's state as what a merge starts from.
    pub fn open_merge_base(&self, entry: &HistoryEntry) -> Result<MergeBase> {
        let root = entry.record.root;
        let shared = read_next_number(self, &self.open_tree(root))?;
        Ok(MergeBase { root, shared, origin: MergeBaseOrigin::Snapshot(entry.id) })
    }

    fn merge_bases(
        &self,
        bases: &[HistoryEntry],
        session: &mut WriteSession,
        depth: usize,
    ) -> Result<MergeBase> {
        // Conflicts between bases are not reported: what the sides made of them since is what is merged.
        let policies = ConflictPolicies::default();
        let mut shared = FIRST_NUMBER;
        let mut merged: Option<MergeSide> = None;
        for entry in bases {
            let theirs = MergeSide { id: entry.id, root: entry.record.root };
            shared = shared.max(read_next_number(self, &self.open_tree(theirs.root))?);
            let Some(ours) = &mut merged else {
                merged = Some(theirs);
                continue;
            };
            let base = self.find_base_at_depth(ours.id, theirs.id, session, depth + 1)?;
            // No record is made of this tree, so that its statistics need not be right.
            let statistics = SnapshotStatistics::default();
            let input = MergeInput { base, ours: *ours, statistics, theirs, policies: &policies };
            ours.root = self.merge_trees(&input, session)?.root;
            // The tree just made can be read once its nodes are in the store.
            session.flush_blobs()?;
            session.resume_session(self)?;
        }
        let root = merged.map_or(self.empty_root(), |side| side.root);
        Ok(MergeBase { root, shared, origin: MergeBaseOrigin::Merged })
    }
}

fn select_newest_base(bases: &[HistoryEntry]) -> Option<&HistoryEntry> {
    bases.iter().max_by_key(|entry| (entry.record.counter, entry.id))
}

//! Merges of two states that descend from a common one, file by file.
//!
//! A file is followed by its inode number, so that a rename on one side and an edit on the other meet. Each fact (place,
//! content, mode, owner, extended attributes) is merged by itself. Invariants: the result is the same whichever side is
//! named first, and on whichever machine; whatever either side has is in the result, or was deleted by the other side
//! that did not see it changed, or is told of as a conflict; only what differs from the base is read.
//!
//! Deliberately absent: worktrees and their files, which are the callers'.

pub(crate) mod ancestry;
mod bases;
mod conflict;
mod emit;
mod facts;
mod files;
mod links;
mod names;
mod progress;
mod siblings;
mod side;
mod snapshot;
pub mod text;
mod work;

use std::collections::HashMap;

use vellum_chunker::Chunker;
use vellum_map::MapRoot;
use vellum_types::SnapshotId;

pub use self::bases::{MergeBase, MergeBaseOrigin, SnapshotRelation};
pub use self::conflict::{ConflictKind, ConflictPolicies, ConflictPolicy, MergeConflict, MergedFileKey};
use self::emit::ResultWriter;
use self::files::FileTable;
pub use self::progress::{ConflictResolution, MergeProgress, MergeStage, TrackedConflict, check_no_merge_in};
pub(crate) use self::progress::{find_merge_lock, read_progress};
pub use self::siblings::{SiblingFinder, SiblingWorktree};
use self::side::{PerSide, SideName, collect_changes};
pub use self::snapshot::{SnapshotMerge, StoredMerge};
use self::work::MergeWork;
use crate::error::Result;
use crate::record::SnapshotStatistics;
use crate::session::WriteSession;
use crate::volume::Volume;

/// A side of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeSide {
    /// The snapshot.
    pub id: SnapshotId,
    /// Its tree.
    pub root: MapRoot,
}

/// Three trees.
#[derive(Debug, Clone, Copy)]
pub struct MergeInput<'a> {
    /// What both sides descend from.
    pub base: MergeBase,
    /// The side that the result is compared with.
    pub ours: MergeSide,
    /// What that side holds.
    pub statistics: SnapshotStatistics,
    /// The other side.
    pub theirs: MergeSide,
    /// How conflicts are dealt with.
    pub policies: &'a ConflictPolicies,
}

/// The result of a merge.
#[derive(Debug, Clone)]
pub struct MergedTree {
    /// Its tree. It can be read when the session was flushed.
    pub root: MapRoot,
    /// What it holds; `changed` counts what differs from our side.
    pub statistics: SnapshotStatistics,
    /// Conflicts that nobody decided on, by path.
    pub conflicts: Vec<MergeConflict>,
}

impl Volume {
    /// Merges two states. What the result needs is put into `session`, which the caller flushes. Fails with
    /// [`VolumeError::BadTree`](crate::VolumeError::BadTree) if a tree contradicts itself.
    pub fn merge_trees(&self, input: &MergeInput<'_>, session: &WriteSession) -> Result<MergedTree> {
        // The sides are ordered by id: whoever merges, and whichever side they call theirs, gets the same tree.
        let is_ours_first = input.ours.id <= input.theirs.id;
        let sides = match is_ours_first {
            true => PerSide { first: input.ours, second: input.theirs },
            false => PerSide { first: input.theirs, second: input.ours },
        };
        let sides = collect_changes(self, &input.base.root, &sides)?;
        let mut work = MergeWork {
            volume: self,
            session,
            policies: input.policies,
            chunker: Chunker::new(self.config.chunker, &self.keys.chunker_key()),
            table: FileTable::build(self.open_tree(input.base.root), input.base.shared, sides)?,
            conflicts: Vec::new(),
            copies: Vec::new(),
            base_links: None,
            taken_numbers: HashMap::new(),
        };
        // Files before names: which names there are depends on which files stay.
        work.decide_files()?;
        work.settle_names()?;
        let mut writer = ResultWriter::new(&mut work)?;
        let root = writer.store_tree()?;
        let side = if is_ours_first { SideName::First } else { SideName::Second };
        let statistics = writer.count_statistics(side, input.statistics)?;
        let conflicts = writer.list_conflicts()?;
        Ok(MergedTree { root, statistics, conflicts })
    }
}

//! Two snapshots that are compared: all differences, by page.

use vellum_types::SnapshotId;
use vellum_volume::diff::{ChangeSide, FileChange, StateComparison, is_path_within};

use crate::error::Result;
use crate::volume::Volume;

/// The differences between two snapshots, sorted by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotComparison {
    /// All of them.
    pub changes: Vec<FileChange>,
}

impl SnapshotComparison {
    /// A part of the differences, and whether others follow.
    #[must_use]
    pub fn page(&self, skip: usize, limit: usize) -> (&[FileChange], bool) {
        let rest = self.changes.get(skip..).unwrap_or_default();
        (rest.get(..limit).unwrap_or(rest), rest.len() > limit)
    }
}

impl Volume {
    /// Compares two snapshots at and under a path; the empty path compares everything. A rename is listed if either of its
    /// paths is there. Costs what differs, whatever the snapshots hold.
    pub fn compare(&self, from: SnapshotId, to: SnapshotId, path: &[u8]) -> Result<SnapshotComparison> {
        let volume = self.inner();
        let open_tree = |id: SnapshotId| -> Result<_> {
            // Not from the catalog alone: it has the records of forgotten snapshots, too, whose trees may be gone.
            Ok(volume.open_tree(volume.resolve_snapshot(&id.to_string())?.record.root))
        };
        let from_tree = open_tree(from)?;
        let to_tree = open_tree(to)?;
        // Below this number an inode is the same file in both trees.
        let shared = volume.find_shared_bound(from, to)?;
        let states = StateComparison { from: &from_tree, to: &to_tree };
        let mut changes = states.find_changes_sharing(shared)?;
        let is_within = |side: &ChangeSide| is_path_within(&side.path, path);
        changes.retain(|change| [&change.old, &change.new].into_iter().flatten().any(is_within));
        Ok(SnapshotComparison { changes })
    }
}

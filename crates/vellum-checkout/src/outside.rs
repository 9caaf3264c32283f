//! Snapshots of directories that are no worktrees: into the volume of one, in lines of their own.
//!
//! Invariant: nothing in such a directory is changed, and nothing of it is restored in place.

use std::path::Path;

use vellum_host::ProgressMeter;
use vellum_volume::Volume;
use vellum_volume::volume::name_outside_line;

use crate::error::Result;
use crate::worktree::{
    CheckoutSnapshotRequest, CheckoutWorktree, DirectoryDiff, SnapshotExclusions, SnapshotReport,
};

/// A directory that is no worktree.
pub struct OutsideDirectory {
    source: CheckoutWorktree,
}

impl OutsideDirectory {
    /// Opens it for snapshots into a volume. The path is absolute, and without symlinks: it is what the line is called.
    pub fn open(volume: Volume, path: &Path, exclusions: SnapshotExclusions) -> Result<Self> {
        let line = name_outside_line(path.as_os_str().as_encoded_bytes());
        let mut source = CheckoutWorktree::for_outside(volume, path, line)?;
        source.exclude(exclusions)?;
        Ok(Self { source })
    }

    /// The volume that the snapshots go into.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.source.volume
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.source.root_path()
    }

    /// Records the directory as it is now.
    pub fn create_snapshot(
        &self,
        request: &CheckoutSnapshotRequest,
        meter: &ProgressMeter,
    ) -> Result<SnapshotReport> {
        self.source.create_snapshot(request, meter)
    }

    /// Compares its last snapshot with the directory as it is now.
    pub fn compare_with_last(&self, meter: &ProgressMeter) -> Result<DirectoryDiff> {
        self.source.compare_with_snapshot(None, &[], meter)
    }
}

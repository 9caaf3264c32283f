//! What a merge does with a checked-out worktree: it saves what no snapshot holds, brings the directory to a result, and
//! records what became of it.
//!
//! The merge itself is made from snapshots ([`vellum_volume::merge`]), and whoever asks for it keeps its progress.

use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;
use vellum_volume::SnapshotOrigin;
use vellum_volume::history::HistoryEntry;

use crate::error::{CheckoutError, Result};
use crate::fork::contains_only_state;
use crate::restore::{RestoreReport, RestoreRequest};
use crate::worktree::{CheckoutSnapshotRequest, CheckoutWorktree, SnapshotReport};

impl CheckoutWorktree {
    /// Whether the directory holds something else than the last snapshot.
    pub fn has_unsaved_changes(&self, meter: &ProgressMeter) -> Result<bool> {
        let looked = self.capture_unstored(&[], meter)?;
        let is_saved = looked.state.map_view().layers.iter().all(|layer| layer.is_empty());
        // What could not be read is in no layer, and before the first snapshot nothing holds it.
        Ok(!is_saved || !looked.captured.problems.is_empty() && self.head_snapshot()?.is_none())
    }

    /// Whether the directory holds nothing at all.
    pub fn is_empty(&self) -> Result<bool> {
        contains_only_state(&self.root)
    }

    /// Takes a snapshot of what no snapshot holds, before a merge.
    pub fn save_before_merge(&self, note: String, meter: &ProgressMeter) -> Result<SnapshotReport> {
        self.create_snapshot(&new_safety_request(note, false), meter)
    }

    /// Takes a snapshot of what no snapshot holds, if there is anything. Returns the snapshot that the worktree then stands on.
    /// The directory is scanned once. The caller holds the lock.
    pub fn snapshot_if_changed(&self, note: String, meter: &ProgressMeter) -> Result<SnapshotId> {
        Ok(self.create_snapshot(&new_safety_request(note, true), meter)?.id)
    }

    /// Brings the directory, or paths in it, to a snapshot. The caller holds the lock.
    pub fn bring_to_snapshot(
        &self,
        request: &RestoreRequest,
        meter: &ProgressMeter,
    ) -> Result<RestoreReport> {
        let plan = self.plan_restore(request, meter)?;
        self.execute_restore(plan, meter)
    }

    /// An error if the directory cannot be brought to a snapshot; changes nothing.
    pub fn check_reachable(&self, target: &HistoryEntry, meter: &ProgressMeter) -> Result<()> {
        self.plan_restore(&RestoreRequest::for_all(target), meter).map(drop)
    }

    /// An error if one of these paths, about which somebody has to decide, is absent.
    pub fn check_present<'p>(&self, mut paths: impl Iterator<Item = &'p [u8]>) -> Result<()> {
        let absent = self.read_absent_paths()?;
        match paths.find(|path| absent.is_concerned(path)) {
            None => Ok(()),
            Some(path) => Err(CheckoutError::Absent {
                action: "merge, since the sides are in conflict",
                path: vellum_host::escape::format_path(path),
            }),
        }
    }

    /// Records the directory as a snapshot that descends from both sides of a merge.
    pub fn record_merge(
        &self,
        parents: &[SnapshotId],
        note: String,
        meter: &ProgressMeter,
    ) -> Result<SnapshotReport> {
        let request = CheckoutSnapshotRequest {
            note,
            paths: Vec::new(),
            origin: SnapshotOrigin::User,
            only_if_changed: false,
        };
        self.create_snapshot_with_parents(Some(parents), &request, meter)
    }
}

fn new_safety_request(note: String, only_if_changed: bool) -> CheckoutSnapshotRequest {
    CheckoutSnapshotRequest { note, paths: Vec::new(), origin: SnapshotOrigin::Safety, only_if_changed }
}

//! Restoring a snapshot in a worktree, without losing changes that no snapshot holds.
//!
//! Invariants: before the first file is changed, everything that would be lost is in a safety snapshot, and a file
//! records the restore in progress. If it is killed, running it again completes it; restoring the safety snapshot
//! undoes it.

mod edit;
mod journal;
mod saved_plan;
mod state_plan;
mod unsaved;

use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_types::{Ino, SnapshotId};
use vellum_volume::history::HistoryEntry;
use vellum_volume::tree::PathBudget;
use vellum_volume::{FsTree, SnapshotOrigin, VolumeError};

use crate::absent::AbsentChange;
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::materialize::{CloneSource, MaterializeReport, MaterializeRequest};
use crate::plan::{CurrentDir, PlanInput, PlanSteps, WantedPart};
use crate::scan::{OpenTreeDirs, ScanEntryId};
use crate::worktree::{CapturedDirectory, CheckoutSnapshotRequest, CheckoutWorktree};

pub use edit::{FileEdit, FileEditReport};
pub use journal::InterruptedRestore;
pub(crate) use journal::read_interrupted_restore;
pub use saved_plan::{PLAN_MAX, SavedPlanError, SavedRestorePlan};
pub use state_plan::StateRestorePlan;

pub(crate) use unsaved::collect_changed_inodes;
use unsaved::{SnapshottedState, UnsavedSearch};
use vellum_host::beneath::{HeldDir, remove_temp_entries};

/// What to restore.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The snapshot.
    pub target: HistoryEntry,
    /// Only these paths, relative to the root; empty: everything.
    pub paths: Vec<Vec<u8>>,
    /// The paths that are to be in the directory, all others being absent; empty: those that are not absent already.
    pub only: Vec<Vec<u8>>,
    /// Lose what no snapshot holds.
    pub discard: bool,
}

impl RestoreRequest {
    /// Everything as a snapshot has it; what no snapshot holds is saved before.
    #[must_use]
    pub fn for_all(target: &HistoryEntry) -> Self {
        Self { target: target.clone(), paths: Vec::new(), only: Vec::new(), discard: false }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestoreStepKind {
    /// Something that is not there is made.
    Create,
    /// What is there is replaced.
    Replace,
    /// Only metadata are changed.
    Metadata,
    /// What is there is removed.
    Delete,
}

/// One thing that a restore would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreStep {
    /// Where.
    pub path: Vec<u8>,
    /// What.
    pub kind: RestoreStepKind,
}

impl RestoreStep {
    /// What it does, as a verb.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self.kind {
            RestoreStepKind::Create => "create",
            RestoreStepKind::Replace => "replace",
            RestoreStepKind::Metadata => "change",
            RestoreStepKind::Delete => "delete",
        }
    }
}

/// What a restore would do.
pub struct RestorePlan {
    /// What was asked for.
    pub request: RestoreRequest,
    /// Paths that would be overwritten or removed, and that no snapshot holds as they are.
    pub unsaved: Vec<Vec<u8>>,
    /// Files that could not be read while planning.
    pub problems: Vec<CheckoutProblem>,
    target: FsTree,
    looked: CapturedDirectory,
    work: PlanSteps,
}

/// What a restore did.
#[derive(Debug)]
pub struct RestoreReport {
    /// The automatic snapshot of what would have been lost; restoring it undoes.
    pub safety: Option<SnapshotId>,
    /// Files written.
    pub written: u64,
    /// Entries removed.
    pub deleted: u64,
    /// Bytes of content written.
    pub bytes: u64,
    /// Entries that could not be given to their owner or group.
    pub owners_not_set: u64,
    /// What could not be done.
    pub problems: Vec<CheckoutProblem>,
}

impl RestorePlan {
    /// All steps, by path.
    pub fn list_steps(&self) -> Result<Vec<RestoreStep>> {
        let mut steps = Vec::new();
        let mut budget = PathBudget::default();
        let mut add = |path: Vec<u8>, kind| {
            budget.charge_path(&path)?;
            steps.push(RestoreStep { path, kind });
            Ok::<_, VolumeError>(())
        };
        for id in &self.work.deletes {
            add(self.looked.tree.entry(*id).path(), RestoreStepKind::Delete)?;
        }
        let kind = |replaces: Option<ScanEntryId>| match replaces {
            Some(_) => RestoreStepKind::Replace,
            None => RestoreStepKind::Create,
        };
        for place in &self.work.make_dirs {
            add(self.target.entry_path(place.dir, &place.name)?, RestoreStepKind::Create)?;
        }
        for write in &self.work.writes {
            add(self.target.entry_path(write.place.dir, &write.place.name)?, kind(write.replaces))?;
        }
        for link in &self.work.links {
            add(self.target.entry_path(link.place.dir, &link.place.name)?, kind(link.replaces))?;
        }
        for (place, _) in &self.work.metas {
            add(self.target.entry_path(place.dir, &place.name)?, RestoreStepKind::Metadata)?;
        }
        steps.sort_by(|a, b| a.path.cmp(&b.path).then(a.kind.cmp(&b.kind)));
        Ok(steps)
    }

    /// What is there now and goes, or gets other metadata.
    fn replaced_entries(&self) -> impl Iterator<Item = ScanEntryId> {
        let writes = self.work.writes.iter().filter_map(|write| write.replaces);
        let links = self.work.links.iter().filter_map(|link| link.replaces);
        let metas = self.work.metas.iter().map(|(_, id)| *id);
        self.work.deletes.iter().copied().chain(writes).chain(links).chain(metas)
    }

    /// Whether the directory holds the snapshot already.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }
}

impl CheckoutWorktree {
    /// Says what a restore would do; changes nothing.
    pub fn plan_restore(&self, request: &RestoreRequest, meter: &ProgressMeter) -> Result<RestorePlan> {
        let looked = self.capture_unstored(&request.paths, meter)?;
        let target = self.volume.open_tree(request.target.record.root);
        let is_whole = request.paths.is_empty() && request.only.is_empty();
        if is_whole && looked.tree.walk_entries().next().is_none() {
            // Nothing here has anything of the snapshot: the plan names all that is in it.
            self.volume.announce_tree(request.target.record.root);
        }
        // A path that exists on neither side is a typing error. One that exists only here is removed by the
        // restore, one that exists only in the snapshot is created.
        let there =
            |path: &Vec<u8>| target.find_path(path, "").is_ok() || looked.state.find_path(path, "").is_ok();
        if let Some(missing) = request.paths.iter().find(|path| !there(path)) {
            return Err(self.no_such_path_error(missing, Some(&request.target)));
        }
        let now = CurrentDir { tree: &looked.tree, captured: &looked.captured, state: &looked.state };
        let place = format!("snapshot {}", self.volume.short_id(&request.target.id)?);
        request.only.iter().try_for_each(|path| target.find_path(path, &place).map(drop))?;
        let exclusions = self.scan_exclusions()?;
        let part = match request.only.as_slice() {
            [] => WantedPart::Present(&looked.absent),
            paths => WantedPart::Only { paths, absent: &looked.absent, exclusions: &exclusions },
        };
        let paths = &request.paths;
        let planner =
            PlanInput { target: &target, now: Some(now), paths, base: Ino::ROOT, elsewhere: false, part };
        let mut work = planner.build_plan()?;
        if let Some(path) = work.left_out.first().filter(|_| !request.paths.is_empty()) {
            return Err(CheckoutError::Absent { action: "restore it", path: format_path(path) });
        }
        let known = self.load_snapshotted_state()?;
        let found = UnsavedSearch { root: &self.root, target: &target, looked: &looked, known: &known }
            .find_unsaved(&work)?;
        if request.discard {
            unsaved::allow_overwriting(&mut work);
        } else if !found.in_the_way.is_empty() {
            return Err(CheckoutError::InTheWay(found.in_the_way));
        }
        let problems = looked.captured.problems.clone();
        let unsaved = found.unsaved;
        Ok(RestorePlan { request: request.clone(), unsaved, problems, target, looked, work })
    }

    /// Carries out a plan. The caller holds the lock since before it was drawn.
    pub fn execute_restore(&self, plan: RestorePlan, meter: &ProgressMeter) -> Result<RestoreReport> {
        let RestorePlan { request, unsaved, target, looked, mut work, .. } = plan;
        let left_out = std::mem::take(&mut work.left_out);
        let interrupted = self.find_interrupted_restore()?;
        // If nothing is unsaved, the safety snapshot of an interrupted run is still the one that undoes the
        // restore.
        let safety = if unsaved.is_empty() || request.discard {
            interrupted.as_ref().and_then(|interrupted| interrupted.safety)
        } else {
            Some(self.save_unsaved_changes(&request, &unsaved, meter)?)
        };
        if interrupted.is_some() {
            remove_stale_temp_files(&looked, &self.root)?;
        }
        let absent = self.begin_absent_change(AbsentChange {
            left_out,
            found: std::mem::take(&mut work.found),
            only: if request.paths.is_empty() { request.only.clone() } else { Vec::new() },
        })?;
        // The journal is written after the safety snapshot and before the first change, so a run that is
        // killed at any moment can be completed or undone.
        self.begin_restore(&request, safety)?;
        let now = CloneSource { tree: &looked.tree, dirs: OpenTreeDirs::new(&looked.tree, &self.root) };
        let done = MaterializeRequest {
            volume: &self.volume,
            target: &target,
            root: &self.root,
            base: Ino::ROOT,
            now: Some(now),
            clones: None,
            engine: None,
            meter,
        }
        .execute_steps(&work)?;
        // After a restore of selected paths the directory is no snapshot; the head stays, and the restored
        // files are changes relative to it.
        if request.paths.is_empty() {
            self.volume.set_head(request.target.id)?;
            self.write_restored_stat_cache(&request.target, &target, &done.problems);
            self.end_absent_change(absent)?;
        }
        // If the process is killed before this, the next restore finds the journal, plans again, and has
        // nothing left to do.
        self.end_restore()?;
        let MaterializeReport { written, deleted, bytes, owners_not_set, problems, .. } = done;
        Ok(RestoreReport { safety, written, deleted, bytes, owners_not_set, problems })
    }

    /// What snapshots are known to hold, beside the last one.
    fn load_snapshotted_state(&self) -> Result<SnapshottedState> {
        let tree = |id: SnapshotId| -> Result<FsTree> {
            Ok(self.volume.open_tree(self.volume.catalog.get_record(&id)?.root))
        };
        let head = self.head_snapshot()?.map(|head| self.volume.open_tree(head.record.root));
        let interrupted = self.find_interrupted_restore()?;
        let was_interrupted = interrupted.is_some();
        // The target as well: what the interrupted run has made is no change of a user.
        let ids = interrupted.into_iter().flat_map(|it| it.safety.into_iter().chain([it.target]));
        // One that was forgotten since holds nothing.
        let saved = ids.filter_map(|id| tree(id).ok()).collect();
        Ok(SnapshottedState { head, saved, was_interrupted })
    }

    /// Takes the snapshot that undoes a restore. If it cannot hold all that would be lost, nothing is restored.
    fn save_unsaved_changes(
        &self,
        request: &RestoreRequest,
        unsaved: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<SnapshotId> {
        let note = format!("before the restore of {}", self.volume.short_id(&request.target.id)?);
        let request = CheckoutSnapshotRequest {
            note,
            paths: Vec::new(),
            origin: SnapshotOrigin::Safety,
            only_if_changed: false,
        };
        let outcome = self.create_snapshot(&request, meter)?;
        // A file that the snapshot could not read is not saved. Only those that this restore would overwrite
        // matter.
        let lost: Vec<_> = outcome
            .problems
            .iter()
            .filter(|problem| unsaved.contains(&problem.path))
            .map(|problem| format_path(&problem.path))
            .collect();
        if lost.is_empty() { Ok(outcome.id) } else { Err(CheckoutError::InTheWay(lost)) }
    }
}

/// Removes the temporary files of the run that was interrupted.
pub(crate) fn remove_stale_temp_files(looked: &CapturedDirectory, root: &HeldDir) -> Result<()> {
    let dirs = OpenTreeDirs::new(&looked.tree, root);
    // A scan counts temporary files among the ignored entries, so only directories with ignored entries can
    // hold some.
    for dir in looked.tree.dirs().filter(|dir| dir.ignored_count() > 0) {
        match dirs.open_dir(dir.index()).and_then(|dir| remove_temp_entries(&dir)) {
            Err(error) if error.kind() == vellum_types::ErrorKind::NoSpace => return Err(error.into()),
            // Nothing was written where the caller may not write.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

//! Plans: what an operation would do, shown before it is done, and done only if it is still the same.
//!
//! Invariant: to run a plan is to draw it again, and to carry it out only if both are the same. What was changed in between
//! makes the plan fail with a conflict, and nothing is done.

use std::path::{Path, PathBuf};

use vellum_checkout::{CheckoutProblem, RestoreRequest, SavedRestorePlan};
use vellum_host::ProgressMeter;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::VolumeError;
use vellum_volume::annotation::AnnotationChange;
use vellum_volume::refs::check_ref_name;
use vellum_volume::snapshot_pin::NewSnapshotPin;

use crate::checkout::{Checkout, CheckoutRestore};
use crate::error::Result;
use crate::history::SnapshotLabels;
use crate::volume::Volume;

/// A restore of a directory that was planned.
#[derive(Debug, Clone)]
pub struct CheckoutRestorePlan {
    /// The snapshot.
    pub target: SnapshotId,
    /// What would be done, by path.
    pub steps: Vec<PlannedStep>,
    /// Paths with content that no snapshot has; a safety snapshot is made of them first.
    pub unsaved: Vec<Vec<u8>>,
    /// Paths that could not be looked at.
    pub problems: Vec<CheckoutProblem>,
    saved: SavedRestorePlan,
}

/// What would be done with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// A verb: `create`, `replace`, `change` or `delete`.
    pub action: &'static str,
    /// The path, from the root.
    pub path: Vec<u8>,
}

/// A fork that was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutForkPlan {
    /// The name of the new worktree.
    pub name: String,
    /// Its directory, which is empty or not there.
    pub directory: PathBuf,
    /// The snapshot with which it begins.
    pub from: SnapshotId,
    /// Files that it would have.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// A note and properties that were planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotePlan {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// What is to be said about it.
    pub change: AnnotationChange,
    /// What it is called now, and what was said about it.
    pub replaces: SnapshotLabels,
}

/// A tag that was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagPlan {
    /// Its name, which no tag has.
    pub name: String,
    /// What it would name.
    pub snapshot: SnapshotId,
}

/// A pin of a snapshot that was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinPlan {
    /// The snapshot, which is not forgotten as long as the pin holds.
    pub snapshot: SnapshotId,
    /// Why.
    pub reason: String,
    /// When the pin ends; None: never.
    pub until: Option<UnixTime>,
    /// The reason of the pin that it would replace.
    pub replaces: Option<String>,
}

impl Checkout {
    /// Plans a restore of these paths, relative to the root; without paths, of everything. Changes nothing.
    pub fn plan_restore(&self, text: &str, paths: &[Vec<u8>]) -> Result<CheckoutRestorePlan> {
        let target = self.worktree().volume.resolve_snapshot(text)?;
        let request = RestoreRequest { paths: paths.to_vec(), ..RestoreRequest::for_all(&target) };
        // A directory that another restore is changing would give a plan for a state that never was.
        let _lock = self.lock_worktree()?;
        let plan = self.worktree().plan_restore(&request, &ProgressMeter::default())?;
        let step = |step: vellum_checkout::RestoreStep| PlannedStep { action: step.verb(), path: step.path };
        Ok(CheckoutRestorePlan {
            target: target.id,
            steps: plan.list_steps()?.into_iter().map(step).collect(),
            unsaved: plan.unsaved.clone(),
            problems: plan.problems.clone(),
            saved: self.worktree().save_plan(&plan)?,
        })
    }

    /// Carries a plan out. Fails with a conflict, and does nothing, if anything that it touches has changed, or if the worktree
    /// stands on another snapshot.
    pub fn run_restore(&self, planned: &CheckoutRestorePlan) -> Result<CheckoutRestore> {
        let request = planned.saved.read_request(&self.worktree().volume)?;
        // Locked before the plan is drawn again: nobody else changes the worktree between that and the restore.
        let _lock = self.lock_worktree()?;
        // As in `restore_snapshot`: single paths may be restored while a merge is under way.
        if request.paths.is_empty() {
            self.worktree().volume.check_no_merge()?;
        }
        let meter = ProgressMeter::default();
        let plan = self.worktree().plan_restore(&request, &meter)?;
        planned.saved.check_same_plan(&self.worktree().save_plan(&plan)?)?;
        let done = self.worktree().execute_restore(plan, &meter)?;
        Ok(CheckoutRestore {
            safety: done.safety,
            written: done.written,
            deleted: done.deleted,
            problems: done.problems,
        })
    }

    /// Plans a fork. Fails if the name is taken or none, or if the directory has something in it.
    pub fn plan_fork(&self, name: &str, dir: impl AsRef<Path>, from: &str) -> Result<CheckoutForkPlan> {
        let volume = &self.worktree().volume;
        check_ref_name(name)?;
        if volume.read_worktree_head(name)?.is_some() {
            return Err(VolumeError::Exists { kind: "worktree", name: name.into() }.into());
        }
        let directory =
            std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        let is_taken = match std::fs::read_dir(&directory) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(VolumeError::wrap_local_error(&directory)(error).into()),
        };
        if is_taken {
            let name = directory.display().to_string();
            return Err(VolumeError::Exists { kind: "directory", name }.into());
        }
        let entry = volume.resolve_snapshot(from)?;
        let statistics = entry.record.statistics;
        let name = name.to_owned();
        Ok(CheckoutForkPlan {
            name,
            directory,
            from: entry.id,
            files: statistics.files,
            bytes: statistics.bytes,
        })
    }

    /// Makes a fork as it was planned.
    pub fn run_fork(&self, planned: &CheckoutForkPlan) -> Result<Self> {
        let from = planned.from.to_string();
        // What could have changed is looked at again; what happens after this, the fork itself refuses.
        self.plan_fork(&planned.name, &planned.directory, &from)?;
        self.fork_worktree(&planned.name, &planned.directory, &from)
    }
}

impl Volume {
    /// Plans a tag. Fails if the name is taken or none.
    pub fn plan_tag(&self, name: &str, snapshot: &str) -> Result<TagPlan> {
        check_ref_name(name)?;
        if self.inner().list_tags()?.iter().any(|(taken, _)| taken == name) {
            return Err(VolumeError::Exists { kind: "tag", name: name.into() }.into());
        }
        Ok(TagPlan { name: name.into(), snapshot: self.resolve_snapshot(snapshot)? })
    }

    /// Adds a tag as it was planned. Fails with a conflict if the name was taken meanwhile.
    pub fn run_tag(&self, planned: &TagPlan) -> Result<()> {
        self.tag_snapshot(&planned.name, planned.snapshot)
    }

    /// Plans a note, or properties. Fails if one of them could not be kept.
    pub fn plan_note(&self, snapshot: &str, change: &AnnotationChange) -> Result<NotePlan> {
        change.check()?;
        let snapshot = self.resolve_snapshot(snapshot)?;
        let replaces = self.find_snapshot(snapshot)?.1;
        Ok(NotePlan { snapshot, change: change.clone(), replaces })
    }

    /// Says what was planned. Fails with a conflict if something else was said meanwhile.
    pub fn run_note(&self, planned: &NotePlan) -> Result<()> {
        let now = self.find_snapshot(planned.snapshot)?.1;
        if now.note != planned.replaces.note || now.properties != planned.replaces.properties {
            let name = planned.snapshot.to_string();
            return Err(VolumeError::Exists { kind: "another note of the snapshot", name }.into());
        }
        Ok(self.inner().annotate_snapshot(planned.snapshot, &planned.change)?)
    }

    /// Plans a pin of a snapshot.
    pub fn plan_pin(&self, snapshot: &str, reason: &str, until: Option<UnixTime>) -> Result<PinPlan> {
        let snapshot = self.resolve_snapshot(snapshot)?;
        let replaces = self.find_pin_reason(snapshot)?;
        Ok(PinPlan { snapshot, reason: reason.into(), until, replaces })
    }

    /// Pins a snapshot as it was planned. Fails with a conflict if it was pinned or unpinned meanwhile.
    pub fn run_pin(&self, planned: &PinPlan) -> Result<()> {
        // A pin that is set after this look is refused by the pinning itself.
        if self.find_pin_reason(planned.snapshot)? != planned.replaces {
            let name = planned.snapshot.to_string();
            return Err(VolumeError::Exists { kind: "another pin of the snapshot", name }.into());
        }
        let new = NewSnapshotPin { reason: planned.reason.clone(), until: planned.until };
        Ok(self.inner().pin_snapshot(planned.snapshot, new)?)
    }

    /// The reason of the pin of a snapshot that is in force.
    fn find_pin_reason(&self, snapshot: SnapshotId) -> Result<Option<String>> {
        let now = vellum_host::clock::current_time();
        let pins = self.inner().list_readable_pins()?.0.into_iter();
        let mut found = pins.filter(|(id, pin)| *id == snapshot.to_string() && pin.is_in_force(now));
        Ok(found.next().map(|(_, pin)| pin.reason))
    }
}

//! `vellum undo`: takes back what an operation changed.

mod report;

use vellum_types::SnapshotId;
use vellum_volume::VolumeError;
use vellum_volume::operations::{
    HeadChange, KeptSnapshot, OperationChoice, RevertDirection, RevertPlan, RevertScope, RevertStep,
};
use vellum_volume::refs::RefKind;

use self::report::RevertReport;
use crate::context::CommandContext;
use crate::context::merge_place::{MergePlace, PlaceReport};
use crate::context::mounted::MountedWorktree;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::mounting::control::{ControlRequest, RevertedName};
use crate::mounting::trash::TrashRequest;

/// Take back the last operation, or another one
///
/// 'vellum operations' lists what can be undone: snapshots, restores, merges, forks, forgotten snapshots, tags, pins, notes,
/// settings, and worktrees that were added, removed or changed. Without OP, all that the last command did is undone, as far as
/// it was not undone yet; run the command again to undo the one before. 'vellum redo' takes an undo back.
///
/// An undone snapshot is forgotten, and the files stay as they are. An undone restore or merge changes the files back; what
/// no snapshot holds is saved in a safety snapshot first. If something has changed since what OP changed, or gc has deleted
/// what is needed, nothing is undone.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of the operation, as 'vellum operations' shows it
    #[arg(value_name = "OP")]
    operation: Option<u64>,
    /// OP is an operation of this worktree [default: the one that the directory is in]
    #[arg(long, value_name = "WORKTREE", requires = "operation")]
    worktree: Option<String>,
    /// Print what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Undoes an operation.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let place = MergePlace::open(context)?;
    let worktree = args.worktree.as_ref().unwrap_or(&place.volume().worktree.worktree).clone();
    let choice =
        args.operation.map_or(OperationChoice::Last, |number| OperationChoice::Numbered { worktree, number });
    let volume = place.volume();
    let draw_plans = || match &choice {
        OperationChoice::Last => volume.plan_whole_command(volume.plan_undo(&choice)?),
        OperationChoice::Numbered { .. } => Ok(vec![volume.plan_undo(&choice)?]),
    };
    RevertCommand { context, place: &place, dry_run: args.dry_run }.run(draw_plans)
}

/// Takes the operations of a command back, or carries them out once more.
pub struct RevertCommand<'a> {
    /// What all commands share.
    pub context: &'a CommandContext,
    /// Where the user stands.
    pub place: &'a MergePlace,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
}

impl RevertCommand<'_> {
    /// Draws plans, and carries them out.
    pub fn run(
        &self,
        draw_plans: impl FnOnce() -> Result<Vec<RevertPlan>, VolumeError>,
    ) -> Result<CommandOutcome> {
        // Locked before the plans are drawn: they are right only for the state that they were drawn for.
        let lock = self.place.lock(self.context)?;
        // In a mount, what waits to be published has no record yet.
        self.place.head()?;
        let plans = draw_plans()?;
        if plans.iter().any(|plan| plan.head.is_some()) {
            self.place.volume().check_no_merge()?;
        }
        let mut reports = Vec::with_capacity(plans.len());
        for plan in &plans {
            let mut report = RevertReport::new(self.context, self.place.volume(), plan);
            if !self.dry_run {
                self.carry_out_plan(plan, &mut report)?;
            }
            reports.push(report);
        }
        // Printed without the lock: whoever reads it may take any time, and other commands would wait.
        drop(lock);
        report::print_reports(reports, self.dry_run, &self.context.ui)
    }

    fn carry_out_plan(&self, plan: &RevertPlan, report: &mut RevertReport<'_>) -> Result<()> {
        // What this thread changes from here on is recorded as the reversal of that operation.
        let _scope = RevertScope::enter(plan.reverted.clone());
        for step in plan.before.iter() {
            report.add_kept(self.carry_out(plan, step)?);
        }
        if let Some(head) = plan.head {
            report.set_place(self.change_head(plan, head)?);
        }
        for step in plan.after.iter() {
            report.add_kept(self.carry_out(plan, step)?);
        }
        Ok(())
    }

    fn carry_out(&self, plan: &RevertPlan, step: &RevertStep) -> Result<Option<KeptSnapshot>> {
        let own = &self.place.volume().worktree.worktree;
        match (self.place, step) {
            // The process of the mount obeys its limits, and has the right to change the ref.
            (MergePlace::Mount(mounted), RevertStep::SetLimits { worktree, quota, trash_days })
                if worktree == own =>
            {
                let quota = ControlRequest::Quota { bytes: quota.bytes, inodes: quota.inodes };
                self.request(mounted, plan, quota)?;
                let head = mounted.volume.read_worktree_head(own)?;
                if head.is_some_and(|head| head.trash.days != *trash_days) {
                    let request = TrashRequest::SetDays(*trash_days);
                    self.request(mounted, plan, ControlRequest::Trash { request })?;
                }
                Ok(None)
            }
            (MergePlace::Mount(_) | MergePlace::Directory(_), step) => {
                Ok(self.place.volume().apply_revert_step(step)?)
            }
        }
    }

    fn change_head(&self, plan: &RevertPlan, change: HeadChange) -> Result<PlaceReport> {
        let resume = match plan.reverted.direction {
            RevertDirection::Undo => "'vellum undo' goes on",
            RevertDirection::Redo => "'vellum redo' goes on",
        };
        match (self.place, change) {
            (MergePlace::Directory(worktree), HeadChange::Move { from, target }) => {
                worktree.volume.move_head(from, target)?;
                Ok(PlaceReport::default())
            }
            (MergePlace::Directory(_), HeadChange::Restore { target, .. }) => {
                self.place.stand_on(self.context, &self.place.entry(target)?).with_resume_hint(resume)
            }
            (MergePlace::Mount(mounted), HeadChange::Move { from, target }) => {
                let name = |id: Option<SnapshotId>| id.map(|id| id.to_string());
                let request = ControlRequest::MoveHead { from: name(from), target: name(target) };
                self.request(mounted, plan, request)?;
                Ok(PlaceReport::default())
            }
            (MergePlace::Mount(mounted), HeadChange::Restore { from, target }) => {
                self.restore_mount(mounted, plan, from, target)
            }
        }
    }

    fn restore_mount(
        &self,
        mounted: &MountedWorktree,
        plan: &RevertPlan,
        from: Option<SnapshotId>,
        target: SnapshotId,
    ) -> Result<PlaceReport> {
        // What the kernel has not handed over yet belongs to the state that is saved before.
        mounted.sync_filesystem()?;
        // A program in the mount may have made a snapshot since the plan was drawn.
        if mounted.published_head()?.map(|head| head.id) != from {
            let name = &mounted.volume.worktree.worktree;
            return Err(
                VolumeError::Raced(format!("the {} '{name}'", RefKind::Worktree.display_name())).into()
            );
        }
        let request = ControlRequest::Restore { target: target.to_string(), discard: false, expected: None };
        let safety = self.request(mounted, plan, request)?;
        Ok(PlaceReport { safety, ..PlaceReport::default() })
    }

    /// Lets the process of the mount do its part. Returns the snapshot that it made.
    fn request(
        &self,
        mounted: &MountedWorktree,
        plan: &RevertPlan,
        request: ControlRequest,
    ) -> Result<Option<SnapshotId>> {
        let reverted = RevertedName::from(&plan.reverted);
        // The process of the mount makes the record, and does not know what this command takes back.
        let request = ControlRequest::Revert { reverted, request: Box::new(request) };
        Ok(mounted.send_request(&request)?.snapshot.and_then(|id| id.parse().ok()))
    }
}

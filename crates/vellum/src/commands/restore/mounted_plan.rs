//! `vellum restore --dry-run`, `--plan` and `--run` in a mount: the present state is published and compared with the
//! snapshot, and the process of the mount restores it only if it still has that state.

use std::path::Path;

use vellum_checkout::{RestoreRequest, StateRestorePlan};
use vellum_map::MapRoot;
use vellum_types::ErrorKind;

use super::mounted::{check_paths_known, report_mount_restore, send_restore};
use super::plan_file::{read_plan, write_plan};
use super::{ShownPlan, run_restore_hook};
use crate::context::CommandContext;
use crate::context::mounted::MountedWorktree;
use crate::error::{CommandOutcome, Result};
use crate::mounting::control::SeenState;

/// How often a plan is drawn anew because something was written after it was drawn.
pub const TRIES: usize = 10;

/// Shows what a restore would do.
pub fn show_mount_plan(
    context: &CommandContext,
    mounted: &MountedWorktree,
    request: &RestoreRequest,
) -> Result<CommandOutcome> {
    DrawnPlan::draw(mounted, request)?.show(mounted, context)
}

/// Writes a plan, and shows it.
pub fn save_mount_plan(
    file: &Path,
    context: &CommandContext,
    mounted: &MountedWorktree,
    request: &RestoreRequest,
) -> Result<CommandOutcome> {
    let drawn = DrawnPlan::draw(mounted, request)?;
    let saved = drawn.plan.save_plan(&mounted.volume)?;
    let shown = write_plan(file, context, &mounted.mountpoint, &saved)?;
    drawn.show(mounted, context)?;
    context.ui.print_note(format!("'vellum restore --run {shown}' does that"))?;
    Ok(CommandOutcome::Done)
}

/// Does what a plan says, if that is still the same.
pub fn run_plan_in_mount(
    file: &Path,
    context: &CommandContext,
    mounted: &MountedWorktree,
) -> Result<CommandOutcome> {
    let saved = read_plan(file, context)?;
    let request = saved.read_request(&mounted.volume)?;
    let target = request.target.id;
    if request.paths.is_empty() {
        mounted.volume.check_no_merge()?;
    }
    run_restore_hook(context, &mounted.volume, &mounted.mountpoint, target)?;
    let mut tries = TRIES;
    loop {
        let drawn = DrawnPlan::draw(mounted, &request)?;
        saved.check_same_plan(&drawn.plan.save_plan(&mounted.volume)?)?;
        tries -= 1;
        match send_restore(
            mounted,
            target,
            request.paths.clone(),
            request.discard,
            Some(drawn.seen(&request)),
        ) {
            // Somebody has written since the plan was drawn: perhaps to something else, or the same as before.
            Err(error) if error.kind() == ErrorKind::Conflict && tries > 0 => {}
            done => return report_mount_restore(context, &mounted.volume, target, done?),
        }
    }
}

/// A plan, and the state that it is for.
struct DrawnPlan {
    plan: StateRestorePlan,
    now: MapRoot,
}

impl DrawnPlan {
    fn draw(mounted: &MountedWorktree, request: &RestoreRequest) -> Result<Self> {
        let volume = &mounted.volume;
        let head = mounted.published_head()?.map(|head| head.id);
        let now = mounted.publish_current_tree()?;
        let present = volume.open_tree(now);
        let target = volume.open_tree(request.target.record.root);
        let is_known =
            |path: &[u8]| present.find_path(path, "").is_ok() || target.find_path(path, "").is_ok();
        check_paths_known(mounted, &request.target, &request.paths, is_known)?;
        if !request.discard {
            mounted.check_restorable(request.target.id, &request.paths)?;
        }
        Ok(Self { plan: StateRestorePlan::draw_plan(volume, now, head, request)?, now })
    }

    fn seen(&self, request: &RestoreRequest) -> SeenState {
        SeenState { root: self.now.0.to_string(), paths: request.paths.clone() }
    }

    fn show(self, mounted: &MountedWorktree, context: &CommandContext) -> Result<CommandOutcome> {
        let shown = ShownPlan {
            request: &self.plan.request,
            root: &mounted.mountpoint,
            steps: &self.plan.steps,
            unsaved: &self.plan.unsaved,
            problems: Vec::new(),
        };
        shown.print(context)
    }
}

//! `vellum restore --plan` and `--run`: what a restore would do, written to a file, and done later.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use vellum_checkout::{CheckoutWorktree, PLAN_MAX, RestorePlan, SavedPlanError, SavedRestorePlan};
use vellum_host::escape::format_path;

use super::{execute_restore, plan_restore, print_restore_plan, report_restore, run_restore_hook};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// Writes a plan, and shows it.
pub fn save_plan(
    file: &Path,
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    plan: &RestorePlan,
) -> Result<CommandOutcome> {
    let shown = write_plan(file, context, worktree.root_path(), &worktree.save_plan(plan)?)?;
    print_restore_plan(context, worktree, plan)?;
    context.ui.print_note(format!("'vellum restore --run {shown}' does that"))?;
    Ok(CommandOutcome::Done)
}

/// Writes the file of a plan that is about the worktree at `root`; gives its name, to be shown.
pub fn write_plan(
    file: &Path,
    context: &CommandContext,
    root: &Path,
    saved: &SavedRestorePlan,
) -> Result<String> {
    let path = context.resolve_local_path(file);
    let shown = format_path(file.as_os_str().as_encoded_bytes());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder = folder.canonicalize().map_err(CliError::io_error("look at", shown.clone()))?;
    if folder.starts_with(root) {
        // It would be a change that the plan has not seen.
        return Err(CliError::usage_error(
            format!("{shown} is in the worktree that the plan is about"),
            "write the plan somewhere else",
        ));
    }
    let bytes = saved.encode()?;
    // It names files that others may not be allowed to list.
    let mut out = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(CliError::io_error("write", shown.clone()))?;
    let written = out.write_all(&bytes).and_then(|()| out.sync_all());
    written.map_err(CliError::io_error("write", shown.clone()))?;
    Ok(shown)
}

/// Does what a plan says, if that is still the same.
pub fn run_saved_plan(file: &Path, context: &CommandContext) -> Result<CommandOutcome> {
    let saved = read_plan(file, context)?;
    let worktree = context.open_worktree()?;
    let request = saved.read_request(&worktree.volume)?;
    run_restore_hook(context, &worktree.volume, worktree.root_path(), request.target.id)?;
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    if request.paths.is_empty() {
        worktree.volume.check_no_merge()?;
    }
    let plan = plan_restore(context, &worktree, &request)?;
    // Under the lock: between this comparison and the first change no other command can make the plan wrong.
    saved.check_same_plan(&worktree.save_plan(&plan)?)?;
    let done = execute_restore(context, &worktree, plan)?;
    drop(lock);
    report_restore(context, &worktree, &request.target, &done)
}

/// Reads the file of a plan.
pub fn read_plan(file: &Path, context: &CommandContext) -> Result<SavedRestorePlan> {
    let shown = format_path(file.as_os_str().as_encoded_bytes());
    let failed = || CliError::io_error("read", shown.clone());
    let opened = File::open(context.resolve_local_path(file)).map_err(failed())?;
    let mut bytes = Vec::new();
    // One byte more than is allowed tells a file that is too long from one of just the allowed length.
    opened.take(PLAN_MAX + 1).read_to_end(&mut bytes).map_err(failed())?;
    if bytes.len() as u64 > PLAN_MAX {
        return Err(CliError::usage_error(format!("{shown} is too large for a plan"), ""));
    }
    let decoded = SavedRestorePlan::decode(&bytes);
    decoded.map_err(|error: SavedPlanError| {
        CliError::usage_error(
            format!("{shown} cannot be used: {error}"),
            "'vellum restore SNAP --plan FILE' writes a plan",
        )
    })
}

//! `vellum restore` in a mount: the process that serves it stands on another tree, or makes the named files anew.

use serde::Serialize;
use vellum_checkout::RestoreRequest;
use vellum_fs::FsError;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::history::HistoryEntry;

use super::mounted_choice::choose_in_mount;
use super::mounted_plan::{run_plan_in_mount, save_mount_plan, show_mount_plan};
use super::{Args, resolve_target, run_restore_hook};
use crate::context::CommandContext;
use crate::context::mounted::MountedWorktree;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::mounting::control::{ControlRequest, SeenState};
use crate::ui::format;

/// A restore of a mounted worktree.
#[derive(Serialize)]
struct MountRestoreJson {
    target: String,
    safety: Option<String>,
}

/// The worktree is mounted: it stands on another tree at once, however many files that has; of paths, the files are
/// made anew, and share their content.
pub fn restore_in_mount(
    args: &Args,
    context: &CommandContext,
    mounted: &MountedWorktree,
) -> Result<CommandOutcome> {
    if let Some(file) = &args.run {
        return run_plan_in_mount(file, context, mounted);
    }
    if !args.only.is_empty() {
        let message =
            "a mount has all names, and fetches content when it is read: --only is for plain directories";
        return Err(CliError::usage_error(message, "leave out --only, or name the PATHs to restore"));
    }
    let paths = context.paths_at_root(&mounted.mountpoint).parse_paths(&args.paths)?;
    if args.dry_run || args.interactive || args.plan.is_some() {
        let target = resolve_published_target(args, context, mounted)?;
        let request = RestoreRequest { target, paths, only: Vec::new(), discard: args.discard };
        return match &args.plan {
            _ if args.interactive => choose_in_mount(context, mounted, &request),
            Some(file) => save_mount_plan(file, context, mounted, &request),
            None => show_mount_plan(context, mounted, &request),
        };
    }
    if paths.is_empty() {
        mounted.volume.check_no_merge()?;
    }
    // To stand on a snapshot, the mount need not wait until it is in the store.
    let typed = args.snapshot.as_deref().unwrap_or_default();
    let target = match mounted.find_unpublished(typed)? {
        Some(id) => id,
        None => resolve_published_target(args, context, mounted)?.id,
    };
    run_restore_hook(context, &mounted.volume, &mounted.mountpoint, target)?;
    // What the kernel has not handed over yet belongs to the state that is saved before the restore.
    mounted.sync_filesystem()?;
    let safety = send_restore(mounted, target, paths, args.discard, None)?;
    report_mount_restore(context, &mounted.volume, target, safety)
}

/// Asks the process of the mount to restore paths, or everything if none are named. Returns the safety snapshot.
pub(super) fn send_restore(
    mounted: &MountedWorktree,
    target: SnapshotId,
    paths: Vec<Vec<u8>>,
    discard: bool,
    expected: Option<SeenState>,
) -> Result<Option<String>> {
    let target = target.to_string();
    let request = match paths.is_empty() {
        true => ControlRequest::Restore { target, discard, expected },
        false => ControlRequest::RestorePaths { target, paths, discard, expected },
    };
    Ok(mounted.send_request(&request)?.snapshot)
}

/// Says what was restored, and what undoes it.
pub(super) fn report_mount_restore(
    context: &CommandContext,
    volume: &Volume,
    target: SnapshotId,
    safety: Option<String>,
) -> Result<CommandOutcome> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&MountRestoreJson { target: target.to_string(), safety })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("Restored {}", ui.style.paint_yellow(&volume.short_id(&target)?)))?;
        if let Some(id) = safety {
            ui.print_note(format!("'vellum restore {}' undoes it", format::shorten_id(&id)))?;
        }
    }
    Ok(CommandOutcome::Done)
}

/// The snapshot that was named, once all are in the store.
fn resolve_published_target(
    args: &Args,
    context: &CommandContext,
    mounted: &MountedWorktree,
) -> Result<HistoryEntry> {
    mounted.send_request(&ControlRequest::Settle)?;
    resolve_target(args, context, &mounted.volume)
}

/// Fails if a path is nowhere, with the same error as the restore itself: a preview succeeds only if the restore can.
pub(super) fn check_paths_known(
    mounted: &MountedWorktree,
    target: &HistoryEntry,
    paths: &[Vec<u8>],
    is_known: impl Fn(&[u8]) -> bool,
) -> Result<()> {
    let Some(missing) = paths.iter().find(|path| !is_known(path)) else { return Ok(()) };
    let path = format_path(missing);
    let snapshot = mounted.volume.short_id(&target.id)?;
    Err(MountingError::from(FsError::PathNowhere { path, snapshot }).into())
}

//! `vellum snapshot --root`: a snapshot of a directory that is no worktree.

use std::path::Path;

use vellum_checkout::{CheckoutSnapshotRequest, OutsideDirectory};
use vellum_host::escape::format_path;
use vellum_volume::SnapshotOrigin;
use vellum_volume::volume::name_outside_line;

use super::{Args, SnapshotHooks, check_new_tags, read_note, report_preview, report_snapshot};
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;

/// Makes the snapshot.
pub fn snapshot_outside(args: &Args, root: &Path, context: &CommandContext) -> Result<CommandOutcome> {
    if !args.paths.is_empty() {
        return Err(CliError::usage_error(
            "--root records a whole directory",
            "leave out the PATHs, or name a directory further down with --root",
        ));
    }
    let properties = args.properties.to_change()?;
    let typed = context.resolve_local_path(root);
    let shown = format_path(root.as_os_str().as_encoded_bytes());
    // The line is named after the real path: the same directory has one history, by whatever path it is named.
    let path = typed.canonicalize().map_err(CliError::io_error("look at", shown.clone()))?;
    if !path.is_dir() {
        return Err(CliError::usage_error(format!("{shown} is not a directory"), ""));
    }
    let volume = context.open_volume()?;
    let state = volume.state.clone();
    let source = OutsideDirectory::open(volume, &path, args.exclude.to_exclusions())?;
    let task = ProgressTask { first: "Scanning", verb: "Recording", item: "file" };
    if args.dry_run {
        let diff = context.run_with_progress(task, |meter| source.compare_with_last(meter))?;
        let compared = ComparedSnapshots::from_diff(source.volume(), diff);
        return report_preview(context, &compared, |path| format_path(path));
    }
    let note = read_note(args)?;
    check_new_tags(args, source.volume())?;
    let line = name_outside_line(path.as_os_str().as_encoded_bytes());
    let hooks = SnapshotHooks { state: &state, worktree: &line, directory: &path, context };
    hooks.run_before()?;
    let request = CheckoutSnapshotRequest {
        note,
        paths: Vec::new(),
        origin: SnapshotOrigin::User,
        only_if_changed: args.if_changed,
    };
    let made = context
        .run_with_progress(task, |meter| source.create_snapshot(&request, meter))
        .with_resume_hint("no snapshot was made; run the command again")?;
    let volume = source.volume();
    args.tags.iter().try_for_each(|tag| volume.add_tag(tag, made.id))?;
    if !properties.is_empty() {
        volume.annotate_snapshot(made.id, &properties)?;
    }
    let new = made.is_new.then(|| made.id.to_string());
    let outcome = report_snapshot(context, volume, made)?;
    let hook = new.map_or(Ok(CommandOutcome::Done), |id| hooks.run_after(&id))?;
    Ok(outcome.max(hook))
}

//! `vellum restore --interactive` in a mount: what was chosen is restored if the mount still holds what was shown.

use vellum_checkout::{CheckoutError, FileEdit, RestoreRequest};
use vellum_host::beneath::HeldDir;
use vellum_host::escape::format_path;
use vellum_map::MapRoot;
use vellum_types::ErrorKind;

use super::interactive::{RestoreChoice, ask_choice, check_terminal, note_nothing_chosen};
use super::mounted::{check_paths_known, report_mount_restore};
use super::mounted_plan::TRIES;
use super::run_restore_hook;
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::mounted::MountedWorktree;
use crate::error::{CommandOutcome, Result};
use crate::mounting::control::{ControlRequest, SeenState};
use crate::ui::json::ProblemJson;

/// Asks, and restores what was chosen.
pub fn choose_in_mount(
    context: &CommandContext,
    mounted: &MountedWorktree,
    request: &RestoreRequest,
) -> Result<CommandOutcome> {
    check_terminal(context)?;
    let target = &request.target;
    let shown = mounted.publish_current_tree()?;
    let lines = mounted.volume.read_head()?.map(|head| (target.id, head));
    let compared =
        ComparedSnapshots::compare_trees(&mounted.volume, target.record.root, shown, lines, &request.paths)?;
    check_paths_known(mounted, target, &request.paths, |path| compared.contains_path(path))?;
    let choice = ask_choice(context, &compared, context.paths_at_root(&mounted.mountpoint))?;
    if choice.is_empty() {
        return note_nothing_chosen(context);
    }
    run_restore_hook(context, &mounted.volume, &mounted.mountpoint, target.id)?;
    let safety = restore_choice(mounted, request, shown, &choice)?;
    let problems = edit_mounted_files(mounted, &choice.edits)?;
    context.ui.print_problems(&problems)?;
    let done = report_mount_restore(context, &mounted.volume, target.id, safety)?;
    Ok(if problems.is_empty() { done } else { CommandOutcome::from_findings(true) })
}

/// Restores the paths, and saves what no snapshot holds; of the files that are edited, too. Fails, and changes nothing, if
/// any of them is not as it was shown.
fn restore_choice(
    mounted: &MountedWorktree,
    request: &RestoreRequest,
    shown: MapRoot,
    choice: &RestoreChoice,
) -> Result<Option<String>> {
    let concerned: Vec<_> =
        choice.paths.iter().chain(choice.edits.iter().map(|edit| &edit.path)).cloned().collect();
    // What the kernel has not handed over yet would not be noticed.
    mounted.sync_filesystem()?;
    let mut root = shown;
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let restore = ControlRequest::RestorePaths {
            target: request.target.id.to_string(),
            paths: choice.paths.clone(),
            discard: request.discard,
            expected: Some(SeenState { root: root.0.to_string(), paths: concerned.clone() }),
        };
        match mounted.send_request(&restore) {
            Err(error) if error.kind() == ErrorKind::Conflict && tries > 0 => {
                root = mounted.publish_current_tree()?;
                let changed =
                    ComparedSnapshots::compare_trees(&mounted.volume, shown, root, None, &concerned)?;
                // With nothing changed somebody has written the same as before.
                if let Some(change) = changed.changes.first() {
                    return Err(CheckoutError::EditedMeanwhile(format_path(change.path())).into());
                }
            }
            answer => return Ok(answer?.snapshot),
        }
    }
}

/// Gives files that are restored in part their new content, as any program does it.
fn edit_mounted_files(mounted: &MountedWorktree, edits: &[FileEdit]) -> Result<Vec<ProblemJson>> {
    let mut problems = Vec::new();
    if edits.is_empty() {
        return Ok(problems);
    }
    let root = HeldDir::open_root(&mounted.mountpoint).map_err(CheckoutError::from)?;
    for edit in edits {
        if let Some(message) = edit.replace_content(&root)? {
            problems.push(ProblemJson::new(&edit.path, message));
        }
    }
    // When the command is done, a power cut does not take it back.
    mounted.sync_filesystem()?;
    Ok(problems)
}

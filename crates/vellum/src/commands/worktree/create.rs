//! `vellum worktree create`: a worktree that begins empty.

use std::path::Path;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::live;
use vellum_volume::own_place::resolve_existing_path;
use vellum_volume::refs::check_ref_name;
use vellum_volume::{StateDir, Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

#[derive(Serialize)]
struct WorktreeCreatedJson<'a> {
    name: &'a str,
    directory: String,
}

/// Creates a worktree without snapshots: one to be mounted, or one of a directory.
pub(super) fn create_worktree(
    context: &CommandContext,
    volume: &Volume,
    name: &str,
    dir: Option<&Path>,
    holder: Option<&Path>,
) -> Result<CommandOutcome> {
    check_ref_name(name)?;
    if volume.read_worktree_head(name)?.is_some() {
        return Err(VolumeError::Exists { kind: "worktree", name: name.into() }.into());
    }
    let ui = &context.ui;
    let Some(dir) = dir else {
        let directory = live::create_live_worktree(volume, name, None)?.place;
        let line = || format!("The worktree {} is empty", ui.style.paint_cyan(name));
        ui.print_outcome(&WorktreeCreatedJson { name, directory }, line)?;
        ui.print_note(format!("'vellum mount --worktree {name} DIR' mounts it"))?;
        return Ok(CommandOutcome::Done);
    };
    let dir = context.resolve_local_path(dir);
    let shown = dir.display().to_string();
    // Only what this command made is taken away if it fails.
    let was_there = dir.is_dir();
    if !was_there {
        std::fs::create_dir(&dir).map_err(CliError::io_error("make", shown.clone()))?;
    }
    let root = dir.canonicalize().map_err(CliError::io_error("look at", shown))?;
    let holder = holder.map(|typed| resolve_existing_path(&context.resolve_local_path(typed)));
    let state = match &holder {
        Some(holder) => StateDir::create_in_holder(&root, holder),
        None => StateDir::create(&root),
    };
    let made = state.and_then(|state| {
        // What was made a moment ago is in the way of a second attempt.
        volume.fork_into(&state, name).map(drop).inspect_err(|_| drop(state.clone().remove_dir()))
    });
    made.inspect_err(|_| {
        if !was_there {
            let _ = std::fs::remove_dir(&root);
        }
    })?;
    let directory = root.display().to_string();
    let line = || {
        let place = format_path(root.as_os_str().as_encoded_bytes());
        format!("{place} is the worktree {}", ui.style.paint_cyan(name))
    };
    ui.print_outcome(&WorktreeCreatedJson { name, directory: directory.clone() }, line)?;
    ui.print_note("'vellum snapshot' there records what the directory holds")?;
    Ok(CommandOutcome::Done)
}

//! `vellum worktree remove`: a worktree goes off the list, and its files with it if that is wanted.
//!
//! Invariant: files are deleted only if a snapshot holds them, except for ignored ones. What a mount has put into the store is kept
//! there by the worktree's ref alone, so a worktree with changes of a mount is not taken off the list either.

use std::path::Path;

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_library::live;
use vellum_types::LookupResult;
use vellum_volume::own_place::resolve_existing_path;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::{StateDir, Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::table;
use crate::ui::json::LeaseJson;
use crate::ui::progress::ProgressTask;

const SCANNING: ProgressTask = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };

#[derive(Serialize)]
struct WorktreeRemovedJson<'a> {
    name: &'a str,
    snapshot: Option<String>,
    directory: &'a str,
    deleted: bool,
}

/// Removes a worktree; `deletes`: with its files.
pub(super) fn remove_worktree(
    context: &CommandContext,
    volume: &Volume,
    name: &str,
    deletes: bool,
) -> Result<CommandOutcome> {
    // Afterwards, no command could be run in this directory any more.
    if name == volume.worktree.worktree {
        let message = format!("'{name}' is the worktree that you stand in");
        let hint = "remove it from another worktree; to give up the whole volume, delete its directories";
        return Err(CliError::usage_error(message, hint));
    }
    // The worktree's head alone names the log: without it, nothing could find the log to remove it.
    check_has_no_log(volume, name)?;
    let mut elsewhere = None;
    let head = volume.require_worktree_head(name)?;
    // Of one that a process has, removing it fails, and says which.
    if live::is_live_worktree(&head) && LeaseJson::from_worktree_head(name, &head).is_none() {
        check_has_no_stored_writes(volume, name)?;
        check_live_changes(volume, name, &head)?;
    }
    if deletes {
        check_deletable(context, volume, name, &head)?;
        // Found now, because it is found by the files that are about to be deleted.
        elsewhere = volume.find_worktree_state(name, &head)?.filter(StateDir::is_elsewhere);
    }
    // Without --delete its files stay: they may be on another machine, and some of them in no snapshot.
    // The list comes first: a command that dies in between leaves files, and no worktree whose files are half deleted.
    let head = volume.remove_worktree(name)?;
    if deletes || has_only_state(&head) {
        // A worktree without files is harmless on no list; files of a worktree that is on no list are only in the way.
        delete_files(&head)?;
    }
    if let Some(state) = elsewhere {
        state.remove_dir()?;
    }
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = head.head.map(|id| id.to_string());
        let json = WorktreeRemovedJson { name, snapshot, directory: &head.place, deleted: deletes };
        ui.print_json(&json)?;
    } else if !ui.voice.quiet {
        let place = format_path(&head.place);
        if deletes {
            ui.print_line(format!("Removed the worktree {name} and deleted {place}; its snapshots stay"))?;
            return Ok(CommandOutcome::Done);
        }
        ui.print_line(format!("Removed the worktree {name} from the list; its snapshots stay"))?;
        // Whether a directory of another machine is there cannot be seen from here.
        if head.host == host_name() && Path::new(&head.place).exists() {
            ui.print_note(format!("its files are still in {place}: delete them yourself"))?;
        }
    }
    Ok(CommandOutcome::Done)
}

/// Fails if the worktree has a log, which nothing would name any more.
fn check_has_no_log(volume: &Volume, name: &str) -> Result<()> {
    match volume.read_worktree_head(name)?.and_then(|head| head.log) {
        None => Ok(()),
        Some(log) => {
            let message = format!("{name} has a shared log at {}", log.url);
            Err(CliError::usage_error(
                message,
                format!("remove that first: 'vellum worktree unshare {name}'"),
            ))
        }
    }
}

/// Whether a worktree to be mounted holds what its snapshot does not, as far as it is in the store.
pub(super) fn has_published_changes(volume: &Volume, head: &WorktreeHead) -> Result<bool> {
    let Some(live) = &head.live else { return Ok(false) };
    let stored = match head.head.map(|id| volume.catalog.get_record(&id)).transpose() {
        // Of a snapshot that is lost, what the mount has put into the store may be all that is left.
        Err(VolumeError::MissingRecord(_)) => return Ok(true),
        stored => stored?,
    };
    Ok(live.root != stored.map_or_else(|| volume.empty_root(), |record| record.root))
}

/// Fails if a worktree to be mounted has changes in the store that only its ref keeps there: without it, `gc` deletes them.
fn check_live_changes(volume: &Volume, name: &str, head: &WorktreeHead) -> Result<()> {
    if !has_published_changes(volume, head)? && head.left.is_empty() {
        return Ok(());
    }
    Err(CliError::usage_error(
        format!("{name} holds changes that no snapshot does"),
        format!("mount it and take a snapshot first, or undo them: 'vellum mount --worktree {name} DIR'"),
    ))
}

/// Fails if clients of the worktree have stored what it has not published: without it, `gc` deletes that, and the live state, whose
/// files stay, would name what is gone.
fn check_has_no_stored_writes(volume: &Volume, name: &str) -> Result<()> {
    if !volume.holds_unpublished(name)? {
        return Ok(());
    }
    let session = volume.unpublished_session_name(name)?;
    Err(CliError::usage_error(
        format!("clients of {name} have stored what it has not published"),
        format!(
            "mount it once more, which publishes it: 'vellum mount --worktree {name} DIR'; or give it up: \
             'vellum gc run --end-session {session}'"
        ),
    ))
}

/// Whether the directory of a worktree to be mounted has nothing but what an ended mount needs no more.
fn has_only_state(head: &WorktreeHead) -> bool {
    let is_ended = head.lease.as_ref().is_some_and(|lease| lease.ended);
    live::is_live_worktree(head) && head.host == host_name() && is_ended
}

/// Fails if its files are not here, or if something would be lost.
fn check_deletable(context: &CommandContext, volume: &Volume, name: &str, head: &WorktreeHead) -> Result<()> {
    if head.host != host_name() {
        let message = format!("the files of {name} are not on this machine");
        return Err(CliError::usage_error(message, "leave out --delete, or run the command there"));
    }
    let unsaved = || {
        let message = format!("{name} holds changes that no snapshot does");
        CliError::usage_error(
            message,
            "take a snapshot of it first; or leave out --delete: its files then stay",
        )
    };
    if live::is_live_worktree(head) {
        // A lease that was not given up: what was written last may be in no store. Neither need it be if the ref names no
        // lease, though there is a state: that worktree was taken off the list, and is on it again.
        let is_left =
            head.lease.as_ref().map_or_else(|| Path::new(&head.place).exists(), |lease| !lease.ended);
        return if is_left { Err(unsaved()) } else { Ok(()) };
    }
    let Some(state) = volume.find_worktree_state(name, head)? else {
        let message = format!("{} is not that worktree any more", format_path(&head.place));
        return Err(CliError::usage_error(message, "leave out --delete"));
    };
    let root = state.root().to_path_buf();
    let store = volume.objects.local_dir().map(resolve_existing_path);
    // The store has the snapshots of all worktrees of the volume.
    if store.is_some_and(|store| store.starts_with(&root) || store.starts_with(state.path())) {
        let message = format!("the store of the volume lies in {}", format_path(&head.place));
        return Err(CliError::usage_error(message, "leave out --delete"));
    }
    if table::read_mounts()?.iter().any(|mount| mount.mountpoint.starts_with(&root)) {
        let message = format!("something is mounted in {}", format_path(&head.place));
        return Err(CliError::usage_error(
            message,
            "'vellum mounts' shows mounts of volumes; unmount it first",
        ));
    }
    // Other worktrees of the directory's volume have their state in it.
    let live_states = state.join("live");
    // What is not known to be empty is not deleted, so that any other error ends this.
    let entries = std::fs::read_dir(&live_states)
        .none_if_missing()
        .map_err(CliError::io_error("list", live_states.display().to_string()))?;
    if entries.is_some_and(|mut entries| entries.next().is_some()) {
        let message = format!("mounted worktrees keep their state in {}", format_path(&head.place));
        return Err(CliError::usage_error(message, "remove them first: 'vellum worktree list'"));
    }
    let worktree = CheckoutWorktree::open(&root)?;
    let _lock = worktree.lock_worktree(context.lock_wait_notice())?;
    // Of one without a snapshot, even an empty directory would be a change.
    if worktree.is_empty()? {
        return Ok(());
    }
    match context.run_with_progress(SCANNING, |meter| worktree.has_unsaved_changes(meter))? {
        true => Err(unsaved()),
        false => Ok(()),
    }
}

fn delete_files(head: &WorktreeHead) -> Result<()> {
    let place = Path::new(&head.place);
    std::fs::remove_dir_all(place).ignore_missing().map_err(CliError::io_error("delete", head.place.clone()))
}

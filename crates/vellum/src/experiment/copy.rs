//! The fork of a try that is copied into a directory beside the worktree, where nothing can be mounted.
//!
//! Invariant: a directory is deleted only if it is the one that was made for the copy: it has the inode that was noted then, or
//! is empty.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use vellum_checkout::{CheckoutWorktree, ForkReport, ForkRequest};
use vellum_host::escape::format_path;
use vellum_types::{LookupResult, SnapshotId};
use vellum_volume::history::HistoryEntry;

use super::note::{CopyPlace, TryNote, TryNotes};
use crate::context::CommandContext;
use crate::error::{CliError, Result, ResumeHint};
use crate::mounting::table::read_mounts;
use crate::ui::progress::ProgressTask;

const FORKING: ProgressTask = ProgressTask { first: "Scanning", verb: "Copying", item: "file" };

/// Makes the directory for a copy, and notes which one it is.
pub fn create_copy_dir(note: &mut TryNote, notes: &TryNotes) -> Result<()> {
    let Some(place) = &mut note.copy else { return Ok(()) };
    let path = place.path();
    let failed = || CliError::io_error("make the directory", place.format_path());
    // Fails if anything has the name: nothing of the user may be taken for the copy, and deleted with it.
    fs::create_dir(&path).map_err(failed())?;
    place.inode = Some(fs::symlink_metadata(&path).map_err(failed())?.ino());
    notes.write_note(note)
}

/// Copies the worktree, which stands on the snapshot `base`. The caller has the worktree's lock.
pub fn copy_worktree(
    worktree: &CheckoutWorktree,
    note: &TryNote,
    base: SnapshotId,
    context: &CommandContext,
) -> Result<ForkReport> {
    let to = note.copy.as_ref().map(CopyPlace::path).unwrap_or_default();
    let record = worktree.volume.catalog.get_record(&base)?;
    let from = HistoryEntry { id: base, record };
    let request = ForkRequest { name: note.name.clone(), to, from, engine: None };
    context
        .run_with_progress(FORKING, |meter| worktree.fork_worktree(&request, meter))
        .with_resume_hint("the command did not run, and nothing was kept")
}

/// Records what a command left in a copy. Returns the snapshot.
pub fn seal_copy(
    place: &CopyPlace,
    name: &str,
    note: String,
    context: &CommandContext,
) -> Result<SnapshotId> {
    let worktree = open_copy(place, name)?;
    let _lock = worktree.lock_worktree(context.lock_wait_notice())?;
    let id = context
        .run_with_progress(super::fork::SCANNING, |meter| worktree.snapshot_if_changed(note, meter))
        .with_resume_hint(format!("the try is kept: 'vellum try --apply {name}' records it again"))?;
    Ok(id)
}

/// Opens the worktree in a copy. Fails if the command made something else of it.
fn open_copy(place: &CopyPlace, name: &str) -> Result<CheckoutWorktree> {
    let path = place.path();
    let lost = || {
        CliError::usage_error(
            format!(
                "{} is not the worktree {name} any more: its changes cannot be recorded",
                place.format_path()
            ),
            format!("take what you need from there; 'vellum try --discard {name}' then gives the try up"),
        )
    };
    if !path.join(vellum_volume::state::STATE_DIR).exists() {
        return Err(lost());
    }
    let worktree = CheckoutWorktree::open(&path)?;
    // The command may have made another worktree there, whose line must not get this snapshot.
    let is_its = worktree.volume.worktree.worktree == name && worktree.root_path() == path;
    if is_its { Ok(worktree) } else { Err(lost()) }
}

/// An error if something is mounted in a copy: what a command has mounted there must not be deleted with it.
pub fn check_nothing_mounted(place: &CopyPlace) -> Result<()> {
    let path = place.path();
    let Some(mount) = read_mounts()?.into_iter().find(|mount| mount.mountpoint.starts_with(&path)) else {
        return Ok(());
    };
    let mountpoint = format_path(mount.mountpoint.as_os_str().as_encoded_bytes());
    Err(CliError::usage_error(
        format!("something is mounted on {mountpoint}, in the copy of the try"),
        format!("'umount {mountpoint}' first"),
    ))
}

/// Deletes the directory of a copy. Returns whether it is gone: one that was put in its place since stays.
pub fn delete_copy(place: &CopyPlace) -> Result<bool> {
    let path = place.path();
    let failed = || CliError::io_error("delete", place.format_path());
    let Some(found) = fs::symlink_metadata(&path).none_if_missing().map_err(failed())? else {
        return Ok(true);
    };
    if place.inode != Some(found.ino()) {
        // Killed between the directory and the note of it.
        return Ok(fs::remove_dir(&path).is_ok());
    }
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            // Commands make directories read-only, as caches of downloaded packages are.
            make_dirs_writable(&path).map_err(failed())?;
            fs::remove_dir_all(&path).map_err(failed())?;
        }
        removed => removed.map_err(failed())?,
    }
    Ok(true)
}

fn make_dirs_writable(dir: &Path) -> std::io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Symlinks are not followed.
        if entry.file_type()?.is_dir() {
            make_dirs_writable(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn only_the_directory_that_was_made_is_deleted() {
        let temp = tempfile::tempdir().unwrap();
        let worktree = temp.path().join("work");
        let mut place = CopyPlace::beside(&worktree, "try-00000001");
        assert_eq!(place.path(), temp.path().join("work.try-00000001"));
        // Nothing is there.
        assert!(delete_copy(&place).unwrap());
        fs::create_dir(place.path()).unwrap();
        fs::write(place.path().join("file"), "somebody's").unwrap();
        assert!(!delete_copy(&place).unwrap());
        assert!(place.path().join("file").exists());
        place.inode = Some(fs::metadata(place.path()).unwrap().ino());
        fs::create_dir(place.path().join("closed")).unwrap();
        fs::write(place.path().join("closed/file"), "").unwrap();
        fs::set_permissions(place.path().join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
        assert!(delete_copy(&place).unwrap());
        assert!(!place.path().exists());
        // Killed before it was noted which directory it is.
        place.inode = None;
        fs::create_dir(place.path()).unwrap();
        assert!(delete_copy(&place).unwrap());
        assert!(!place.path().exists());
    }
}

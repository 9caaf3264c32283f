//! The state directory of a worktree: whose it is, what was left in it, and whether its copies are whole.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use vellum_host::lock::find_file_lock_holder;
use vellum_host::process::{ProcessStat, find_open_paths};
use vellum_types::LookupResult;

use super::finding::{DoctorFinding, DoctorFindings, FindingSeverity};
use crate::error::{Result, VolumeError};
use crate::verify::FRESH_INDEX_FOLDER;
use crate::volume::Volume;

/// What is younger may belong to a process that is at work.
pub(super) const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Files that hold a secret.
const SECRET_FILES: [&str; 1] = ["key"];

pub(super) fn examine_state_dir(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    examine_owner(volume, findings)?;
    examine_secrets(volume, findings);
    let lock = volume.state.lock_file_path();
    report_stopped_holder(&lock, "the worktree", findings);
    examine_leftovers(volume, findings);
    if let Some(problem) = volume.find_dir_problem()? {
        let hint = findings.hint(&problem);
        let place = volume.state.root().display().to_string();
        let meaning = problem.to_string();
        findings.add(DoctorFinding::new(FindingSeverity::Problem, "copied-worktree", place, meaning, hint));
    }
    Ok(())
}

fn examine_owner(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let path = volume.state.path();
    let read = |path: &Path| fs::metadata(path).map_err(VolumeError::wrap_local_error(path));
    let state = read(path)?.uid();
    let root = read(volume.state.root())?.uid();
    // Files that root made there before their owner was set keep that owner from working.
    let entries = fs::read_dir(path).map_err(VolumeError::wrap_local_error(path))?.flatten();
    // What is gone again belongs to nobody.
    let strange = entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.uid())));
    let strange: Vec<_> = strange.filter(|(_, owner)| *owner != state).map(|(path, _)| path).collect();
    let warn = |meaning: String, remedy: String| {
        let object = path.display().to_string();
        DoctorFinding::new(FindingSeverity::Warning, "foreign-state", object, meaning, remedy)
    };
    // One that lies elsewhere is often another user's on purpose: who works in the directory is to keep out of it.
    if state != root && path.starts_with(volume.state.root()) {
        let meaning = format!("it belongs to user {state}, and the worktree to user {root}");
        findings.add(warn(meaning, "give both to one user with 'chown'".into()));
    } else if let Some(first) = strange.first() {
        let name = first.file_name().unwrap_or_default().display();
        let meaning = match strange.len() {
            1 => format!("'{name}' in it belongs to another user"),
            count => format!("{count} files in it belong to other users, such as '{name}'"),
        };
        findings.add(warn(meaning, format!("'chown -R {state}' gives them to the owner of the directory")));
    }
    Ok(())
}

/// A secret that others may read. Whether they did is not known.
fn examine_secrets(volume: &Volume, findings: &mut DoctorFindings) {
    for name in SECRET_FILES {
        let path = volume.state.join(name);
        // Not followed: the repair would change the permissions of whatever file a symlink leads to.
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let mode = found.permissions().mode();
        if !found.is_file() || mode & 0o077 == 0 {
            continue;
        }
        let meaning = format!("the key has mode {:04o}: other users can read it", mode & 0o7777);
        let finding = DoctorFinding::new(
            FindingSeverity::Warning,
            "open-key",
            path.display().to_string(),
            meaning,
            "takes their permissions away",
        );
        findings.add_repairable(finding, || fs::set_permissions(&path, Permissions::from_mode(0o600)));
    }
}

/// Reports a lock that a stopped process holds: whoever needs it waits.
pub(super) fn report_stopped_holder(lock: &Path, object: &str, findings: &mut DoctorFindings) -> bool {
    let holder = find_file_lock_holder(lock);
    let stopped = holder.filter(|pid| ProcessStat::read(*pid).is_ok_and(|stat| stat.is_stopped()));
    let Some(pid) = stopped else { return false };
    findings.add(DoctorFinding::new(
        FindingSeverity::Warning,
        "stopped-command",
        format!("process {pid}"),
        format!("it holds the lock of {object} and is stopped: others wait for it"),
        format!("'kill -CONT {pid}' lets it go on"),
    ));
    true
}

fn examine_leftovers(volume: &Volume, findings: &mut DoctorFindings) {
    let mut old = volume.state.list_temp_files(LEFTOVER_AGE);
    // The index of a verification that was killed.
    let fresh = volume.state.join(FRESH_INDEX_FOLDER);
    old.extend(Some(fresh).filter(|fresh| is_old(fresh)));
    report_leftovers(old, volume.state.path(), findings);
}

/// Reports files of killed commands that no process has open.
pub(super) fn report_leftovers(mut old: Vec<PathBuf>, place: &Path, findings: &mut DoctorFindings) {
    if old.is_empty() {
        return;
    }
    let open: BTreeSet<_> = find_open_paths(&old);
    // A process that was stopped for days goes on with what it has open.
    old.retain(|path| !open.iter().any(|open| open.starts_with(path)));
    if old.is_empty() {
        return;
    }
    let count = old.len();
    let files = if count == 1 { "a temporary file".into() } else { format!("{count} temporary files") };
    let finding = DoctorFinding::new(
        FindingSeverity::Warning,
        "leftovers",
        place.display().to_string(),
        format!("commands that were killed left {files}"),
        "removes what they left",
    );
    findings.add_repairable(finding, || old.iter().try_for_each(|path| remove_leftover(path)));
}

fn remove_leftover(path: &Path) -> std::io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    // Another command may have removed it.
    removed.ignore_missing()
}

/// The old entries of a folder; none if there is no such folder.
pub(super) fn list_old_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let Some(entries) =
        fs::read_dir(folder).none_if_missing().map_err(VolumeError::wrap_local_error(folder))?
    else {
        return Ok(Vec::new());
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| is_old(path)).collect())
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|found| found.modified());
    // What seems to be from the future stays: a clock is wrong.
    modified.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > LEFTOVER_AGE))
}

/// The catalog: whether its file is whole, and whether the store has what it knows.
pub(super) fn examine_catalog(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let known = volume.catalog.known_ids();
    if volume.catalog.is_file_damaged() {
        // The next check reads all records.
        findings.add(DoctorFinding::new(
            FindingSeverity::Note,
            "damaged-catalog",
            volume.state.path().display().to_string(),
            "the catalog, which holds copies of the records of snapshots, has parts that could not be read",
            "whoever reads records, as this command does, writes it anew",
        ));
    }
    let mut there: BTreeSet<_> = volume.catalog.list_ids()?.into_iter().collect();
    if known.iter().all(|id| there.contains(id)) {
        return Ok(());
    }
    // Listed only if something is missing from the first folder: it is one more request, and most examinations do not need it.
    there.extend(volume.catalog.list_forgotten_ids()?);
    for id in known.into_iter().filter(|id| !there.contains(id)) {
        // A listing may leave out what is there.
        if let Err(VolumeError::MissingRecord(_)) = volume.catalog.fetch_record(&id) {
            findings.add(DoctorFinding::new(
                FindingSeverity::Problem,
                "lost-record",
                format!("snapshot {id}"),
                "this machine has seen it, and the store does not have its record",
                "'vellum verify --all' lists what else is missing",
            ));
        }
    }
    Ok(())
}

//! Directories that are no usable worktree: why not.

use std::fs;
use std::path::Path;

use vellum_host::escape::format_path;
use vellum_store::StoreError;
use vellum_types::{DecodeError, ErrorKind};

use super::finding::{DoctorFinding, DoctorFindings, FindingSeverity};
use crate::error::VolumeError;
use crate::own_place::ReservedDirectory;
use crate::state::{STATE_DIR, StateDir};

/// Entries of a directory among which worktrees are looked for, a count.
const NEIGHBOURS_MAX: usize = 1000;

/// Says why no worktree was found in or above a directory.
#[must_use]
pub fn explain_missing_worktree(
    start: &Path,
    error: &VolumeError,
    findings: &DoctorFindings,
) -> DoctorFinding {
    let report = |id, object: &Path, meaning: String, remedy: String| {
        DoctorFinding::new(FindingSeverity::Problem, id, object.display().to_string(), meaning, remedy)
    };
    if !matches!(error, VolumeError::NoVolume(_)) {
        return report("unreadable-state", start, error.to_string(), findings.hint(error));
    }
    let state = start.ancestors().map(|dir| dir.join(STATE_DIR)).find(|path| path.symlink_metadata().is_ok());
    if let Some(state) = state {
        if !state.is_dir() {
            let meaning = "it is no directory, and so not the state directory of a worktree".into();
            return report("no-worktree", &state, meaning, "move it away, then 'vellum init'".into());
        }
        return report(
            "lost-worktree-file",
            &state,
            "its file worktree.json is missing: 'vellum init' was interrupted, or the file was deleted".into(),
            "'vellum init' completes what was interrupted; if the file was deleted, put it back from a backup".into(),
        );
    }
    if let Some(ReservedDirectory::Store(store)) = ReservedDirectory::find_containing(start) {
        let remedy = format!(
            "in a directory of its own, 'vellum init --store {}' opens the volume",
            format_path(store.as_os_str().as_encoded_bytes())
        );
        return report("no-worktree", &store, "this is a store, and no worktree".into(), remedy);
    }
    // Entries that cannot be read are passed over: this search only improves a hint.
    let inner = fs::read_dir(start).into_iter().flatten().flatten().take(NEIGHBOURS_MAX);
    let inner = inner
        .map(|entry| entry.path())
        .find(|path| StateDir::find_enclosing(path).is_ok_and(|state| state.root() == path.as_path()));
    let remedy = match inner {
        Some(inner) => {
            let inner = format_path(inner.as_os_str().as_encoded_bytes());
            format!("{inner} is a worktree: 'vellum -C {inner} doctor' examines it")
        }
        None => findings.hint(error),
    };
    report("no-worktree", start, error.to_string(), remedy)
}

/// Says why the volume of a worktree cannot be opened.
#[must_use]
pub fn explain_open_failure(
    state: &StateDir,
    error: &VolumeError,
    findings: &DoctorFindings,
) -> DoctorFinding {
    let id = match error {
        VolumeError::Foreign { .. }
        | VolumeError::Store(StoreError::Address { kind: ErrorKind::NotFound, .. }) => "moved-store",
        VolumeError::Locked => "missing-key",
        VolumeError::SeenUnreadable { .. } => "damaged-seen",
        VolumeError::Decode { source: DecodeError::Version(_), .. } => "newer-version",
        // The error may be about any local file: whether it is this one is found out by reading it once more.
        VolumeError::Local { .. } if state.read_worktree_file().is_err() => "damaged-worktree-file",
        _ => "unusable-volume",
    };
    let remedy = match id {
        "damaged-worktree-file" => {
            "put the file back from a backup, or attach another directory with 'vellum init --store'".into()
        }
        _ => findings.hint(error),
    };
    let meaning = vellum_host::error_chain::format_error_chain(error);
    let object = state.root().display().to_string();
    DoctorFinding::new(FindingSeverity::Problem, id, object, meaning, remedy)
}

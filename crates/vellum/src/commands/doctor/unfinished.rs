//! Tries and uploads whose processes were killed.

use std::time::Duration;

use vellum_store::list_interrupted_uploads;
use vellum_volume::StateDir;
use vellum_volume::doctor::{DoctorFinding, DoctorFindings, FindingSeverity};
use vellum_volume::state::find_user_state_dir;

use crate::context::CommandContext;
use crate::error::Result;
use crate::experiment::fork::TryFork;
use crate::experiment::note::TryNotes;
use crate::ui::format;

/// What was interrupted a moment ago is about to be continued.
const UPLOAD_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Tries of which nobody waits for the end any more.
pub fn examine_tries(
    state: &StateDir,
    findings: &mut DoctorFindings,
    context: &CommandContext,
) -> Result<()> {
    for note in TryNotes::new(state).list_notes()? {
        // One that ended waits for the user's decision.
        if note.is_running() || note.status.is_some() {
            continue;
        }
        let name = note.name.clone();
        let command = note.format_command();
        let warn = |meaning: String, remedy: String| {
            let object = format!("try {name} of {}", note.of);
            DoctorFinding::new(FindingSeverity::Warning, "interrupted-try", object, meaning, remedy)
        };
        if note.base.is_some() {
            findings.add(warn(
                format!("'vellum try' was killed while '{command}' ran"),
                format!("'vellum try --apply {name}' takes what it left over, 'vellum try --discard {name}' gives it up"),
            ));
        } else {
            // The command was never started: there is nothing in it that the worktree does not have.
            let finding = warn(format!("it was killed before '{command}' began"), "removes it".into());
            findings.add_repairable(finding, || TryFork::new(state, note.clone(), context).discard());
        }
    }
    Ok(())
}

/// Uploads in parts of this user, which the service keeps, and has to be paid for, until they are ended.
pub fn examine_uploads(findings: &mut DoctorFindings) {
    let Some(dir) = find_user_state_dir() else { return };
    for upload in list_interrupted_uploads(&dir.join("uploads")) {
        let Some(age) = upload.age.filter(|age| *age > UPLOAD_AGE) else { continue };
        findings.add(DoctorFinding::new(
            FindingSeverity::Warning,
            "unfinished-upload",
            upload.key,
            format!(
                "'vellum sync' to a service was killed {} ago while it uploaded {}: the service may keep what it has",
                format::format_duration(age),
                format::format_size(upload.size)
            ),
            "the same 'vellum sync' continues or ends it",
        ));
    }
}

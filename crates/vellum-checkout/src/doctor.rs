//! Examination of a directory: restores that were interrupted, and the stat cache.
//!
//! Invariant: neither the files of the directory nor all of the stat cache are read, so that it takes as long for many files
//! as for few.

use vellum_host::beneath::HeldDir;
use vellum_host::lock::find_file_lock_holder;
use vellum_volume::doctor::{DoctorFinding, DoctorFindings, FindingSeverity};
use vellum_volume::{Volume, VolumeError};

use crate::restore::read_interrupted_restore;
use crate::statcache::{StatCacheError, check_stat_cache_tables};
use crate::worktree::STATCACHE_FILE;

/// Examines the directory of a checked-out worktree.
pub fn examine_directory(volume: &Volume, findings: &mut DoctorFindings) {
    let place = volume.state.root().display().to_string();
    findings.run_check(&place, |findings| examine_restore(volume, findings));
    examine_stat_cache(volume, findings);
}

fn examine_restore(volume: &Volume, findings: &mut DoctorFindings) -> Result<(), VolumeError> {
    // Before the record is read: a restore that begins meanwhile is not interrupted.
    let is_at_work = find_file_lock_holder(&volume.state.lock_file_path()).is_some();
    let interrupted = read_interrupted_restore(&volume.state)?;
    if let Some(interrupted) = interrupted.filter(|_| !is_at_work) {
        let target = interrupted.target;
        let undo =
            interrupted.safety.map_or_else(String::new, |id| format!("; 'vellum restore {id}' undoes it"));
        findings.add(DoctorFinding::new(
            FindingSeverity::Warning,
            "interrupted-restore",
            volume.state.root().display().to_string(),
            format!("a restore of {target} was interrupted: some files are as they were, others restored"),
            format!("'vellum restore {target}' finishes it{undo}"),
        ));
    }
    Ok(())
}

fn examine_stat_cache(volume: &Volume, findings: &mut DoctorFindings) {
    // What cannot be opened is reported by other checks.
    let Ok(dir) = HeldDir::open_root(volume.state.path()) else { return };
    let problem = match check_stat_cache_tables(&dir, STATCACHE_FILE) {
        Ok(()) | Err(StatCacheError::Unreachable(_)) => return,
        Err(problem) => problem,
    };
    let finding = DoctorFinding::new(
        FindingSeverity::Warning,
        "damaged-stat-cache",
        volume.state.path().display().to_string(),
        format!("{problem}: 'vellum status' and 'vellum snapshot' read all files"),
        "removes it; the next snapshot makes it anew",
    );
    findings.add_repairable(finding, || {
        // A command that is at work writes it anew.
        let _lock =
            volume.state.try_lock_worktree()?.ok_or_else(|| VolumeError::Raced("the worktree".into()))?;
        volume.state.remove_file(&String::from_utf8_lossy(STATCACHE_FILE))
    });
}

//! Examination of a volume and of what this machine keeps of it: sessions and leases of dead processes, leftovers,
//! directories that are not what they were, and what the local catalog and index know and the store does not have.
//!
//! Invariants: an examination reads refs, sessions and listings of objects, and no content, so that it takes as long for many
//! files as for few. It waits for no lock. A repair removes only what a process that is certainly dead has left, and makes
//! anew what is a copy of something in the store: it takes nothing from a process that is alive, even if that is stopped.

mod finding;
mod local;
mod place;
mod sessions;
mod stored;

pub use self::finding::{DoctorFinding, DoctorFindings, FindingRepair, FindingSeverity};
pub use self::place::{explain_missing_worktree, explain_open_failure};
use crate::volume::Volume;

/// Examines a volume and the state directory of its worktree.
pub fn examine_volume(volume: &Volume, findings: &mut DoctorFindings) {
    let state = volume.state.path().display().to_string();
    let store = volume.objects.describe_location();
    findings.run_check(&state, |findings| local::examine_state_dir(volume, findings));
    findings.run_check(&state, |findings| local::examine_catalog(volume, findings));
    findings.run_check(&store, |findings| sessions::examine_sessions(volume, findings));
    findings.run_check(&store, |findings| sessions::examine_worktrees(volume, findings));
    findings.run_check(&state, |findings| sessions::examine_merges(volume, findings));
    findings.run_check(&store, |findings| stored::examine_refs(volume, findings));
    findings.run_check(&store, |findings| stored::examine_records(volume, findings));
    findings.run_check(&store, |findings| stored::examine_index(volume, findings));
    findings.run_check(&store, |findings| stored::examine_clock(volume, findings));
    findings.run_check(&store, |findings| stored::examine_leftovers(volume, findings));
    stored::examine_disks(volume, findings);
}

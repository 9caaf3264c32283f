//! Sessions of writers, and leases of mounted worktrees: those of processes that are gone, or stopped.

use std::collections::BTreeSet;
use std::path::Path;

use vellum_host::lock::find_file_lock_holder;
use vellum_host::process::host_name;

use super::finding::{DoctorFinding, DoctorFindings, FindingSeverity};
use super::local::report_stopped_holder;
use crate::error::Result;
use crate::lease::Lease;
use crate::merge::{MergeStage, find_merge_lock, read_progress};
use crate::refs::WorktreeHead;
use crate::session::{SessionObject, current_time, list_sessions};
use crate::state::STATE_DIR;
use crate::volume::Volume;

pub(super) fn examine_sessions(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    // To remove a session takes the lock of a local store. If a stopped process holds it, the repair would wait, and an
    // examination waits for no lock.
    let lock = volume.objects.local_dir().map(|store| store.join(vellum_store::LOCAL_LOCK_FILE));
    let is_blocked = lock.is_some_and(|lock| report_stopped_holder(&lock, "the store", findings));
    for other in list_sessions(&*volume.objects, &volume.keys)? {
        let object = other.key.to_string();
        let warn = |id, meaning: String, remedy: String| {
            DoctorFinding::new(FindingSeverity::Warning, id, object.clone(), meaning, remedy)
        };
        match &other.session {
            Ok(session) if session.is_process_dead() => {
                let pid = session.pid;
                let meaning = format!("process {pid} on this machine is gone, and had not ended its session");
                findings.add_repairable(warn("stale-session", meaning, "removes the session".into()), || {
                    if is_blocked {
                        return Err("the lock of the store is held by a stopped process".to_owned());
                    }
                    // Only if it is still what was judged.
                    match other.remove_if_unrenewed(&*volume.objects) {
                        Ok(true) => Ok(()),
                        Ok(false) => Err("somebody has changed it meanwhile".to_owned()),
                        Err(error) => Err(error.to_string()),
                    }
                });
            }
            // A reader keeps nobody from anything.
            Ok(session) if session.reading.is_none() && session.is_process_stopped() => {
                let SessionObject { pid, .. } = session;
                let meaning = format!(
                    "process {pid} writes to the store and is stopped: 'vellum gc run' deletes nothing until it ends"
                );
                findings.add(warn("stopped-writer", meaning, format!("'kill -CONT {pid}' lets it go on")));
            }
            Ok(session) if session.is_expired() => {
                let meaning =
                    format!("process {} on {} has not renewed it for a day", session.pid, session.host);
                findings.add(warn("old-session", meaning, "'vellum gc run' removes it".into()));
            }
            Ok(_) => {}
            Err(error) => {
                let remedy = format!(
                    "if its writer is gone, 'vellum gc run --end-session {}' ends it",
                    other.key.name()
                );
                findings.add(warn("unreadable-session", error.to_string(), remedy));
            }
        }
    }
    Ok(())
}

pub(super) fn examine_worktrees(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let (heads, _) = volume.list_readable_worktrees()?;
    for (name, head) in &heads {
        if let Some(lease) = head.lease.as_ref().filter(|lease| !lease.ended) {
            examine_lease(name, lease, findings);
        }
        // A live state has no state directory of its own, and a name that was pushed has no place.
        if head.mark.is_some() && is_dir_gone(head) && *name != volume.worktree.worktree {
            findings.add(DoctorFinding::new(
                FindingSeverity::Note,
                "gone-worktree",
                format!("worktree '{name}'"),
                format!("its directory {} is not there", head.place),
                format!("if it was deleted, 'vellum worktree remove {name}' takes it off the list"),
            ));
        }
    }
    Ok(())
}

/// Merges that were interrupted, or wait for the user, in this directory and in the mounted worktrees of its state
/// directory.
pub(super) fn examine_merges(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let (heads, _) = volume.list_readable_worktrees()?;
    // Worktrees that are mounted have their live state in this state directory, and the notes of their merges beside it.
    let live = volume.state.path();
    let is_here = |head: &WorktreeHead| head.host == host_name() && Path::new(&head.place).starts_with(live);
    let mounted = heads.iter().filter(|(_, head)| is_here(head)).map(|(name, _)| name.as_str());
    let names: BTreeSet<_> = mounted.chain([volume.worktree.worktree.as_str()]).collect();
    for name in names {
        // Before the note is read: a merge that begins meanwhile is not interrupted.
        let is_at_work = find_file_lock_holder(&find_merge_lock(&volume.state, name)?).is_some();
        let Some(progress) = read_progress(&volume.state, name)?.filter(|_| !is_at_work) else { continue };
        let object = format!("worktree '{name}'");
        let merged = &progress.name;
        let open = progress.open_conflicts().count();
        findings.add(match progress.stage {
            MergeStage::Resolving => DoctorFinding::new(
                FindingSeverity::Note,
                "unfinished-merge",
                object,
                format!("a merge of '{merged}' waits for {open} conflicts to be resolved"),
                "'vellum conflicts' shows them; 'vellum merge --continue' finishes it",
            ),
            MergeStage::Saving | MergeStage::Storing | MergeStage::Applying | MergeStage::Aborting => {
                DoctorFinding::new(
                    FindingSeverity::Warning,
                    "interrupted-merge",
                    object,
                    format!("a merge of '{merged}' was interrupted"),
                    "'vellum merge --continue' finishes it; 'vellum merge --abort' takes it back",
                )
            }
        });
    }
    Ok(())
}

fn is_dir_gone(head: &WorktreeHead) -> bool {
    head.host == host_name() && !Path::new(&head.place).join(STATE_DIR).exists()
}

fn examine_lease(name: &str, lease: &Lease, findings: &mut DoctorFindings) {
    let session = &lease.session;
    let pid = session.pid;
    let warn = |id, meaning: String, remedy: String| {
        DoctorFinding::new(FindingSeverity::Warning, id, format!("worktree '{name}'"), meaning, remedy)
    };
    // By the clock of this machine: to learn the time of the store, a session would have to be written, and an examination only
    // reads.
    let is_overdue = current_time().secs > lease.expiry_time().secs;
    if session.is_process_dead() {
        // Whoever mounts the worktree takes the lease, with what the dead process had not published.
        findings.add(warn(
            "stale-lease",
            format!("process {pid} on this machine had it mounted and is gone"),
            format!("'vellum mount --worktree {name} DIR' goes on where it ended; nothing is lost"),
        ));
    } else if session.is_process_stopped() {
        findings.add(warn(
            "stopped-mount",
            format!("process {pid} has it mounted and is stopped"),
            format!("'kill -CONT {pid}' lets it go on"),
        ));
    } else if is_overdue {
        findings.add(warn(
            "overdue-lease",
            format!("process {pid} on {} has not renewed its lease in time", session.host),
            format!("if that machine is gone, 'vellum mount --worktree {name} DIR' takes the lease over"),
        ));
    }
}

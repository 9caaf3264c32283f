//! Sessions of writers, and leases of mounted worktrees: those of processes that are gone, or stopped. Sessions for what clients of
//! worktrees have stored: those of worktrees that are gone, or that nobody publishes.

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
use crate::session::{OtherSession, SessionObject, current_time, list_sessions};
use crate::state::STATE_DIR;
use crate::volume::Volume;

pub(super) fn examine_sessions(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    // To remove a session takes the lock of a local store. If a stopped process holds it, the repair would wait, and an
    // examination waits for no lock.
    let lock = volume.objects.local_dir().map(|store| store.join(vellum_store::LOCAL_LOCK_FILE));
    let is_blocked = lock.is_some_and(|lock| report_stopped_holder(&lock, "the store", findings));
    let (unpublished, others): (Vec<_>, Vec<_>) = list_sessions(&*volume.objects, &volume.keys)?
        .into_iter()
        .partition(|other| other.session.as_ref().is_ok_and(|session| session.unpublished.is_some()));
    examine_unpublished(volume, &unpublished, is_blocked, findings)?;
    for other in others {
        let object = other.key.to_string();
        let warn = |id, meaning: String, remedy: String| {
            DoctorFinding::new(FindingSeverity::Warning, id, object.clone(), meaning, remedy)
        };
        match &other.session {
            Ok(session) if session.is_process_dead() => {
                let pid = session.pid;
                let meaning = format!("process {pid} on this machine is gone, and had not ended its session");
                findings.add_repairable(warn("stale-session", meaning, "removes the session".into()), || {
                    remove_session(volume, &other, is_blocked)
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

/// Removes a session, unless it is not what was judged any more.
fn remove_session(volume: &Volume, other: &OtherSession, is_blocked: bool) -> Result<(), String> {
    if is_blocked {
        return Err("the lock of the store is held by a stopped process".to_owned());
    }
    match other.remove_if_unrenewed(&*volume.objects) {
        Ok(true) => Ok(()),
        Ok(false) => Err("somebody has changed it meanwhile".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Sessions for what clients of worktrees have stored.
fn examine_unpublished(
    volume: &Volume,
    sessions: &[OtherSession],
    is_blocked: bool,
    findings: &mut DoctorFindings,
) -> Result<()> {
    if sessions.is_empty() {
        return Ok(());
    }
    // After the sessions: one is put before its worktree is on the list.
    let (heads, unreadable) = volume.list_readable_worktrees()?;
    for other in sessions {
        let Ok(session) = &other.session else { continue };
        let warn = |id, meaning: String, remedy: String| {
            DoctorFinding::new(FindingSeverity::Warning, id, other.key.to_string(), meaning, remedy)
        };
        match volume.find_unpublished_owner(&other.key, &heads)? {
            Some(((name, head), is_left)) => {
                if let Some((meaning, remedy)) = explain_unpublished(name, head, is_left) {
                    let end = format!("; 'vellum gc run --end-session {}' gives it up", other.key.name());
                    findings.add(warn("unpublished-content", meaning, remedy + &end));
                }
            }
            // It may be that of one whose ref cannot be read, or that is about to be made.
            None if !unreadable.is_empty() || !session.is_writer_gone() => {}
            None => {
                let name = session.unpublished.as_deref().unwrap_or_default();
                let meaning = format!(
                    "it keeps what clients of the worktree '{name}' have stored, and there is no such worktree: 'vellum gc \
                     run' deletes nothing until it ends"
                );
                findings
                    .add_repairable(warn("ownerless-session", meaning, "removes the session".into()), || {
                        remove_session(volume, other, is_blocked)
                    });
            }
        }
    }
    Ok(())
}

/// What it means that a worktree has such a session, and what ends it; None: it is published soon.
fn explain_unpublished(name: &str, head: &WorktreeHead, is_left: bool) -> Option<(String, String)> {
    let deletes_nothing = "'vellum gc run' deletes nothing meanwhile";
    if is_left {
        return Some((
            format!(
                "another machine has taken the worktree '{name}' over from one on which there is a live state with what clients \
                 have stored: {deletes_nothing}"
            ),
            format!("'vellum worktree keep {name} NAME' on that machine makes a worktree of it"),
        ));
    }
    // A lease that is overdue may be renewed; it is a finding of its own.
    let is_served = |lease: &Lease| !lease.ended && !lease.session.is_process_dead();
    if head.lease.as_ref().is_some_and(is_served) {
        return None;
    }
    Some((
        format!(
            "clients of the worktree '{name}' have stored what it has not published, and nobody has it mounted: \
                 {deletes_nothing}"
        ),
        format!("'vellum mount --worktree {name} DIR' publishes it"),
    ))
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

//! Making the entries of a run durable.
//!
//! Invariant: after success, every filesystem that holds an entry of the plan, or held one that was deleted, or holds an
//! entry that is to be removed at the source, is synced: other filesystems may be mounted below the destination's root.

use std::collections::HashSet;

use rustix::fs::syncfs;
use vellum_host::beneath::HeldDir;

use super::carrier::TransferContext;
use crate::error::SyncError;
use crate::model::listing::ListingEntryId;
use crate::plan::StepAction;

/// Syncs the filesystems of the destination; false if one of them could not be synced, which is reported.
pub(super) fn sync_destination(carrier: &TransferContext<'_>, root: &HeldDir) -> bool {
    // One call for a filesystem is cheaper than one for each file. With `--fsync` files were made durable
    // before they got their names; this covers directories, attributes and links.
    let mut is_durable = sync_filesystem(carrier, root, &[]);
    let mut synced: HashSet<u64> = root.stat_self().map(|stat| stat.dev).into_iter().collect();
    let mut seen: HashSet<ListingEntryId> = HashSet::new();
    let job = carrier.job();
    // Entries that are moved need not have a step: the destination may have them from an earlier run, which
    // was perhaps killed before it had synced them.
    let entries = job.plan.steps.iter().filter_map(|step| step.source).chain(job.plan.moved.iter().copied());
    let written = entries.map(|id| job.from.entry(id)).filter_map(|entry| {
        let dir = if entry.is_dir() { entry } else { entry.parent().unwrap_or(entry) };
        seen.insert(dir.id()).then(|| (dir, carrier.open_dir(&dir)))
    });
    let deletions = job.plan.steps.iter().filter(|step| step.action == StepAction::Delete);
    let deleted: Vec<ListingEntryId> = deletions.filter_map(|step| step.old).collect();
    // A directory that was deleted as well cannot be opened any more; the one above it is on the same filesystem.
    let mut seen_old: HashSet<ListingEntryId> = deleted.iter().copied().collect();
    let emptied = deleted.iter().map(|id| job.to.entry(*id)).filter_map(|old| {
        let dir = old.parent().unwrap_or(old);
        seen_old.insert(dir.id()).then(|| (dir, carrier.open_old_dir(&dir)))
    });
    for (dir, opened) in written.chain(emptied) {
        let opened = opened.and_then(|opened| Ok((opened.stat_self()?.dev, opened)));
        match opened {
            Ok((device, opened)) if !synced.contains(&device) => {
                is_durable &= sync_filesystem(carrier, &opened, &dir.path());
                synced.insert(device);
            }
            Ok(_) => {}
            // A directory that a stopped run has not made, or that could not be made, which was reported.
            Err(_) if carrier.should_stop() || carrier.has_problem_at(&dir.path()) => {}
            // The problem keeps the entries in the directory at the source.
            Err(error) => carrier.report_failure(&dir.path(), &error),
        }
    }
    is_durable
}

/// Syncs the filesystem of a directory; returns whether that succeeded.
fn sync_filesystem(carrier: &TransferContext<'_>, dir: &HeldDir, path: &[u8]) -> bool {
    // The descriptor may be one with O_PATH, on which `syncfs` fails with EBADF.
    let outcome = dir
        .reopen_to_read()
        .map_err(SyncError::from)
        .and_then(|dir| syncfs(dir).map_err(|errno| SyncError::wrap_io_error("make durable")(errno.into())));
    outcome.map_err(|error| carrier.report_failure(path, &error)).is_ok()
}

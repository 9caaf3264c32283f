//! Gives a worktree that is not mounted a log, and takes it away again.

use std::sync::Arc;

use vellum_volume::lease::LeaseKeeper;
use vellum_volume::refs::WorktreeLog;
use vellum_volume::{Volume, VolumeError};

use super::instances::{InstanceFile, LogInstances};
use super::{LogLocation, LogUse, OpenedSharedLog};
use crate::live::{LiveLimits, LiveStateClaim, OpenError, OpenedLiveState, Result, find_live_worktree};

/// Gives a worktree a log, with what is not published of it. It must have none, and must not be mounted or open.
pub fn share_worktree(volume: &Arc<Volume>, name: &str, location: &LogLocation) -> Result<()> {
    let opened = OpenedForSharing::open(volume, name, &LogUse::New(location.clone()))?;
    opened.state.fs.publisher().publish_all()?;
    let OpenedForSharing { state, keeper, log, .. } = opened;
    // Nothing may be appended afterwards.
    state.fs.content().sync_all()?;
    // Renewed until then.
    drop(keeper);
    state.tenure.release_lease()?;
    log.release_log()
}

/// Takes the log away that a worktree has, when everything is published. It must not be mounted or open.
pub fn unshare_worktree(volume: &Arc<Volume>, name: &str, existing: &WorktreeLog) -> Result<()> {
    let opened = OpenedForSharing::open(volume, name, &LogUse::Existing(existing.clone()))?;
    opened.state.fs.publisher().publish_all()?;
    let OpenedForSharing { state, keeper, log, claim } = opened;
    // The ref first: a log that nothing names takes room, and a ref that names a log that is gone keeps the worktree from
    // being opened.
    state.tenure.update_worktree_ref(|head| head.log = None)?;
    InstanceFile::in_dir(claim.dir()).save_instances(&LogInstances::default())?;
    log.remove_log()?;
    drop(keeper);
    Ok(state.tenure.release_lease()?)
}

/// A worktree that is open for this alone.
struct OpenedForSharing {
    state: OpenedLiveState,
    keeper: LeaseKeeper,
    log: OpenedSharedLog,
    claim: LiveStateClaim,
}

impl OpenedForSharing {
    fn open(volume: &Arc<Volume>, name: &str, log: &LogUse) -> Result<Self> {
        // Before the claim, which would make a directory for a worktree that does not exist.
        let missing = || VolumeError::no_worktree(name);
        find_live_worktree(volume, name)?.ok_or_else(missing)?;
        let claim = LiveStateClaim::acquire(volume, name, None)?;
        let mut state = claim.open_filesystem(volume, LiveLimits::default(), log)?;
        let log = state.shared_log.take().ok_or_else(|| VolumeError::Raced(name.into()))?;
        let keeper = LeaseKeeper::start(state.tenure.clone(), |_| ())
            .map_err(OpenError::io_error("start a thread for", "the lease"))?;
        Ok(Self { state, keeper, log, claim })
    }
}

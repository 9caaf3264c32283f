//! Which transfers with a remote are under way on this machine: each holds a lock, for which anybody can look.
//!
//! Invariant: nothing depends on it but what is shown. A transfer that cannot be marked is made all the same, and one that
//! is killed leaves no mark.

use std::time::{Duration, SystemTime};

use super::Remote;
use crate::state::WorktreeLock;
use crate::volume::Volume;

/// Which way snapshots go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferDirection {
    /// To the remote.
    Push,
    /// From the remote.
    Pull,
}

impl TransferDirection {
    fn lock_file(self) -> &'static str {
        match self {
            Self::Push => "push.lock",
            Self::Pull => "pull.lock",
        }
    }
}

impl Volume {
    /// Shows others that a transfer is under way, until the result is dropped.
    pub(super) fn mark_transfer(
        &self,
        remote: &Remote,
        direction: TransferDirection,
    ) -> Option<WorktreeLock> {
        // Others only learn by it that a transfer is under way: without a mark it goes on all the same.
        self.remote_state(&remote.name).share_named_lock(direction.lock_file()).ok()
    }

    /// For how long a transfer with a remote has been under way; none if none is. Of several, the one that began last.
    #[must_use]
    pub fn find_transfer(&self, remote: &Remote, direction: TransferDirection) -> Option<Duration> {
        let state = self.remote_state(&remote.name);
        let path = state.join(direction.lock_file());
        // Without the file, there was none yet; to look for one must not make it.
        let begun = path.metadata().and_then(|found| found.modified()).ok()?;
        match state.try_lock_named_file(direction.lock_file()) {
            Ok(None) => Some(SystemTime::now().duration_since(begun).unwrap_or_default()),
            Ok(Some(_)) | Err(_) => None,
        }
    }
}

//! The worktree's lease: changes require it, and its holder changes the worktree's ref in the store.
//!
//! Invariant: who holds a lease changes the ref through it only, so that a process that lost it changes nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_live::LiveStore;
use vellum_map::{KeySpan, MapRoot};
use vellum_types::SnapshotId;
use vellum_volume::lease::HeldLease;
use vellum_volume::operations::CommandScope;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::{SnapshotOrigin, SnapshotRecord, Volume, VolumeError};

use crate::error::{FsError, Result};
use crate::tree::head::{HEAD_KEY, LiveHead, PENDING, layer_prefix};
use crate::tree::wrap_decode_error;

/// A worktree's ref in the store, and the right to change it. A worktree of one process needs no lease.
pub(crate) struct WorktreeLease {
    volume: Arc<Volume>,
    worktree: String,
    tenure: Option<Arc<HeldLease>>,
}

impl WorktreeLease {
    /// The ref of a worktree, changed with a lease if it has one.
    pub fn new(volume: Arc<Volume>, worktree: String, tenure: Option<Arc<HeldLease>>) -> Self {
        Self { volume, worktree, tenure }
    }

    /// The name of the worktree.
    pub fn worktree_name(&self) -> &str {
        &self.worktree
    }

    /// Fails if another process has taken the worktree over: changes made here would never reach the store.
    pub fn check_held(&self) -> Result<()> {
        Ok(self.tenure.as_ref().map_or(Ok(()), |tenure| tenure.check_still_held())?)
    }

    /// Renews the lease now, which writes the ref with the trees in use. Returns `false` if there is no lease, and
    /// nothing was written.
    pub fn renew(&self) -> std::result::Result<bool, VolumeError> {
        self.tenure.as_ref().map_or(Ok(false), |tenure| tenure.renew_lease().map(|()| true))
    }

    /// Changes the value of the ref.
    pub fn update_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        Ok(match &self.tenure {
            Some(tenure) => tenure.update_worktree_ref(change),
            None => self.volume.update_worktree_ref(&self.worktree, change),
        }?)
    }

    /// Stores the record of a snapshot that has its id already, and lets the worktree stand on it.
    pub fn commit_snapshot(&self, record: &SnapshotRecord) -> Result<SnapshotId> {
        let command = match record.origin {
            SnapshotOrigin::User => "snapshot",
            SnapshotOrigin::Safety => "restore",
        };
        // The process that serves the mount was started with another command.
        let _scope = CommandScope::enter([command]);
        Ok(match &self.tenure {
            Some(tenure) => tenure.commit_snapshot(record),
            None => self.volume.commit_prepared_snapshot(&self.worktree, record),
        }?)
    }

    /// Lets every change of the ref name these trees, so that the collector keeps them.
    pub fn set_read_trees_source(&self, source: impl Fn() -> Option<Vec<MapRoot>> + Send + Sync + 'static) {
        if let Some(tenure) = &self.tenure {
            tenure.set_read_trees_source(source);
        }
    }
}

/// Returns the live head of a live store, if it has one.
pub fn read_stored_head(live: &dyn LiveStore) -> Result<Option<LiveHead>> {
    let stored = live.get(HEAD_KEY)?;
    stored.map(|bytes| LiveHead::decode(&bytes).map_err(wrap_decode_error("the head"))).transpose()
}

/// Returns whether a live store has unpublished changes.
pub fn has_unpublished_state(live: &dyn LiveStore) -> Result<bool> {
    let Some(head) = read_stored_head(live)? else { return Ok(false) };
    let mut found = !head.sealed_state().layers.is_empty();
    // A pending snapshot counts even if nothing was changed since: its record is not in the store.
    for span in [KeySpan::from_prefix(layer_prefix(head.top_layer())), KeySpan::from_prefix(PENDING)] {
        live.scan(&span, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
    }
    Ok(found)
}

impl FsError {
    /// Returns whether another process has taken the worktree over.
    #[must_use]
    pub fn is_fenced_error(&self) -> bool {
        matches!(self, Self::Volume(VolumeError::Fenced { .. }))
    }
}

//! The worktree's lease: operations require it, and the ref of its holder names the trees in use.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_live::LiveStore;
use vellum_map::{KeySpan, MapRoot};
use vellum_types::SnapshotId;
use vellum_volume::VolumeError;
use vellum_volume::refs::WorktreeHead;

use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::tree::head::{HEAD_KEY, LayeredState, LiveHead, PENDING, layer_prefix};
use crate::tree::wrap_decode_error;

/// A published tree that no state uses yet: while this exists, the worktree's ref names it.
pub(crate) struct NamedTree<'f> {
    fs: &'f LiveFilesystem,
    state: LayeredState,
}

impl Drop for NamedTree<'_> {
    fn drop(&mut self) {
        self.fs.tree.open_views().end_read(&self.state);
    }
}

impl LiveFilesystem {
    /// Fails if another process has taken the worktree over: changes made here would never reach the store.
    pub(crate) fn check_lease(&self) -> Result<()> {
        Ok(self.tenure.as_ref().map_or(Ok(()), |tenure| tenure.check_still_held())?)
    }

    /// Registers the trees in use, so that every change of the worktree's ref names them.
    pub fn publish_read_trees(self: &Arc<Self>) {
        let Some(tenure) = &self.tenure else { return };
        let fs = Arc::downgrade(self);
        tenure.set_read_trees_source(move || fs.upgrade()?.base_roots().ok());
    }

    /// Makes the worktree's ref name a published snapshot's tree before a state uses it, so that the collector keeps
    /// it even if the snapshot is forgotten next. Fails if it was already forgotten.
    pub(crate) fn pin_snapshot_tree(&self, id: SnapshotId) -> Result<NamedTree<'_>> {
        let (state, ..) = self.load_published_state(id)?;
        self.tree.open_views().begin_sealed_read(&state);
        let named = NamedTree { fs: self, state };
        self.publish_read_snapshot(id)?;
        Ok(named)
    }

    /// Makes the worktree's ref name the trees in use, one of which is the tree of a published snapshot. Fails if the
    /// snapshot was already forgotten.
    pub(crate) fn publish_read_snapshot(&self, id: SnapshotId) -> Result<()> {
        let Some(tenure) = &self.tenure else { return Ok(()) };
        // Renewing writes the worktree's ref, which names the tree from then on. Only then is it asked whether the
        // snapshot is still there: in the other order it could be collected in between.
        match tenure.renew_lease() {
            // If the snapshot is forgotten from now on, a collection that does not find its tree among the snapshots
            // finds it in the ref.
            Ok(()) if self.volume.catalog.has_snapshot(&id)? => Ok(()),
            Ok(()) => Err(VolumeError::MissingRecord(id).into()),
            Err(error @ VolumeError::Fenced { .. }) => Err(error.into()),
            // If the store is unreachable, work continues; the next renewal names the tree.
            Err(_) => Ok(()),
        }
    }

    /// Returns the published trees in use: by the worktree, retained roots, pending snapshots, past states and views.
    /// In this order, because only a limited number is kept.
    pub fn base_roots(&self) -> Result<Vec<MapRoot>> {
        let head = self.tree.lock_head();
        let mut bases = vec![head.state.base];
        bases.extend(self.tree.retained_trees()?);
        bases.extend(self.tree.pending_snapshots()?.iter().map(|(_, pending)| pending.state.base));
        bases.extend(self.epochs.lock_past_states().values().map(|past| past.state.base));
        bases.extend(self.tree.open_views().read_bases());
        drop(head);
        let mut seen = BTreeSet::from([self.volume.empty_root()]);
        bases.retain(|root| seen.insert(*root));
        Ok(bases)
    }

    /// Changes the value of the worktree's ref.
    pub(crate) fn update_worktree_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        Ok(match &self.tenure {
            Some(tenure) => tenure.update_worktree_ref(change),
            None => self.volume.update_worktree_ref(self.worktree_name(), change),
        }?)
    }

    /// Returns why the worktree can no longer be changed, if another process has taken it over.
    #[must_use]
    pub fn lease_loss(&self) -> Option<VolumeError> {
        self.tenure.as_ref().and_then(|tenure| tenure.lease_loss())
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

//! The published trees in use: the worktree's ref names them, so that the collector keeps them.
//!
//! Invariant: a tree that a state is about to use is named before it is asked whether its snapshot still exists.

use std::collections::BTreeSet;
use std::sync::Arc;

use vellum_map::MapRoot;
use vellum_types::SnapshotId;
use vellum_volume::VolumeError;

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::head::LayeredState;

/// A published tree that no state uses yet: while this exists, the worktree's ref names it.
pub(crate) struct NamedTree<'f> {
    fs: &'f LiveFilesystem,
    state: LayeredState,
}

impl Drop for NamedTree<'_> {
    fn drop(&mut self) {
        self.fs.live_map().open_views().end_read(&self.state);
    }
}

impl LiveFilesystem {
    /// Registers the trees in use, so that every change of the worktree's ref names them.
    pub fn publish_read_trees(self: &Arc<Self>) {
        // Weak: the lease outlives the worktree, and must not keep it.
        let fs = Arc::downgrade(self);
        self.lease().set_read_trees_source(move || fs.upgrade()?.base_roots().ok());
    }

    /// Makes the worktree's ref name a published snapshot's tree before a state uses it, so that the collector keeps
    /// it even if the snapshot is forgotten next. Fails if it was already forgotten.
    pub(crate) fn pin_snapshot_tree(&self, id: SnapshotId) -> Result<NamedTree<'_>> {
        let (state, ..) = self.load_published_state(id)?;
        self.live_map().open_views().begin_sealed_read(&state);
        let named = NamedTree { fs: self, state };
        self.publish_read_snapshot(id)?;
        Ok(named)
    }

    /// Makes the worktree's ref name a tree that a session protects, before a state uses it. Fails if the ref cannot be
    /// written: what a state uses must not depend on a session.
    pub(crate) fn name_stored_tree(&self, state: &LayeredState) -> Result<NamedTree<'_>> {
        self.live_map().open_views().begin_sealed_read(state);
        let named = NamedTree { fs: self, state: state.clone() };
        self.lease().renew()?;
        Ok(named)
    }

    /// Makes the worktree's ref name the trees in use, one of which is the tree of a published snapshot. Fails if the
    /// snapshot was already forgotten.
    pub(crate) fn publish_read_snapshot(&self, id: SnapshotId) -> Result<()> {
        // Renewing writes the worktree's ref, which names the tree from then on. Only then is it asked whether the
        // snapshot is still there: in the other order it could be collected in between.
        match self.lease().renew() {
            // If the snapshot is forgotten from now on, a collection that does not find its tree among the snapshots
            // finds it in the ref.
            Ok(true) if self.volume().catalog.has_snapshot(&id)? => Ok(()),
            Ok(true) => Err(VolumeError::MissingRecord(id).into()),
            Ok(false) => Ok(()),
            Err(error @ VolumeError::Fenced { .. }) => Err(error.into()),
            // If the store is unreachable, work continues; the next renewal names the tree.
            Err(_) => Ok(()),
        }
    }

    /// Returns the published trees in use: by the worktree, its trash, retained roots, pending snapshots, past states and views.
    /// In this order, because only a limited number is kept.
    pub fn base_roots(&self) -> Result<Vec<MapRoot>> {
        let map = self.live_map();
        let head = map.lock_head();
        let mut bases = vec![head.state.base];
        bases.extend(head.trash.as_ref().map(|trash| trash.base));
        bases.extend(map.retained_trees()?);
        bases.extend(map.pending_snapshots()?.iter().map(|(_, pending)| pending.state.base));
        bases.extend(self.epochs().lock_past_states().values().map(|past| past.state.base));
        bases.extend(map.open_views().read_bases());
        drop(head);
        // The empty tree is known without the store, and needs nobody who keeps it.
        let mut seen = BTreeSet::from([self.volume().empty_root()]);
        bases.retain(|root| seen.insert(*root));
        Ok(bases)
    }
}

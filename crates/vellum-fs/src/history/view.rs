//! Views: immutable states of a worktree, of one moment or of a snapshot, that can be read while the worktree
//! changes.
//!
//! A view costs only memory: the layers that it reads are kept, and the next write begins a new layer. It ends with
//! the process. The collector keeps what it reads as long as the lease is renewed; for a forgotten snapshot, from the
//! first change of the worktree's ref after the view was opened. Deliberately absent: writing.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Ino, SnapshotId};
use vellum_volume::tree::StateReader;

use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::history::past::Epoch;
use crate::tree::MapReader;
use crate::tree::head::LayeredState;

/// Number of layers of one state above which reading becomes noticeably slower: each view that is kept while the
/// worktree is written adds a layer.
const LAYERS_SLOW: usize = 64;

/// A state of a live worktree that does not change.
pub struct LiveView {
    fs: Arc<LiveFilesystem>,
    state: LayeredState,
    /// The snapshot, if it is published.
    snapshot: Option<SnapshotId>,
}

impl LiveFilesystem {
    /// Opens a view of the worktree as it is now.
    pub fn open_view(self: &Arc<Self>) -> Result<LiveView> {
        // A view that is followed by a write costs a layer, and each layer one more look-up for each key.
        self.publisher().limit_layer_count(LAYERS_SLOW)?;
        let head = self.live_map().lock_head();
        // With the head held: the layers that are counted here cannot be removed in between.
        let state = self.live_map().open_views().begin_read(&head);
        drop(head);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: None })
    }

    /// Opens a view of a snapshot, published or not.
    pub fn open_snapshot_view(self: &Arc<Self>, snapshot: SnapshotId) -> Result<LiveView> {
        // As long as the head is held still, what waits to be published is not forgotten.
        let head = self.live_map().lock_head();
        let waiting =
            self.live_map().pending_snapshots()?.into_iter().find(|(_, waiting)| waiting.id == snapshot);
        let state = waiting.map(|(_, waiting)| waiting.state);
        state.iter().for_each(|state| self.live_map().open_views().begin_sealed_read(state));
        drop(head);
        if let Some(state) = state {
            return Ok(LiveView { fs: Arc::clone(self), state, snapshot: None });
        }
        let (state, ..) = self.load_published_state(snapshot)?;
        self.live_map().open_views().begin_sealed_read(&state);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: Some(snapshot) })
    }

    /// Opens a view of the state of an earlier epoch, which is kept while an inode of it is held. Fails with a stale
    /// handle if that state no longer exists.
    pub fn open_past_view(self: &Arc<Self>, epoch: Epoch) -> Result<LiveView> {
        // Publishing moves past states onto its trees while it has the head to itself: what is found here is needed
        // until the view is counted.
        let _head = self.live_map().lock_head();
        let state = self.epochs().lock_past_states().get(&epoch).map(|past| past.state.clone());
        let state = state.ok_or(Errno::STALE)?;
        self.live_map().open_views().begin_sealed_read(&state);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: None })
    }
}

impl LiveView {
    /// Reads a state of which all layers are sealed and needed.
    pub(crate) fn begin_sealed(fs: &Arc<LiveFilesystem>, state: LayeredState) -> Self {
        fs.live_map().open_views().begin_sealed_read(&state);
        Self { fs: Arc::clone(fs), state, snapshot: None }
    }

    /// The worktree.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<LiveFilesystem> {
        &self.fs
    }

    /// The inode that a directory holds under a name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let ino = self.find_dentry(dir, name)?.ino;
        Ok(InodeAttributes { ino, attr: self.inode_attr(ino)? })
    }

    pub(crate) fn layered_state(&self) -> &LayeredState {
        &self.state
    }

    /// The snapshot that it reads, if its tree is in the store.
    pub(crate) fn snapshot_id(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    pub(crate) fn read_state<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<T> {
        self.fs.live_map().read_sealed_state(&self.state, body)
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.fs.live_map().open_views().end_read(&self.state);
    }
}

//! Views: immutable states of a worktree, of one moment or of a snapshot, that can be read while the worktree
//! changes.
//!
//! A view costs only memory: the layers that it reads are kept, and the next write begins a new layer. It ends with
//! the process. The collector keeps what it reads as long as the lease is renewed; for a forgotten snapshot, from the
//! first change of the worktree's ref after the view was opened. Deliberately absent: writing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, SnapshotId};

use crate::attributes::xattr::list_xattr_names;
use crate::content::{SeekTarget, seek_in};
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::names::{DirEntry, check_is_dir, check_name, read_dir_entries};
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
        self.limit_layer_count(LAYERS_SLOW)?;
        let head = self.tree.lock_head();
        let state = self.tree.open_views().begin_read(&head);
        drop(head);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: None })
    }

    /// Opens a view of a snapshot, published or not.
    pub fn open_snapshot_view(self: &Arc<Self>, snapshot: SnapshotId) -> Result<LiveView> {
        // As long as the head is held still, what waits to be published is not forgotten.
        let head = self.tree.lock_head();
        let waiting = self.pending_snapshots()?.into_iter().find(|(_, waiting)| waiting.id == snapshot);
        let state = waiting.map(|(_, waiting)| waiting.state);
        state.iter().for_each(|state| self.tree.open_views().begin_sealed_read(state));
        drop(head);
        if let Some(state) = state {
            return Ok(LiveView { fs: Arc::clone(self), state, snapshot: None });
        }
        let (state, ..) = self.load_published_state(snapshot)?;
        self.tree.open_views().begin_sealed_read(&state);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: Some(snapshot) })
    }
}

impl LiveView {
    /// The worktree.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<LiveFilesystem> {
        &self.fs
    }

    /// The attributes of an inode.
    pub fn inode_attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.read_state(|view| view.expect_inode_attr(ino))
    }

    /// The inode that a directory holds under a name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let ino = self.find_dentry(dir, name)?.ino;
        Ok(InodeAttributes { ino, attr: Arc::new(self.inode_attr(ino)?) })
    }

    /// What a directory holds under a name.
    pub fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        check_name(name)?;
        self.read_state(|view| match view.lookup_dentry(dir, name)? {
            Some(dentry) => Ok(dentry),
            None => {
                check_is_dir(&view.expect_inode_attr(dir)?)?;
                Err(Errno::NOENT.into())
            }
        })
    }

    /// All entries of a directory by name, without `.` and `..`.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        self.read_state(|view| {
            check_is_dir(&view.expect_inode_attr(dir)?)?;
            read_dir_entries(view, dir)
        })
    }

    /// The target of a symlink.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.inode_attr(ino)?;
        if attr.kind == FileKind::Symlink { Ok(attr.target) } else { Err(Errno::INVAL.into()) }
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        let value = self.read_state(|view| view.get_value(&MapKey::for_xattr(ino, name)))?;
        Ok(value.ok_or(Errno::NODATA)?.as_bytes().into())
    }

    /// The names of an inode's extended attributes, in order.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.read_state(|view| list_xattr_names(view, ino))
    }

    /// Reads; fewer bytes come only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.fs.read_sealed_content(&self.state, ino, offset, len)
    }

    /// The first offset from `offset` on where there is what is looked for; `ENXIO` if there is none.
    pub fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        self.read_state(|view| seek_in(view, ino, offset, seek))
    }

    pub(crate) fn layered_state(&self) -> &LayeredState {
        &self.state
    }

    /// The snapshot that it reads, if its tree is in the store.
    pub(crate) fn snapshot_id(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    pub(crate) fn read_state<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<T> {
        self.fs.tree.read_sealed_state(&self.state, body)
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.fs.tree.open_views().end_read(&self.state);
        if !self.state.layers.is_empty() {
            self.fs.has_unneeded_layers.store(true, Ordering::Release);
        }
    }
}

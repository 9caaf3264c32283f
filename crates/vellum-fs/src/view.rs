//! Views: the worktree as it was at a moment, or as a snapshot has it, to be read while it changes.
//!
//! A view costs nothing but memory: the layers that it reads stay for it, and whoever writes next leaves them alone.
//! It ends with the process. No collection of garbage takes what it reads, as long as the lease is kept; of a snapshot that
//! is forgotten, once the worktree's ref was changed after the view began. Deliberately absent: writing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, SnapshotId};

use crate::content::{SeekTarget, seek_in};
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::head::LayeredState;
use crate::names::{DirEntry, check_dir, check_name, entries_of};
use crate::tree::MapReader;
use crate::xattr::names;

/// Layers of one head from which on reading is felt to be slower: views that are kept while the worktree is written
/// lay one each.
const LAYERS_SLOW: usize = 64;

/// A state of a live worktree that does not change.
pub struct LiveView {
    fs: Arc<LiveFilesystem>,
    state: LayeredState,
    /// The snapshot, if its tree is in the store.
    snapshot: Option<SnapshotId>,
}

impl LiveFilesystem {
    /// The worktree as it is now.
    pub fn view(self: &Arc<Self>) -> Result<LiveView> {
        self.bound_layers(LAYERS_SLOW)?;
        let head = self.tree.head();
        let state = self.tree.views().begin(&head);
        drop(head);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: None })
    }

    /// A snapshot, published or not.
    pub fn view_of(self: &Arc<Self>, snapshot: SnapshotId) -> Result<LiveView> {
        // As long as the head is held still, what waits to be published is not forgotten.
        let head = self.tree.head();
        let waiting = self.pending()?.into_iter().find(|(_, waiting)| waiting.id == snapshot);
        let state = waiting.map(|(_, waiting)| waiting.state);
        state.iter().for_each(|state| self.tree.views().begin_sealed(state));
        drop(head);
        if let Some(state) = state {
            return Ok(LiveView { fs: Arc::clone(self), state, snapshot: None });
        }
        let (state, ..) = self.published(snapshot)?;
        self.tree.views().begin_sealed(&state);
        Ok(LiveView { fs: Arc::clone(self), state, snapshot: Some(snapshot) })
    }
}

impl LiveView {
    /// The worktree.
    #[must_use]
    pub fn fs(&self) -> &Arc<LiveFilesystem> {
        &self.fs
    }

    /// The attributes of an inode.
    pub fn attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.look(|view| view.attr_of(ino))
    }

    /// The inode that a directory holds under a name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let ino = self.find(dir, name)?.ino;
        Ok(InodeAttributes { ino, attr: Arc::new(self.attr(ino)?) })
    }

    /// What a directory holds under a name.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        check_name(name)?;
        self.look(|view| match view.dentry(dir, name)? {
            Some(dentry) => Ok(dentry),
            None => {
                check_dir(&view.attr_of(dir)?)?;
                Err(Errno::NOENT.into())
            }
        })
    }

    /// All entries of a directory by name, without `.` and `..`.
    pub fn entries(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        self.look(|view| {
            check_dir(&view.attr_of(dir)?)?;
            entries_of(view, dir)
        })
    }

    /// The target of a symlink.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.attr(ino)?;
        if attr.kind == FileKind::Symlink { Ok(attr.target) } else { Err(Errno::INVAL.into()) }
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        let value = self.look(|view| view.value(&MapKey::xattr(ino, name)))?;
        Ok(value.ok_or(Errno::NODATA)?.as_bytes().into())
    }

    /// The names of an inode's extended attributes, in order.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look(|view| names(view, ino))
    }

    /// Reads; fewer bytes come only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.fs.read_sealed(&self.state, ino, offset, len)
    }

    /// The first offset from `offset` on where there is what is looked for; `ENXIO` if there is none.
    pub fn seek(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        self.look(|view| seek_in(view, ino, offset, seek))
    }

    pub(crate) fn state(&self) -> &LayeredState {
        &self.state
    }

    /// The snapshot that it reads, if its tree is in the store.
    pub(crate) fn snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    pub(crate) fn look<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<T> {
        self.fs.tree.read_sealed(&self.state, body)
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.fs.tree.views().end(&self.state);
        if !self.state.layers.is_empty() {
            self.fs.litter.store(true, Ordering::Release);
        }
    }
}

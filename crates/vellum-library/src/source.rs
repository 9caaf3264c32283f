//! Sources that are read by inode: a live worktree, a view of it, a snapshot without a live worktree.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::history::frozen::FrozenTree;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_fs::{DirEntry, Epoch, FsError, LiveFilesystem, LiveView, Result, SeekTarget};
use vellum_types::{Dentry, Ino, InodeAttr};
use vellum_volume::lease::LeaseKeeper;

use vellum_fs::lease::has_unpublished_state;
use vellum_volume::lease::HeldLease;

use crate::live::LiveStateClaim;

/// An open live worktree. Everything made from it keeps it open.
pub(crate) struct OpenLiveWorktree {
    /// Renews the lease.
    pub _keeper: LeaseKeeper,
    // Dropped first: it ends the thread.
    pub publisher: BackgroundPublisher,
    pub _leaving: LeaseRelease,
    pub fs: Arc<LiveFilesystem>,
    // Dropped last: nobody else may write before everything is closed.
    pub claim: LiveStateClaim,
}

/// Releases the lease at the end, if everything is published: the worktree can then be opened elsewhere at once.
pub(crate) struct LeaseRelease {
    pub fs: Arc<LiveFilesystem>,
    pub tenure: Arc<HeldLease>,
}

impl Drop for LeaseRelease {
    fn drop(&mut self) {
        if has_unpublished_state(&**self.fs.live_map().live_store()).is_ok_and(|has| !has) {
            // One that cannot be given up expires.
            let _ = self.tenure.release_lease();
        }
    }
}

/// A view, and the worktree that it keeps open.
pub(crate) struct OpenedView {
    pub view: LiveView,
    // Dropped after the view.
    _live: Arc<OpenLiveWorktree>,
}

impl OpenedView {
    pub fn new(view: LiveView, live: &Arc<OpenLiveWorktree>) -> Arc<Self> {
        Arc::new(Self { view, _live: live.clone() })
    }
}

/// The source of a read.
#[derive(Clone)]
pub(crate) enum ReadSource {
    Live(Arc<OpenLiveWorktree>),
    View(Arc<OpenedView>),
    Frozen(Arc<FrozenTree>),
}

impl ReadSource {
    /// Returns the epoch of a live worktree; an immutable source has only one.
    pub fn current_epoch(&self) -> Epoch {
        match self {
            Self::Live(live) => live.fs.current_epoch(),
            Self::View(_) | Self::Frozen(_) => Epoch::default(),
        }
    }

    /// Looks up a name in a directory.
    pub fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        match self {
            Self::Live(live) => live.fs.find_dentry(dir, name),
            Self::View(seen) => seen.view.find_dentry(dir, name),
            Self::Frozen(frozen) => {
                let (ino, attr) = frozen.lookup(dir, name)?;
                Ok(Dentry { ino, kind: attr.kind })
            }
        }
    }

    pub fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        match self {
            Self::Live(live) => Ok(live.fs.getattr(ino)?.attr),
            Self::View(seen) => seen.view.inode_attr(ino).map(Arc::new),
            Self::Frozen(frozen) => frozen.inode_attr(ino).map(Arc::new),
        }
    }

    /// Returns all entries of a directory, by name.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        match self {
            Self::Live(live) => live.fs.list_entries(dir),
            Self::View(seen) => seen.view.list_entries(dir),
            Self::Frozen(frozen) => {
                let entries = frozen.list_entries(dir)?.into_iter();
                Ok(entries.map(|(name, ino, kind)| DirEntry { name, ino, kind }).collect())
            }
        }
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match self {
            Self::Live(live) => live.fs.readlink(ino),
            Self::View(seen) => seen.view.readlink(ino),
            Self::Frozen(frozen) => frozen.readlink(ino),
        }
    }

    /// Returns an extended attribute, or `None` if it does not exist.
    pub fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = match self {
            Self::Live(live) => live.fs.getxattr(ino, name).map(|value| value.to_vec()),
            Self::View(seen) => seen.view.getxattr(ino, name).map(|value| value.to_vec()),
            Self::Frozen(frozen) => frozen.getxattr(ino, name),
        };
        match value {
            Ok(value) => Ok(Some(value)),
            Err(FsError::Posix(Errno::NODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn list_xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        match self {
            Self::Live(live) => live.fs.listxattr(ino),
            Self::View(seen) => seen.view.listxattr(ino),
            Self::Frozen(frozen) => frozen.listxattr(ino),
        }
    }

    /// Reads content from an offset; returns less than requested only at the end.
    pub fn read_content(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        match self {
            Self::Live(live) => live.fs.read(ino, offset, len),
            Self::View(seen) => seen.view.read(ino, offset, len),
            Self::Frozen(frozen) => frozen.read(ino, offset, len),
        }
    }

    /// Returns the next data or hole from an offset on.
    pub fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        match self {
            Self::Live(live) => live.fs.seek_data_or_hole(ino, offset, seek),
            Self::View(seen) => seen.view.seek_data_or_hole(ino, offset, seek),
            Self::Frozen(frozen) => frozen.seek_data_or_hole(ino, offset, seek == SeekTarget::Data),
        }
    }
}

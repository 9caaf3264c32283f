//! What can be read, by inode: a live worktree, a view of it, a snapshot that no live worktree stands beside.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::frozen::FrozenTree;
use vellum_fs::publisher::BackgroundPublisher;
use vellum_fs::{DirEntry, Epoch, FsError, LiveFilesystem, LiveView, Result, SeekTarget};
use vellum_types::{Dentry, Ino, InodeAttr};
use vellum_volume::lease::LeaseKeeper;

use vellum_fs::lease::has_unpublished_state;
use vellum_volume::lease::HeldLease;

use crate::live::LiveStateClaim;

/// A live worktree that is open. Whatever was made from it keeps it open.
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

/// Gives the lease up at the end, so that the worktree can be opened elsewhere at once: if all of it is in the store.
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

/// Where something is read from.
#[derive(Clone)]
pub(crate) enum ReadSource {
    Live(Arc<OpenLiveWorktree>),
    View(Arc<OpenedView>),
    Frozen(Arc<FrozenTree>),
}

impl ReadSource {
    /// Which of its states a live worktree stands on; what does not change has one.
    pub fn current_epoch(&self) -> Epoch {
        match self {
            Self::Live(live) => live.fs.current_epoch(),
            Self::View(_) | Self::Frozen(_) => Epoch::default(),
        }
    }

    /// What a directory holds under a name.
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

    /// All entries of a directory by name.
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

    /// An extended attribute; None if it is not there.
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

    /// Content from an offset on; less than asked for only at the end.
    pub fn read_content(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        match self {
            Self::Live(live) => live.fs.read(ino, offset, len),
            Self::View(seen) => seen.view.read(ino, offset, len),
            Self::Frozen(frozen) => frozen.read(ino, offset, len),
        }
    }

    /// The next data or hole from an offset on.
    pub fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        match self {
            Self::Live(live) => live.fs.seek_data_or_hole(ino, offset, seek),
            Self::View(seen) => seen.view.seek_data_or_hole(ino, offset, seek),
            Self::Frozen(frozen) => frozen.seek_data_or_hole(ino, offset, seek == SeekTarget::Data),
        }
    }
}

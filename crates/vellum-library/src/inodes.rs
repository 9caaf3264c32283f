//! A tree by inode numbers instead of paths: for servers whose clients hold on to a file and not to its name, such as NFS.
//!
//! Nothing follows symlinks, and no number leads out of the tree. Errors are those of the filesystem, with `ESTALE` for a number
//! that no inode has. Deliberately absent: permission checks, as everywhere in this crate.

mod changes;

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::{Epoch, EpochGuard, FilesystemStatistics, FsError, Result as FsResult};
use vellum_types::{FileKind, Ino};

use crate::error::Result;
use crate::metadata::{DirEntry, Metadata};
use crate::source::{OpenLiveWorktree, ReadSource};
use crate::tree::allow_missing;

pub use changes::{EntryOwner, EntryPlace, NodeKind};

/// The inodes of a whole tree. It can be cloned, and shared among threads.
#[derive(Clone)]
pub struct TreeInodes {
    source: ReadSource,
    /// The epoch of a live worktree to which the numbers belong.
    epoch: Epoch,
}

impl TreeInodes {
    /// The number of the root directory.
    pub const ROOT: u64 = Ino::ROOT.0;

    pub(crate) fn new(source: ReadSource) -> Self {
        let epoch = source.current_epoch();
        Self { source, epoch }
    }

    /// Returns the attributes of an inode.
    pub fn stat(&self, ino: u64) -> Result<Metadata> {
        Ok(self.in_epoch(|| self.read_metadata(Ino(ino)))?)
    }

    /// Returns the attributes of what a directory holds under a name; `.` is the directory itself, `..` its parent, and the
    /// root its own.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Metadata> {
        Ok(self.in_epoch(|| {
            let found = match name {
                b"." => Ino(self.expect_dir(Ino(dir))?.ino()),
                b".." => self.find_parent(Ino(dir))?,
                name => self.source.state().find_dentry(Ino(dir), name)?.ino,
            };
            // Removed after its name was read: then the name is not there.
            self.read_metadata(found).map_err(|error| match error {
                FsError::Posix(Errno::STALE) => Errno::NOENT.into(),
                error => error,
            })
        })?)
    }

    /// Returns the number that a directory holds under a name, without attributes; `None` if there is no such name.
    pub fn find_entry(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let found = self.in_epoch(|| self.source.state().find_dentry(Ino(dir), name));
        Ok(allow_missing(found, Errno::NOENT)?.map(|found| found.ino.0))
    }

    /// Returns the entries of a directory, ordered by name, without `.` and `..`.
    pub fn list(&self, dir: u64) -> Result<Vec<DirEntry>> {
        let list = || {
            self.expect_dir(Ino(dir))?;
            self.source.state().list_entries(Ino(dir))
        };
        Ok(self.in_epoch(list)?.into_iter().map(DirEntry::from).collect())
    }

    /// Returns the number of the directory above a directory; the root is above itself.
    pub fn parent(&self, dir: u64) -> Result<u64> {
        Ok(self.in_epoch(|| self.find_parent(Ino(dir)))?.0)
    }

    /// Reads content of a file. Returns fewer than `len` bytes only at its end.
    pub fn read(&self, ino: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.in_epoch(|| {
            self.expect_file(Ino(ino))?;
            self.source.state().read(Ino(ino), offset, len)
        })?)
    }

    /// Returns the target of a symlink.
    pub fn read_link(&self, ino: u64) -> Result<Vec<u8>> {
        Ok(self.in_epoch(|| {
            self.read_metadata(Ino(ino))?;
            self.source.state().readlink(Ino(ino))
        })?)
    }

    /// Returns how many bytes an inode takes: of a file, those that are not in holes.
    pub fn stored_bytes(&self, of: &Metadata) -> Result<u64> {
        Ok(self.in_epoch(|| self.source.state().stored_bytes(Ino(of.ino()), of.attributes()))?)
    }

    /// Returns the space of a live worktree: its quota, or the disk of its state directory. `None` of what cannot be written.
    pub fn statistics(&self) -> Result<Option<FilesystemStatistics>> {
        match &self.source {
            ReadSource::Live(live) => Ok(Some(live.fs.attributes().statfs()?)),
            ReadSource::View(_) | ReadSource::Frozen(_) => Ok(None),
        }
    }

    /// Calls a function while the worktree is not restored. Fails with a stale handle if it has been.
    fn in_epoch<T>(&self, body: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        let _entered = self.enter_epoch();
        // Under the guard. After a restore a number may be another file's.
        if self.epoch == self.source.current_epoch() { body() } else { Err(Errno::STALE.into()) }
    }

    fn enter_epoch(&self) -> Option<EpochGuard<'_>> {
        match &self.source {
            ReadSource::Live(live) => Some(live.fs.epochs().enter_epoch()),
            ReadSource::View(_) | ReadSource::Frozen(_) => None,
        }
    }

    /// The worktree, if it can be changed.
    fn live_worktree(&self) -> FsResult<&Arc<OpenLiveWorktree>> {
        match &self.source {
            ReadSource::Live(live) => Ok(live),
            ReadSource::View(_) | ReadSource::Frozen(_) => Err(Errno::ROFS.into()),
        }
    }

    fn read_metadata(&self, ino: Ino) -> FsResult<Metadata> {
        // That of the tree's own record, which no name leads to.
        if ino == Ino::SUPER {
            return Err(Errno::STALE.into());
        }
        let attr = match &self.source {
            // Nothing is missing in a snapshot that a name leads to: there, it would be damage. A number leads anywhere.
            ReadSource::Frozen(tree) => Arc::new(tree.inode_attr(ino)?.ok_or(Errno::STALE)?),
            ReadSource::Live(_) | ReadSource::View(_) => self.source.state().inode_attr(ino)?,
        };
        Ok(Metadata::new(ino, attr))
    }

    fn find_parent(&self, dir: Ino) -> FsResult<Ino> {
        let parent = self.expect_dir(dir)?.attributes().parent;
        Ok(if parent == Ino::SUPER { dir } else { parent })
    }

    fn expect_dir(&self, ino: Ino) -> FsResult<Metadata> {
        let found = self.read_metadata(ino)?;
        if found.is_dir() { Ok(found) } else { Err(Errno::NOTDIR.into()) }
    }

    fn expect_file(&self, ino: Ino) -> FsResult<()> {
        match self.read_metadata(ino)?.kind() {
            FileKind::File => Ok(()),
            FileKind::Dir => Err(Errno::ISDIR.into()),
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Err(Errno::INVAL.into()),
        }
    }
}

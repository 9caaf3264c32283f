//! What live worktrees, views and snapshots have in common: reading.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use vellum_fs::FsError;
use vellum_types::{Dentry, FileKind};

use crate::error::{Error, Result};
use crate::file::File;
use crate::metadata::{DirEntry, Metadata};
use crate::options::OpenOptions;
use crate::paths::PathReader;
use crate::walk::TreeWalk;

pub(crate) mod sealed {
    use super::PathReader;
    use vellum_types::Dentry;

    /// Kept to this crate: what a [`super::Tree`] reads from.
    pub trait RootedTree {
        /// What is read.
        fn reader(&self) -> &PathReader;
        /// The same from a directory on that was just found.
        #[must_use]
        fn rooted(&self, root: Dentry) -> Self;
    }
}

/// A tree of files that can be read: a live worktree, a view, a snapshot, or a directory of one of these.
///
/// Paths are relative to its root, with or without a slash before them, and never lead out of it; the empty one is the
/// root itself. Each operation that
/// looks up several names does so one after the other: in a live worktree others may change it in between, in a view
/// or a snapshot nobody can.
pub trait Tree: sealed::RootedTree {
    /// What stands at a path, symlinks followed.
    fn stat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        self.reader()
            .resolve(path, true)
            .and_then(|at| metadata(self.reader(), at))
            .map_err(Error::at("stat", path))
    }

    /// What stands at a path; if that is a symlink, the symlink.
    fn lstat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        self.reader()
            .resolve(path, false)
            .and_then(|at| metadata(self.reader(), at))
            .map_err(Error::at("stat", path))
    }

    /// Whether something stands at a path, symlinks followed.
    fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        match self.reader().resolve(path, true) {
            Ok(_) => Ok(true),
            Err(FsError::Posix(Errno::NOENT | Errno::NOTDIR | Errno::STALE)) => Ok(false),
            Err(error) => Err(Error::at("look for", path)(error)),
        }
    }

    /// The entries of a directory, by name, without `.` and `..`.
    fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let path = bytes(&path);
        let read = || {
            let _entered = self.reader().enter();
            let at = dir(self.reader().resolve(path, true)?)?;
            self.reader().source.entries(at.ino)
        };
        let entries = read().map_err(Error::at("list", path))?;
        Ok(entries.into_iter().map(DirEntry::from).collect())
    }

    /// Opens a file to read it.
    fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = bytes(&path);
        let open = || {
            let file = {
                let _entered = self.reader().enter();
                File::hold(
                    &self.reader().source,
                    self.reader().resolve(path, true)?,
                    OpenOptions::new().read(true),
                )?
            };
            file.opened()
        };
        open().map_err(Error::at("open", path))
    }

    /// The whole content of a file.
    fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = bytes(&path);
        let read = || {
            let _entered = self.reader().enter();
            let at = self.reader().resolve(path, true)?;
            let size = self.reader().source.attr(at.ino)?.size;
            let mut content = Vec::new();
            loop {
                let left = usize::try_from(size.saturating_sub(content.len() as u64)).unwrap_or(usize::MAX);
                // One more than there should be: it may have grown.
                let want = left.saturating_add(1).min(READ_AT_ONCE);
                let part = self.reader().source.read(at.ino, content.len() as u64, want)?;
                content.extend_from_slice(&part);
                if part.len() < want {
                    return Ok(content);
                }
            }
        };
        read().map_err(Error::at("read", path))
    }

    /// Where a symlink leads to.
    fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        let read = || self.reader().source.readlink(self.reader().resolve(path, false)?.ino);
        let target = read().map_err(Error::at("read the symlink", path))?;
        Ok(std::ffi::OsStr::from_bytes(&target).into())
    }

    /// An extended attribute, such as `user.origin`; None if it is not there. Symlinks are followed.
    fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        let read = || self.reader().source.xattr(self.reader().resolve(path, true)?.ino, name.as_ref());
        read().map_err(Error::at("read an extended attribute of", path))
    }

    /// The names of all extended attributes, in order. Symlinks are followed.
    fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        let read = || self.reader().source.xattrs(self.reader().resolve(path, true)?.ino);
        read().map_err(Error::at("list the extended attributes of", path))
    }

    /// Everything at and below a path: directories before what is in them, names in order. Symlinks are not
    /// followed.
    fn walk(&self, path: impl AsRef<Path>) -> TreeWalk {
        TreeWalk::new(self.reader().clone(), path.as_ref().into())
    }

    /// The tree below a directory. No path leads out of it, nor does a symlink.
    fn sub(&self, path: impl AsRef<Path>) -> Result<Self>
    where
        Self: Sized,
    {
        let path = bytes(&path);
        let _entered = self.reader().enter();
        let at = self.reader().resolve(path, true).and_then(dir).map_err(Error::at("open", path))?;
        Ok(self.rooted(at))
    }
}

/// Bytes that are read at once.
const READ_AT_ONCE: usize = 8 << 20;

/// The bytes of a path.
pub(crate) fn bytes<P: AsRef<Path> + ?Sized>(path: &P) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

pub(crate) fn metadata(reader: &PathReader, at: Dentry) -> vellum_fs::Result<Metadata> {
    Ok(Metadata::new(at.ino, reader.source.attr(at.ino)?))
}

/// What must be a directory.
pub(crate) fn dir(at: Dentry) -> vellum_fs::Result<Dentry> {
    if at.kind == FileKind::Dir { Ok(at) } else { Err(Errno::NOTDIR.into()) }
}

//! Reading: the operations that live worktrees, views and snapshots have in common.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use vellum_fs::FsError;
use vellum_types::{Dentry, FileKind};

use crate::error::{Error, Result};
use crate::file::File;
use crate::metadata::{DirEntry, DirPage, Metadata, PageEntry};
use crate::options::OpenOptions;
use crate::paths::PathReader;
use crate::walk::TreeWalk;

pub(crate) mod sealed {
    use super::PathReader;
    use vellum_types::Dentry;

    /// Private to this crate: the source that a [`super::Tree`] reads from.
    pub trait RootedTree {
        /// Returns the reader.
        fn reader(&self) -> &PathReader;
        /// Returns the same source with another root, a directory that was just found.
        #[must_use]
        fn with_root(&self, root: Dentry) -> Self;
    }
}

/// A tree of files that can be read: a live worktree, a view, a snapshot, or a directory of one of these.
///
/// Paths are relative to its root, with or without a leading slash, and never lead out of it; the empty path is the
/// root itself. An operation that looks up several names does so one after another: in a live worktree others may
/// change it in between; views and snapshots never change.
pub trait Tree: sealed::RootedTree {
    /// Returns the attributes of the entry at a path. Follows symlinks.
    fn stat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = path_bytes(&path);
        // A live worktree is not restored between the lookup and the reading, so both are of one state.
        let _entered = self.reader().enter_epoch();
        self.reader()
            .resolve_path(path, true)
            .and_then(|at| read_metadata(self.reader(), at))
            .map_err(Error::for_action("stat", path))
    }

    /// Returns the attributes of the entry at a path. Does not follow a symlink at the end.
    fn lstat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        self.reader()
            .resolve_path(path, false)
            .and_then(|at| read_metadata(self.reader(), at))
            .map_err(Error::for_action("stat", path))
    }

    /// Returns whether the path exists. Follows symlinks.
    fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        match self.reader().resolve_path(path, true) {
            Ok(_) => Ok(true),
            // A file that vanishes during the lookup does not exist any more.
            Err(FsError::Posix(Errno::NOENT | Errno::NOTDIR | Errno::STALE)) => Ok(false),
            Err(error) => Err(Error::for_action("look for", path)(error)),
        }
    }

    /// Returns the entries of a directory, ordered by name, without `.` and `..`.
    fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let path = path_bytes(&path);
        let read = || {
            let _entered = self.reader().enter_epoch();
            let at = expect_dir(self.reader().resolve_path(path, true)?)?;
            self.reader().source.state().list_entries(at.ino)
        };
        let entries = read().map_err(Error::for_action("list", path))?;
        Ok(entries.into_iter().map(DirEntry::from).collect())
    }

    /// Returns a part of a directory with the attributes of its entries: those after a name, at most `limit`. In a live
    /// worktree, an entry that vanishes meanwhile is left out.
    fn read_dir_page(&self, path: impl AsRef<Path>, after: Option<&[u8]>, limit: usize) -> Result<DirPage> {
        let path = path_bytes(&path);
        let read = || {
            let _entered = self.reader().enter_epoch();
            let at = expect_dir(self.reader().resolve_path(path, true)?)?;
            let all = self.reader().source.state().list_entries(at.ino)?;
            // By the name and not by a number, so that a page goes on at the right place although entries were added or
            // removed.
            let start = after.map_or(0, |after| all.partition_point(|entry| entry.name.as_slice() <= after));
            let mut page = DirPage { entries: Vec::new(), total: all.len(), more: all.len() - start > limit };
            for entry in all.into_iter().skip(start).take(limit) {
                let found = read_metadata(self.reader(), Dentry { ino: entry.ino, kind: entry.kind });
                match found {
                    Ok(metadata) => {
                        page.entries.push(PageEntry { name: OsString::from_vec(entry.name), metadata });
                    }
                    // Removed since the directory was listed: the page is right without it.
                    Err(FsError::Posix(Errno::NOENT | Errno::STALE)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(page)
        };
        read().map_err(Error::for_action("list", path))
    }

    /// Opens a file for reading.
    fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path_bytes(&path);
        let open = || {
            let file = {
                let _entered = self.reader().enter_epoch();
                File::hold_open(
                    &self.reader().source,
                    self.reader().resolve_path(path, true)?,
                    OpenOptions::new().read(true),
                )?
            };
            // After the epoch was left: it enters the epoch itself, and a thread must not do so twice.
            file.finish_open()
        };
        open().map_err(Error::for_action("open", path))
    }

    /// Returns the whole content of a file.
    fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path_bytes(&path);
        let read = || {
            let _entered = self.reader().enter_epoch();
            let at = self.reader().resolve_path(path, true)?;
            // The size is only a hint of how much to ask for: in a live worktree others write meanwhile.
            let size = self.reader().source.state().inode_attr(at.ino)?.size;
            let mut content = Vec::new();
            loop {
                let left = usize::try_from(size.saturating_sub(content.len() as u64)).unwrap_or(usize::MAX);
                // One more than there should be: it may have grown.
                let want = left.saturating_add(1).min(READ_AT_ONCE);
                let part = self.reader().source.state().read(at.ino, content.len() as u64, want)?;
                content.extend_from_slice(&part);
                if part.len() < want {
                    return Ok(content);
                }
            }
        };
        read().map_err(Error::for_action("read", path))
    }

    /// Returns the target of a symlink.
    fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        let read = || self.reader().source.state().readlink(self.reader().resolve_path(path, false)?.ino);
        let target = read().map_err(Error::for_action("read the symlink", path))?;
        Ok(std::ffi::OsStr::from_bytes(&target).into())
    }

    /// Returns an extended attribute, such as `user.origin`, or `None` if it does not exist. Follows symlinks.
    fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        let read = || {
            self.reader().source.state().getxattr(self.reader().resolve_path(path, true)?.ino, name.as_ref())
        };
        let value = allow_missing(read(), Errno::NODATA);
        let value = value.map_err(Error::for_action("read an extended attribute of", path))?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Returns the names of all extended attributes, in order. Follows symlinks.
    fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        let read = || self.reader().source.state().listxattr(self.reader().resolve_path(path, true)?.ino);
        read().map_err(Error::for_action("list the extended attributes of", path))
    }

    /// Walks over everything at and below a path: directories before their content, names in order. Does not follow
    /// symlinks.
    fn walk(&self, path: impl AsRef<Path>) -> TreeWalk {
        TreeWalk::new(self.reader().clone(), path.as_ref().into())
    }

    /// Returns the tree below a directory. Neither a path nor a symlink leads out of it.
    fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self>
    where
        Self: Sized,
    {
        let path = path_bytes(&path);
        let _entered = self.reader().enter_epoch();
        let at = self
            .reader()
            .resolve_path(path, true)
            .and_then(expect_dir)
            .map_err(Error::for_action("open", path))?;
        Ok(self.with_root(at))
    }
}

/// Bytes that are read in one step.
const READ_AT_ONCE: usize = 8 << 20;

/// The bytes of a path.
pub(crate) fn path_bytes<P: AsRef<Path> + ?Sized>(path: &P) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

pub(crate) fn read_metadata(reader: &PathReader, at: Dentry) -> vellum_fs::Result<Metadata> {
    Ok(Metadata::new(at.ino, reader.source.state().inode_attr(at.ino)?))
}

/// Turns the error number `missing` into `None`.
pub(crate) fn allow_missing<T>(found: vellum_fs::Result<T>, missing: Errno) -> vellum_fs::Result<Option<T>> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(FsError::Posix(errno)) if errno == missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails if the inode is not a directory.
pub(crate) fn expect_dir(at: Dentry) -> vellum_fs::Result<Dentry> {
    if at.kind == FileKind::Dir { Ok(at) } else { Err(Errno::NOTDIR.into()) }
}

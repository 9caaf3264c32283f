//! What can be read of every filesystem state by inode, whether it is published, live, or of an earlier moment.
//!
//! Deliberately absent: paths, which belong to those who read; writing.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr};

use super::FsTree;
use crate::error::VolumeError;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it names.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not; the end is one.
    Hole,
}

/// Reads one filesystem state by inode. What POSIX describes as a failure is an error number in `E`.
pub trait StateReader<E> {
    /// Returns the attributes of an inode.
    fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>, E>;

    /// Returns what a directory holds under a name. Fails with `ENOENT` if that is nothing.
    fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry, E>;

    /// Returns all entries of a directory by name, without `.` and `..`.
    fn list_entries(&self, dir: Ino) -> Result<Vec<DirectoryEntry>, E>;

    /// Returns the target of a symlink. Fails with `EINVAL` for anything else.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, E>;

    /// Returns the value of an extended attribute. Fails with `ENODATA` if there is none.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, E>;

    /// Returns the names of an inode's extended attributes, in order.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, E>;

    /// Reads content; returns fewer than `len` bytes only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>, E>;

    /// Returns the first offset from `offset` on with data or in a hole. Fails with `ENXIO` if there is none.
    fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64, E>;

    /// Returns how many bytes an inode takes: of a file, those that are not in holes.
    fn stored_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64, E>;
}

impl<E: From<VolumeError> + From<Errno>> StateReader<E> for FsTree {
    fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>, E> {
        Ok(Arc::new(self.expect_inode_attr(ino)?))
    }

    fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry, E> {
        Ok(self.lookup_dentry(dir, name)?.ok_or(Errno::NOENT)?)
    }

    fn list_entries(&self, dir: Ino) -> Result<Vec<DirectoryEntry>, E> {
        let entries = FsTree::list_entries(self, dir)?.into_iter();
        Ok(entries
            .map(|(name, dentry)| DirectoryEntry { name, ino: dentry.ino, kind: dentry.kind })
            .collect())
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, E> {
        let attr = self.expect_inode_attr(ino)?;
        if attr.kind == FileKind::Symlink { Ok(attr.target) } else { Err(Errno::INVAL.into()) }
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, E> {
        let file = self.file_content(ino)?;
        let found = file.xattrs.iter().find(|(known, _)| known == name);
        Ok(found.map(|(_, value)| value.as_slice().into()).ok_or(Errno::NODATA)?)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, E> {
        Ok(self.file_content(ino)?.xattrs.iter().map(|(name, _)| name.clone()).collect())
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>, E> {
        Ok(self.read_content(ino, offset, len)?)
    }

    fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64, E> {
        let file = self.file_content(ino)?;
        Ok(FsTree::find_data_or_hole(self, &file, offset, seek)?.ok_or(Errno::NXIO)?)
    }

    fn stored_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64, E> {
        // Only extents have holes between them: all else takes as much as it is long.
        if attr.kind != FileKind::File || attr.inline.is_some() || attr.size == 0 {
            return Ok(attr.size);
        }
        let file = self.file_content(ino)?;
        Ok(self.count_stored_bytes(&file)?)
    }
}

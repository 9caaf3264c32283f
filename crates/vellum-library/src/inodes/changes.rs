//! What changes a live worktree. In anything else each of these fails with `EROFS`.

use vellum_fs::{
    AttributeChanges, InodeAttributes, LiveFilesystem, RenameFlags, RequestCaller, Result as FsResult,
};
use vellum_types::{FileKind, Ino};

use super::TreeInodes;
use crate::error::Result;
use crate::metadata::Metadata;

/// The user and the group to which new entries belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryOwner {
    /// The user.
    pub uid: u32,
    /// The group, unless the directory has the set-group-id bit.
    pub gid: u32,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace<'a> {
    /// The number of the directory.
    pub dir: u64,
    /// The name.
    pub name: &'a [u8],
}

/// What is made that is neither a file nor a directory nor a symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with its number.
    CharDevice(u64),
    /// A block device with its number.
    BlockDevice(u64),
}

impl NodeKind {
    fn kind(self) -> FileKind {
        match self {
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Fifo | Self::Socket => 0,
            Self::CharDevice(number) | Self::BlockDevice(number) => number,
        }
    }
}

impl From<EntryOwner> for RequestCaller {
    fn from(owner: EntryOwner) -> Self {
        Self { uid: owner.uid, gid: owner.gid, umask: 0 }
    }
}

impl TreeInodes {
    /// Makes an empty file, whose name must be free.
    pub fn create_file(&self, at: EntryPlace<'_>, mode: u32, owner: EntryOwner) -> Result<Metadata> {
        self.make(|fs| fs.names().create(Ino(at.dir), at.name, mode, owner.into()))
    }

    /// Makes an empty directory.
    pub fn create_dir(&self, at: EntryPlace<'_>, mode: u32, owner: EntryOwner) -> Result<Metadata> {
        self.make(|fs| fs.names().mkdir(Ino(at.dir), at.name, mode, owner.into()))
    }

    /// Makes a symlink, whose target need not exist.
    pub fn create_symlink(&self, at: EntryPlace<'_>, target: &[u8], owner: EntryOwner) -> Result<Metadata> {
        self.make(|fs| fs.names().symlink(Ino(at.dir), at.name, target, owner.into()))
    }

    /// Makes a pipe, a socket or a device.
    pub fn create_node(
        &self,
        at: EntryPlace<'_>,
        node: NodeKind,
        mode: u32,
        owner: EntryOwner,
    ) -> Result<Metadata> {
        self.make(|fs| fs.names().mknod(Ino(at.dir), at.name, node.kind(), mode, node.number(), owner.into()))
    }

    /// Adds a name to anything but a directory.
    pub fn link(&self, ino: u64, to: EntryPlace<'_>) -> Result<Metadata> {
        self.make(|fs| fs.names().link(Ino(ino), Ino(to.dir), to.name))
    }

    /// Removes a name of anything but a directory, for a user.
    pub fn unlink(&self, at: EntryPlace<'_>, uid: u32) -> Result<()> {
        Ok(self.change(|fs| fs.names().unlink(Ino(at.dir), at.name, uid))?)
    }

    /// Removes an empty directory, for a user.
    pub fn remove_dir(&self, at: EntryPlace<'_>, uid: u32) -> Result<()> {
        Ok(self.change(|fs| fs.names().rmdir(Ino(at.dir), at.name, uid))?)
    }

    /// Renames an entry. What has the new name is replaced; a directory only if it is empty.
    pub fn rename(&self, from: EntryPlace<'_>, to: EntryPlace<'_>, uid: u32) -> Result<()> {
        let flags = RenameFlags { uid, ..RenameFlags::default() };
        Ok(self.change(|fs| fs.names().rename(Ino(from.dir), from.name, Ino(to.dir), to.name, flags))?)
    }

    /// Writes content of a file. Returns the number of bytes, which is smaller only at the largest size of files. As on Linux,
    /// set-id bits are cleared.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<usize> {
        Ok(self.change(|fs| {
            self.expect_file(Ino(ino))?;
            fs.content().write(Ino(ino), offset, data, true)
        })?)
    }

    /// Sets all of the given attributes, or none if it fails.
    pub fn set_attributes(
        &self,
        ino: u64,
        changes: &AttributeChanges,
        owner: EntryOwner,
    ) -> Result<Metadata> {
        Ok(self.change(|fs| {
            // So that a number of no inode is stale here, too.
            self.read_metadata(Ino(ino))?;
            fs.attributes().setattr(Ino(ino), changes, owner.into())?;
            self.read_metadata(Ino(ino))
        })?)
    }

    /// Waits until everything that was changed survives a power cut of this machine.
    pub fn sync(&self) -> Result<()> {
        Ok(self.live_worktree()?.fs.content().sync_all()?)
    }

    fn make(&self, make: impl FnOnce(&LiveFilesystem) -> FsResult<InodeAttributes>) -> Result<Metadata> {
        let made = self.change(make)?;
        Ok(Metadata::new(made.ino, made.attr))
    }

    fn change<T>(&self, change: impl FnOnce(&LiveFilesystem) -> FsResult<T>) -> FsResult<T> {
        let live = self.live_worktree()?;
        self.in_epoch(|| change(&live.fs))
    }
}

//! Requests that change the live worktree, decoded.

use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use vellum_fs::{
    AllocateMode, AttributeChanges, FsError, InodeAttributes, LiveFilesystem, RenameFlags, RequestCaller,
    Result, XattrFlags,
};
use vellum_host::clock::current_time;
use vellum_types::{FileKind, Ino, InodeAttr};

use super::{FuseAdapter, InodeOwner};
use crate::adapter::view::{hold_live_entry, new_live_entry, new_plain_entry};
use crate::attr::{file_kind_from_mode, unpack_device};
use crate::node::NodePlace;
use crate::virt;
use crate::wire::{EntryAnswer, WriteFlags};

/// Permission bits, set-id bits and the sticky bit: of what the kernel calls a mode.
const PERMISSIONS: u32 = 0o7777;

/// Of these: set-user-id and set-group-id.
const SET_IDS: u32 = 0o6000;

/// A directory and a name in it that may be made or taken away.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModifiableName<'a> {
    pub dir: u64,
    pub name: &'a [u8],
}

/// A file to be made with `mknod`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MknodRequest {
    pub mode: u32,
    pub device: u32,
}

/// A piece of a file, to be copied or filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileRange {
    pub node: u64,
    pub offset: u64,
}

impl FuseAdapter {
    /// The live directory that `at` names; the virtual directory's name is taken.
    fn live_dir(&self, at: ModifiableName<'_>) -> Result<(&Arc<LiveFilesystem>, Ino)> {
        if at.dir == Ino::ROOT.0 && at.name == virt::NAME {
            return Err(Errno::PERM.into());
        }
        self.live_inode(at.dir)
    }

    pub(super) fn mknod(
        &self,
        at: ModifiableName<'_>,
        new: MknodRequest,
        caller: RequestCaller,
    ) -> Result<EntryAnswer> {
        let (fs, dir) = self.live_dir(at)?;
        let kind = file_kind_from_mode(new.mode).ok_or(Errno::INVAL)?;
        hold_live_entry(
            fs,
            &fs.mknod(dir, at.name, kind, new.mode & PERMISSIONS, unpack_device(new.device), caller)?,
        )
    }

    pub(super) fn mkdir(
        &self,
        at: ModifiableName<'_>,
        mode: u32,
        caller: RequestCaller,
    ) -> Result<EntryAnswer> {
        let (fs, dir) = self.live_dir(at)?;
        hold_live_entry(fs, &fs.mkdir(dir, at.name, mode & PERMISSIONS, caller)?)
    }

    pub(super) fn symlink(
        &self,
        at: ModifiableName<'_>,
        target: &[u8],
        caller: RequestCaller,
    ) -> Result<EntryAnswer> {
        let (fs, dir) = self.live_dir(at)?;
        hold_live_entry(fs, &fs.symlink(dir, at.name, target, caller)?)
    }

    pub(super) fn link(&self, node: u64, at: ModifiableName<'_>) -> Result<EntryAnswer> {
        let (fs, dir) = self.live_dir(at)?;
        match self.inode_owner(node)? {
            InodeOwner::Live(_, ino) => hold_live_entry(fs, &fs.link(ino, dir, at.name)?),
            InodeOwner::Past(..)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_)
            | InodeOwner::Removed(_) => Err(Errno::XDEV.into()),
        }
    }

    pub(super) fn unlink(&self, at: ModifiableName<'_>) -> Result<()> {
        let (fs, dir) = self.live_dir(at)?;
        fs.unlink(dir, at.name)
    }

    pub(super) fn rmdir(&self, at: ModifiableName<'_>) -> Result<()> {
        let (fs, dir) = self.live_dir(at)?;
        let removed = fs.lookup(dir, at.name);
        fs.rmdir(dir, at.name)?;
        self.keep_removed_dir(fs, removed.ok());
        Ok(())
    }

    /// Keeps a directory that has lost its name for those who have it open or stand in it. The kernel, which lets
    /// nobody else change the names meanwhile, has asked for it before.
    fn keep_removed_dir(&self, fs: &LiveFilesystem, node: Option<InodeAttributes>) {
        let Some(node) = node.filter(|node| node.attr.kind == FileKind::Dir) else { return };
        if let Some(number) = NodePlace::Main(fs.current_epoch(), node.ino).to_node() {
            self.removed.keep_dir(number, &node.attr, current_time());
        }
    }

    /// Makes a file without a name, which the kernel opens by itself.
    pub(super) fn tmpfile(&self, dir: u64, mode: u32, caller: RequestCaller) -> Result<EntryAnswer> {
        let (fs, dir) = self.live_inode(dir)?;
        hold_live_entry(fs, &fs.tmpfile(dir, mode & PERMISSIONS, caller)?)
    }

    pub(super) fn rename(
        &self,
        from: ModifiableName<'_>,
        to: ModifiableName<'_>,
        flags: u32,
        caller: RequestCaller,
    ) -> Result<()> {
        let (fs, from_dir) = self.live_dir(from)?;
        let (_, to_dir) = self.live_dir(to)?;
        use rustix::fs::RenameFlags as Linux;
        let flags = Linux::from_bits_retain(flags);
        if !(Linux::NOREPLACE | Linux::EXCHANGE | Linux::WHITEOUT).contains(flags) {
            return Err(Errno::INVAL.into());
        }
        let rename_flags = RenameFlags {
            noreplace: flags.contains(Linux::NOREPLACE),
            exchange: flags.contains(Linux::EXCHANGE),
            whiteout: flags.contains(Linux::WHITEOUT).then_some(caller),
        };
        let replaced = if rename_flags.exchange { None } else { fs.lookup(to_dir, to.name).ok() };
        fs.rename(from_dir, from.name, to_dir, to.name, rename_flags)?;
        // What was renamed to itself is still there.
        let gone = replaced.filter(|node| fs.getattr(node.ino).is_err());
        self.keep_removed_dir(fs, gone);
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        node: u64,
        changes: &AttributeChanges,
        caller: RequestCaller,
    ) -> Result<EntryAnswer> {
        let changes = AttributeChanges { mode: changes.mode.map(|mode| mode & PERMISSIONS), ..*changes };
        let times_only = changes.mode.is_none()
            && changes.uid.is_none()
            && changes.gid.is_none()
            && changes.size.is_none();
        if let Some(attr) = self.removed.set_attributes(node, &changes, current_time()) {
            return new_plain_entry(NodePlace::from_node(node), &attr);
        }
        let set = || {
            let (fs, ino) = self.live_inode(node)?;
            // The kernel writes the times of what it forgets back, also of what has no name: nobody will ask for them.
            let held = if times_only { Some(fs.getattr(ino)?) } else { None };
            match held.filter(|held| held.attr.nlink == 0) {
                Some(nameless) => Ok(nameless),
                None => fs.setattr(ino, &changes, caller),
            }
        };
        match set() {
            // The kernel writes back the times of a file that is gone: an error would be told to the next `syncfs`.
            Err(FsError::Posix(Errno::STALE)) if times_only => new_plain_entry(
                NodePlace::from_node(node),
                &InodeAttr { nlink: 0, ..InodeAttr::new(FileKind::File, 0) },
            ),
            done => {
                let (fs, _) = self.live_inode(node)?;
                Ok(EntryAnswer {
                    patience: self.cache_timeout(node),
                    ..new_live_entry(fs, NodePlace::from_node(node), &done?)?
                })
            }
        }
    }

    pub(super) fn write(&self, at: FileRange, data: &[u8], flags: WriteFlags) -> Result<u32> {
        let (fs, ino) = self.live_inode(at.node)?;
        // What the kernel kept it wrote earlier, and it tells when by itself.
        let written = if flags.is_write_back() {
            // Of a failure to write back the kernel tells a program that closes the file only that there was one, or
            // that there was no room.
            fs.write_back(ino, at.offset, data).map_err(|error| match error {
                FsError::Posix(Errno::DQUOT) => FsError::Posix(Errno::NOSPC),
                error => error,
            })?
        } else {
            fs.write(ino, at.offset, data, flags.should_clear_set_ids())?
        };
        self.tally.count_written_bytes(written);
        u32::try_from(written).map_err(|_| Errno::IO.into())
    }

    /// Whether a live file runs as somebody else.
    pub(super) fn has_set_ids(&self, node: u64) -> bool {
        let attr = self.live_inode(node).and_then(|(fs, ino)| fs.getattr(ino));
        attr.is_ok_and(|node| node.attr.mode & SET_IDS != 0)
    }

    /// Makes a file durable. Of the root directory: everything, as the kernel tells a FUSE filesystem of no other way
    /// to ask for that.
    pub(super) fn fsync(&self, node: u64, data_only: bool) -> Result<()> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, Ino::ROOT) => fs.sync_all(),
            InodeOwner::Live(fs, ino) => fs.fsync(ino, data_only),
            InodeOwner::Past(..)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_)
            | InodeOwner::Removed(_) => Ok(()),
        }
    }

    pub(super) fn setxattr(
        &self,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        drops_set_gid: bool,
    ) -> Result<()> {
        let (fs, ino) = self.live_inode(node)?;
        let flags = rustix::fs::XattrFlags::from_bits_retain(flags);
        let flags = XattrFlags {
            create: flags.contains(rustix::fs::XattrFlags::CREATE),
            replace: flags.contains(rustix::fs::XattrFlags::REPLACE),
            drops_set_gid,
        };
        fs.setxattr(ino, name, value, flags)
    }

    pub(super) fn removexattr(&self, node: u64, name: &[u8]) -> Result<()> {
        let (fs, ino) = self.live_inode(node)?;
        fs.removexattr(ino, name)
    }

    pub(super) fn fallocate(&self, at: FileRange, len: u64, mode: u32, caller: RequestCaller) -> Result<()> {
        let (fs, ino) = self.live_inode(at.node)?;
        let mode = FallocateFlags::from_bits_retain(mode);
        let known = FallocateFlags::KEEP_SIZE
            | FallocateFlags::PUNCH_HOLE
            | FallocateFlags::ZERO_RANGE
            | FallocateFlags::COLLAPSE_RANGE
            | FallocateFlags::INSERT_RANGE;
        if !known.contains(mode) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mode = AllocateMode {
            keep_size: mode.contains(FallocateFlags::KEEP_SIZE),
            punch_hole: mode.contains(FallocateFlags::PUNCH_HOLE),
            zero_range: mode.contains(FallocateFlags::ZERO_RANGE),
            collapse_range: mode.contains(FallocateFlags::COLLAPSE_RANGE),
            insert_range: mode.contains(FallocateFlags::INSERT_RANGE),
            drops_set_ids_for: (caller.uid != 0).then_some(caller),
        };
        fs.fallocate(ino, mode, at.offset, len)
    }

    /// Copies within the live worktree, sharing what can be shared; between others programs copy bytes.
    pub(super) fn copy_range(&self, from: FileRange, to: FileRange, len: u64) -> Result<u64> {
        let (fs, to_ino) = self.live_inode(to.node)?;
        let InodeOwner::Live(_, from_ino) = self.inode_owner(from.node)? else {
            return Err(Errno::XDEV.into());
        };
        fs.copy_range(from_ino, from.offset, to_ino, to.offset, len)
    }
}

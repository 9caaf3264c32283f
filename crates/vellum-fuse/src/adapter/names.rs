//! Requests that create, move and remove names of the live worktree.

use std::sync::Arc;

use rustix::fs::RenameFlags as LinuxRenameFlags;
use rustix::io::Errno;
use vellum_fs::{BareInode, InodeAttributes, LiveFilesystem, RenameFlags, Result, StateReader};
use vellum_host::clock::current_time;
use vellum_types::{BareInodeAttr, FileKind, Ino};

use super::convert::{file_kind_from_mode, unpack_device};
use super::entry::hold_live_entry;
use super::{FuseAdapter, InodeOwner, request_caller};
use crate::metrics::ServedRequest;
use crate::node::NodePlace;
use crate::virt;
use crate::wire::{EntryAnswer, FuseAnswer, SmallAnswer};

/// Permission bits, set-id bits and the sticky bit of a mode.
pub(super) const PERMISSIONS: u32 = 0o7777;

impl FuseAdapter {
    pub(super) fn answer_mknod(
        &self,
        call: ServedRequest<'_>,
        name: &[u8],
        mode: u32,
        device: u32,
        umask: u32,
    ) -> FuseAnswer {
        self.answer_new_entry(call, name, |fs, dir| {
            let kind = file_kind_from_mode(mode).ok_or(Errno::INVAL)?;
            let caller = request_caller(call.head, umask);
            fs.names().mknod(dir, name, kind, mode & PERMISSIONS, unpack_device(device), caller)
        })
    }

    pub(super) fn answer_mkdir(
        &self,
        call: ServedRequest<'_>,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> FuseAnswer {
        self.answer_new_entry(call, name, |fs, dir| {
            fs.names().mkdir(dir, name, mode & PERMISSIONS, request_caller(call.head, umask))
        })
    }

    pub(super) fn answer_symlink(&self, call: ServedRequest<'_>, name: &[u8], target: &[u8]) -> FuseAnswer {
        self.answer_new_entry(call, name, |fs, dir| {
            // A symlink has no permissions of its own that a umask could take away.
            fs.names().symlink(dir, name, target, request_caller(call.head, 0))
        })
    }

    pub(super) fn answer_link(&self, call: ServedRequest<'_>, node: u64, name: &[u8]) -> FuseAnswer {
        self.answer_new_entry(call, name, |fs, dir| match self.inode_owner(node)? {
            InodeOwner::Live(_, ino) => fs.names().link(ino, dir, name),
            // Refused like a link across filesystems, which programs replace by a copy.
            InodeOwner::Past(..)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_)
            | InodeOwner::Removed(_) => Err(Errno::XDEV.into()),
        })
    }

    /// Creates a file without a name (`O_TMPFILE`). The kernel opens it by itself.
    pub(super) fn answer_tmpfile(&self, call: ServedRequest<'_>, mode: u32, umask: u32) -> FuseAnswer {
        let make = || {
            let (fs, dir) = self.live_inode(call.head.node)?;
            let made = fs.names().tmpfile(dir, mode & PERMISSIONS, request_caller(call.head, umask))?;
            hold_live_entry(fs, &without_content(&made))
        };
        self.answer_entry(call, make, |entry| SmallAnswer::for_created_file(entry, self.open_tmpfile()))
    }

    pub(super) fn answer_unlink(&self, call: ServedRequest<'_>, name: &[u8]) -> FuseAnswer {
        self.answer_unit(call, || {
            let (fs, dir) = self.live_dir(call.head.node, name)?;
            fs.names().unlink(dir, name, request_caller(call.head, 0).uid)
        })
    }

    pub(super) fn answer_rmdir(&self, call: ServedRequest<'_>, name: &[u8]) -> FuseAnswer {
        self.answer_unit(call, || {
            let (fs, dir) = self.live_dir(call.head.node, name)?;
            // Before the removal: afterwards nothing has the attributes any more.
            let removed = fs.names().lookup_bare(dir, name);
            fs.names().rmdir(dir, name, request_caller(call.head, 0).uid)?;
            self.keep_removed_dir(fs, removed.ok());
            Ok(())
        })
    }

    pub(super) fn answer_rename(
        &self,
        call: ServedRequest<'_>,
        name: &[u8],
        to_dir: u64,
        to_name: &[u8],
        flags: u32,
    ) -> FuseAnswer {
        self.answer_unit(call, || {
            let (fs, from_dir) = self.live_dir(call.head.node, name)?;
            let (_, to_dir) = self.live_dir(to_dir, to_name)?;
            let flags = LinuxRenameFlags::from_bits_retain(flags);
            // A later kernel may send others. `renameat2` fails with `EINVAL` for what a filesystem does not support.
            let known = LinuxRenameFlags::NOREPLACE | LinuxRenameFlags::EXCHANGE | LinuxRenameFlags::WHITEOUT;
            if !known.contains(flags) {
                return Err(Errno::INVAL.into());
            }
            let caller = request_caller(call.head, 0);
            let flags = RenameFlags {
                noreplace: flags.contains(LinuxRenameFlags::NOREPLACE),
                exchange: flags.contains(LinuxRenameFlags::EXCHANGE),
                whiteout: flags.contains(LinuxRenameFlags::WHITEOUT).then_some(caller),
                uid: caller.uid,
            };
            let replaced = fs.find_dentry(to_dir, to_name).ok().filter(|dentry| dentry.kind == FileKind::Dir);
            // An exchange removes nothing. Otherwise a directory that is replaced is removed by the rename.
            let replaced = match replaced {
                Some(_) if !flags.exchange => fs.names().lookup_bare(to_dir, to_name).ok(),
                Some(_) | None => None,
            };
            fs.names().rename(from_dir, name, to_dir, to_name, flags)?;
            // The path decides what is fetched of the content.
            self.policies.forget_nodes();
            // If both names stand for one inode, `rename` does nothing, and the directory is still there.
            let removed = replaced.filter(|node| fs.live_map().bare_inode_attr(node.ino).is_err());
            self.keep_removed_dir(fs, removed);
            Ok(())
        })
    }

    /// Creates a name in the directory of the request, and answers with its entry.
    fn answer_new_entry(
        &self,
        call: ServedRequest<'_>,
        name: &[u8],
        make: impl FnOnce(&LiveFilesystem, Ino) -> Result<InodeAttributes>,
    ) -> FuseAnswer {
        let dir_node = call.head.node;
        let make = || {
            let (fs, dir) = self.live_dir(dir_node, name)?;
            hold_live_entry(fs, &without_content(&make(fs, dir)?))
        };
        self.answer_entry(call, make, |entry| {
            // In a directory of a past epoch the kernel must ask for the name again: it knows the directory by an old
            // number.
            let timeout = entry.timeout.min(self.cache_timeout(dir_node));
            SmallAnswer::for_entry(&EntryAnswer { timeout, ..*entry })
        })
    }

    /// The live directory in which `name` is to be changed. Fails with `EPERM` for the name of the virtual directory.
    pub(super) fn live_dir(&self, dir: u64, name: &[u8]) -> Result<(&Arc<LiveFilesystem>, Ino)> {
        if dir == Ino::ROOT.0 && name == virt::NAME {
            return Err(Errno::PERM.into());
        }
        self.live_inode(dir)
    }

    /// Keeps the attributes of a directory that was just removed, for processes that have it open or as their working
    /// directory. `node` is what the name stood for before the removal; the kernel locks the parent meanwhile, so no
    /// other request has changed the name.
    fn keep_removed_dir(&self, fs: &LiveFilesystem, node: Option<BareInode>) {
        let Some(BareInode { ino, bare }) = node.filter(|node| node.bare.attr.kind == FileKind::Dir) else {
            return;
        };
        if let Some(number) = NodePlace::Main(fs.epochs().current_epoch(), ino).to_node() {
            self.removed_dirs.keep_dir(number, &bare.attr, current_time());
        }
    }
}

pub(super) fn without_content(node: &InodeAttributes) -> BareInode {
    BareInode { ino: node.ino, bare: BareInodeAttr::copy_of(&node.attr) }
}

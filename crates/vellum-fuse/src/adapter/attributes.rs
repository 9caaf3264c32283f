//! Attributes of nodes: `getattr`, `statx`, `setattr`, and those that files share with their filesystem.

use std::time::Duration;

use rustix::io::Errno;
use rustix::ioctl::opcode;
use vellum_fs::{AttributeChanges, BareInode, FilesystemStatistics, FsError, Result, StateReader};
use vellum_host::clock::current_time;
use vellum_host::error_chain::format_error_chain;
use vellum_types::limits::NAME_MAX;
use vellum_types::{FileKind, Ino, InodeAttr};

use super::convert::BLOCK_SIZE;
use super::entry::{new_bare_entry, new_plain_entry, new_state_entry};
use super::names::PERMISSIONS;
use super::{FuseAdapter, InodeOwner, MountedState, request_caller};
use crate::metrics::ServedRequest;
use crate::node::NodePlace;
use crate::wire::{EntryAnswer, FuseAnswer, SmallAnswer};

/// The set-user-id and the set-group-id bit of a mode.
const SET_IDS: u32 = 0o6000;

/// The `ioctl` commands that read and set the flags of a file as one word (`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`).
const GET_FLAGS: u32 = opcode::read::<usize>(b'f', 1);
const SET_FLAGS: u32 = opcode::write::<usize>(b'f', 2);

/// The `ioctl` commands that read and set the flags of a file together with further attributes of XFS
/// (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`): the flags are the first word of `struct fsxattr`.
const XFLAGS_WORDS: usize = 7;
const GET_XFLAGS: u32 = opcode::read::<[u32; XFLAGS_WORDS]>(b'X', 31);
const SET_XFLAGS: u32 = opcode::write::<[u32; XFLAGS_WORDS]>(b'X', 32);

impl FuseAdapter {
    pub(super) fn answer_getattr(&self, call: ServedRequest<'_>) -> FuseAnswer {
        self.answer_entry(call, || self.getattr(call.head.node), SmallAnswer::for_attributes)
    }

    pub(super) fn answer_statx(&self, call: ServedRequest<'_>) -> FuseAnswer {
        self.answer_entry(call, || self.getattr(call.head.node), SmallAnswer::for_statx)
    }

    pub(super) fn answer_setattr(&self, call: ServedRequest<'_>, changes: &AttributeChanges) -> FuseAnswer {
        self.answer_entry(call, || self.setattr(call, changes), SmallAnswer::for_attributes)
    }

    /// Answers with the capacity of the disk that holds the mounted state. A snapshot uses no space that could run out.
    pub(super) fn answer_statfs(&self, call: ServedRequest<'_>) -> FuseAnswer {
        let statfs = || match &self.main {
            MountedState::Live(fs) => fs.attributes().statfs(),
            MountedState::Frozen(_) | MountedState::Followed(_) => Ok(FilesystemStatistics {
                block_size: BLOCK_SIZE,
                blocks: 0,
                blocks_free: 0,
                blocks_available: 0,
                files: 0,
                files_free: 0,
                name_max: NAME_MAX as u32,
            }),
        };
        self.answer_small(call, statfs, SmallAnswer::for_statfs)
    }

    /// Answers the commands that read and set the flags of a file (`lsattr`, `chattr`). No file has any flags, and none
    /// can be set.
    pub(super) fn answer_ioctl(&self, node: u64, command: u32, input: &[u8], room: u32) -> FuseAnswer {
        // No flags are stored. Setting none succeeds, because programs that copy files set the flags that they have
        // read.
        let has_flags = input.get(..4).is_some_and(|word| word.iter().any(|byte| *byte != 0));
        let words = match command {
            GET_FLAGS => 1,
            GET_XFLAGS => XFLAGS_WORDS,
            SET_FLAGS | SET_XFLAGS if has_flags => return FuseAnswer::Failed(Errno::OPNOTSUPP),
            SET_FLAGS | SET_XFLAGS => 0,
            _ => return FuseAnswer::Failed(Errno::NOTTY),
        };
        // The kernel's buffer is as large as the number of the command states. A forged request may claim another size.
        if 4 * words > room as usize {
            return FuseAnswer::Failed(Errno::INVAL);
        }
        // Fails if the node does not exist any more.
        match self.getattr(node) {
            Ok(_) => FuseAnswer::Small(SmallAnswer::for_ioctl(words)),
            Err(error) => FuseAnswer::Failed(error.errno()),
        }
    }

    /// The entry of a node. If the root cannot be read, it is a directory without content: `.vellum` is found through
    /// it, and by that the mount can be ended.
    pub(super) fn getattr(&self, node: u64) -> Result<EntryAnswer> {
        match self.node_entry(node) {
            Err(error) if node == Ino::ROOT.0 && !matches!(error, FsError::Posix(_)) => {
                (self.report)(&format!("the root directory cannot be read: {}", format_error_chain(&error)));
                let entry = new_plain_entry(NodePlace::from_node(node), &self.virt.fallback_root_attr())?;
                Ok(EntryAnswer { timeout: Duration::ZERO, ..entry })
            }
            found => found,
        }
    }

    fn node_entry(&self, node: u64) -> Result<EntryAnswer> {
        let place = NodePlace::from_node(node);
        let entry = match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => {
                new_bare_entry(fs, place, &BareInode { ino, bare: fs.live_map().bare_inode_attr(ino)? })?
            }
            // Its attributes cannot change any more, so the kernel may cache them although the state is a past one.
            InodeOwner::Past(view, ino) => return new_plain_entry(place, &*view.inode_attr(ino)?),
            InodeOwner::Frozen(tree, ino) => {
                new_state_entry(&*tree, place, ino, &tree.expect_inode_attr(ino)?)?
            }
            InodeOwner::Virtual(number) => new_plain_entry(place, &self.virt.file_attr(number)?)?,
            InodeOwner::Removed(attr) => new_plain_entry(place, &attr)?,
        };
        Ok(EntryAnswer { timeout: self.cache_timeout(node), ..entry })
    }

    pub(super) fn setattr(&self, call: ServedRequest<'_>, changes: &AttributeChanges) -> Result<EntryAnswer> {
        let node = call.head.node;
        let place = NodePlace::from_node(node);
        // The kind of a file is in the mode, too, and does not change.
        let changes = AttributeChanges { mode: changes.mode.map(|mode| mode & PERMISSIONS), ..*changes };
        // With write-back caching the kernel keeps times by itself, and sends them when it writes the inode back:
        // no program requested that, so none must see it fail.
        let times_only = changes.mode.is_none()
            && changes.uid.is_none()
            && changes.gid.is_none()
            && changes.size.is_none();
        // A removed directory has no record in the worktree any more. Its attributes live here until the kernel
        // forgets it.
        if let Some(attr) = self.removed_dirs.set_attributes(node, &changes, current_time()) {
            return new_plain_entry(place, &attr);
        }
        let set = || {
            let (fs, ino) = self.live_inode(node)?;
            // The kernel writes back the times of an inode before it forgets it, even if the inode has no name any
            // more: no process can read them, so they are not stored.
            let current = if times_only { Some(fs.live_map().bare_inode_attr(ino)?) } else { None };
            let bare = match current.filter(|current| current.attr.nlink == 0) {
                Some(nameless) => nameless,
                None => fs.attributes().setattr(ino, &changes, request_caller(call.head, 0))?,
            };
            Ok(BareInode { ino, bare })
        };
        match set() {
            // The kernel also writes back the times of a file that a restore has removed. It would report an error to
            // the next `syncfs`, so this succeeds.
            Err(FsError::Posix(Errno::STALE)) if times_only => {
                new_plain_entry(place, &InodeAttr { nlink: 0, ..InodeAttr::new(FileKind::File, 0) })
            }
            done => {
                // Asked again, since the worktree may have been restored in between: the entry must belong to the
                // current state.
                let (fs, _) = self.live_inode(node)?;
                let entry = new_bare_entry(fs, place, &done?)?;
                Ok(EntryAnswer { timeout: self.cache_timeout(node), ..entry })
            }
        }
    }

    /// Whether a node is a live file with a set-id bit.
    pub(super) fn has_set_ids(&self, node: u64) -> bool {
        let attr = self.live_inode(node).and_then(|(fs, ino)| fs.live_map().bare_inode_attr(ino));
        attr.is_ok_and(|bare| bare.attr.mode & SET_IDS != 0)
    }
}

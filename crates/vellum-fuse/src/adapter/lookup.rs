//! `lookup` and `forget`: which names and nodes the kernel knows.
//!
//! Invariant: the kernel forgets each answer that named a node exactly once; what is kept for a node because the kernel
//! knows it is released then.

use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::Result;
use vellum_host::error_chain::format_error_chain;
use vellum_types::{FileKind, Ino, InodeAttr};

use super::convert::{file_kind_from_mode, to_node_attributes};
use super::entry::{hold_live_entry, new_plain_entry, new_state_entry, sibling_place};
use super::{FuseAdapter, InodeOwner, LONG_TIMEOUT, MountedState};
use crate::metrics::ServedRequest;
use crate::node::NodePlace;
use crate::virt::{self, CACHE_TIMEOUT, VirtualDir};
use crate::wire::{EntryAnswer, ForgottenNodes, FuseAnswer, SmallAnswer};

impl FuseAdapter {
    pub(super) fn answer_lookup(&self, call: ServedRequest<'_>, name: &[u8]) -> FuseAnswer {
        let dir = call.head.node;
        // The kernel may also cache that a name does not exist.
        let found = match self.serve_request(call, || self.lookup(dir, name)) {
            Err(Errno::NOENT) => self.negative_entry(dir, name).ok_or(Errno::NOENT),
            found => found,
        };
        FuseAnswer::from_result(found, |entry| SmallAnswer::for_entry(&self.limit_timeout(entry)))
    }

    pub(super) fn answer_forget(&self, node: u64, times: u64) -> FuseAnswer {
        self.forget_node(node, times);
        FuseAnswer::None
    }

    pub(super) fn answer_batch_forget(&self, forgotten: ForgottenNodes<'_>) -> FuseAnswer {
        forgotten.iter_nodes().for_each(|(node, times)| self.forget_node(node, times));
        FuseAnswer::None
    }

    /// The entry of a name. A file of the live worktree is held.
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<EntryAnswer> {
        // Before the lookup in the worktree: the directory is found by its name only, and no listing has it.
        if dir == Ino::ROOT.0 && name == virt::NAME {
            let top = self.virt.dir_node()?;
            return new_plain_entry(top.place, &top.attr);
        }
        // The kernel looks up these two only to find a node again by its number, after it has dropped the node from its
        // caches: for `open_by_handle_at`, which the NFS server uses, too.
        match name {
            b"." => return self.hold_node(dir),
            b".." => return self.hold_node(self.parent_dir(dir)?.to_node().ok_or(Errno::OVERFLOW)?),
            _ => {}
        }
        match self.inode_owner(dir)? {
            InodeOwner::Live(fs, ino) => Ok(EntryAnswer {
                timeout: self.cache_timeout(dir),
                ..hold_live_entry(fs, &fs.names().lookup_bare(ino, name)?)?
            }),
            InodeOwner::Past(..) => Err(Errno::NOTDIR.into()),
            InodeOwner::Removed(_) => Err(Errno::NOENT.into()),
            InodeOwner::Frozen(tree, ino) => {
                let child = tree.lookup_dentry(ino, name)?.ok_or(Errno::NOENT)?.ino;
                let attr = tree.expect_inode_attr(child)?;
                new_state_entry(&*tree, sibling_place(dir, child), child, &attr)
            }
            InodeOwner::Virtual(number) => self.lookup_virtual(number, name),
        }
    }

    fn lookup_virtual(&self, dir: u64, name: &[u8]) -> Result<EntryAnswer> {
        let found = if VirtualDir::is_paths_dir(dir) {
            self.virt.add_path_text(self.find_node_path(name)?)?
        } else {
            self.virt.lookup(dir, name)?
        };
        let entry = new_plain_entry(found.place, &found.attr)?;
        // The text of a file is made when the file is looked up, so each lookup has to reach us.
        let is_text = found.attr.kind == FileKind::File;
        let timeout = if is_text { Duration::ZERO } else { CACHE_TIMEOUT };
        Ok(EntryAnswer { timeout: timeout.min(self.cache_timeout(entry.attr.ino)), ..entry })
    }

    /// Names a node that the kernel may have forgotten. Fails with `ESTALE` if the node is a file without a name that
    /// no process has open.
    fn hold_node(&self, node: u64) -> Result<EntryAnswer> {
        let entry = match self.getattr(node) {
            // `ESTALE` makes the NFS server, and `open_by_handle_at`, give up the handle. `ENOENT` would mean that a
            // name is missing.
            Err(error) if error.errno() == Errno::NOENT => Err(Errno::STALE.into()),
            entry => entry,
        }?;
        self.hold_entry(&entry)?;
        Ok(entry)
    }

    /// Holds a node that an answer names, if it is a file of the live worktree.
    pub(super) fn hold_entry(&self, entry: &EntryAnswer) -> Result<()> {
        match (&self.main, NodePlace::from_node(entry.attr.ino)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino))
                if file_kind_from_mode(entry.attr.mode) == Some(FileKind::File) =>
            {
                fs.epochs().hold_inode(epoch, ino)
            }
            (MountedState::Live(_) | MountedState::Frozen(_) | MountedState::Followed(_), _) => Ok(()),
        }
    }

    /// The directory that contains a directory. Of the root, and of what has none any more, it is the node itself.
    pub(super) fn parent_dir(&self, dir: u64) -> Result<NodePlace> {
        Ok(match (self.inode_owner(dir)?, NodePlace::from_node(dir)) {
            (InodeOwner::Live(fs, ino), _) => {
                NodePlace::Main(fs.epochs().current_epoch(), fs.names().parent_dir(ino)?)
            }
            (InodeOwner::Past(..) | InodeOwner::Removed(_), place) => place,
            (InodeOwner::Frozen(..), NodePlace::Snapshot(_, Ino::ROOT)) => self.virt.snapshots_dir(),
            (InodeOwner::Frozen(..), place @ NodePlace::Main(_, Ino::ROOT)) => place,
            (InodeOwner::Frozen(tree, ino), _) => sibling_place(dir, tree.expect_inode_attr(ino)?.parent),
            (InodeOwner::Virtual(number), _) => self.virt.parent_dir(number),
        })
    }

    /// The answer by which the kernel caches that a name does not exist; None if the name may come into existence
    /// without the kernel.
    fn negative_entry(&self, dir: u64, name: &[u8]) -> Option<EntryAnswer> {
        // After a restore the name may exist, and an old kernel needs a notification for each name.
        if dir == Ino::ROOT.0 && !self.cache_tracker.record_negative_name(name) {
            return None;
        }
        match self.inode_owner(dir) {
            Ok(InodeOwner::Live(..)) if self.is_past_node(dir) => None,
            Ok(InodeOwner::Live(..) | InodeOwner::Frozen(..)) => {
                // Node 0 means that there is none; the attributes are not looked at.
                let attr = to_node_attributes(0, &InodeAttr::new(FileKind::File, 0), 0);
                Some(EntryAnswer { attr, generation: 0, timeout: LONG_TIMEOUT })
            }
            Ok(InodeOwner::Past(..) | InodeOwner::Virtual(_) | InodeOwner::Removed(_)) | Err(_) => None,
        }
    }

    /// Releases what is kept for a node: the kernel has forgotten `times` answers that named it.
    pub(super) fn forget_node(&self, node: u64, times: u64) {
        // What is not there is no error: the kernel forgets nodes of which nothing is kept, too.
        self.removed_dirs.remove_node(node);
        self.cached_files.remove_node(node);
        match (&self.main, NodePlace::from_node(node)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino)) => {
                match (fs.epochs().defer_inode_release(epoch, ino, times), &self.orphans) {
                    (Ok(true), Some(orphans)) => orphans.request_removal(),
                    (Ok(_), _) => {}
                    // The file is removed when the worktree is mounted the next time.
                    (Err(error), _) => {
                        let reason = format_error_chain(&error);
                        (self.report)(&format!("a file without a name cannot be removed: {reason}"));
                    }
                }
            }
            (_, NodePlace::Virtual(number)) => self.virt.forget_file(number),
            (MountedState::Frozen(_) | MountedState::Followed(_), NodePlace::Main(..))
            | (_, NodePlace::Snapshot(..)) => {}
        }
    }
}

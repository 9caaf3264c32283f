//! Removing names, and with the last one the inode; if that is open, it stays as an orphan.

use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::INLINE_MAX;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, UnixTime};

use super::places::HardLink;
use super::{NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::clock::advance_change_time;
use crate::content::opened::RemovalClaim;
use crate::content::remove_inode;
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::tree::{LiveTransaction, MapReader};

/// A link that is about to go: what was found out about its inode before the transaction.
pub(super) struct RemovedLink {
    pub ino: Ino,
    seen: Arc<InodeAttr>,
    /// Another link, if this one is the first of several.
    next: Option<HardLink>,
}

impl LiveFilesystem {
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let place = NameInDir::new(dir, name)?;
        self.retry_until_current(&[place], || self.try_unlink(&place))
    }

    fn try_unlink(&self, place: &NameInDir<'_>) -> Result<bool> {
        let node = self.lookup(place.dir, place.name)?;
        if node.attr.kind == FileKind::Dir {
            return Err(Errno::ISDIR.into());
        }
        self.remove_name(place, &node)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let place = NameInDir::new(dir, name)?;
        self.retry_until_current(&[place], || self.try_rmdir(&place))
    }

    fn try_rmdir(&self, place: &NameInDir<'_>) -> Result<bool> {
        let node = self.lookup(place.dir, place.name)?;
        if node.attr.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        self.remove_name(place, &node)
    }

    /// Removes a name and what depends on it; false if it stands for something else by now.
    fn remove_name(&self, place: &NameInDir<'_>, node: &InodeAttributes) -> Result<bool> {
        let is_dir = node.attr.kind == FileKind::Dir;
        self.inode_attr(place.dir)?;
        let leaving = self.prepare_link_removal(place, node)?;
        let claim = self.opened.claim_removal(node.ino);
        let done = self.apply_change(|txn| {
            let mut parent = read_dir_attr(txn, place.dir)?;
            let time = current_time();
            if !is_still_named(txn, place, node)?
                || !remove_link(txn, place, &leaving, claim.is_none(), time)?
            {
                return Ok(false);
            }
            if is_dir {
                add_link_count(&mut parent, -1)?;
            }
            update_dir(&mut parent, time);
            txn.delete_key(MapKey::for_dentry(place.dir, place.name));
            txn.set_inode_attr(place.dir, &parent);
            Ok(true)
        })?;
        if done {
            self.finish_link_removal(node.ino, place, claim)?;
        }
        Ok(done)
    }

    /// What is to be done when a link is gone.
    pub(super) fn finish_link_removal(
        &self,
        ino: Ino,
        place: &NameInDir<'_>,
        claim: Option<RemovalClaim<'_>>,
    ) -> Result<()> {
        self.places.remove_link(ino, place);
        // What was open may have been closed before it was an orphan.
        if claim.is_none() { self.remove_if_unused(ino) } else { Ok(()) }
    }

    /// Finds out what must be known of an inode to take a link from it.
    pub(super) fn prepare_link_removal(
        &self,
        place: &NameInDir<'_>,
        node: &InodeAttributes,
    ) -> Result<RemovedLink> {
        let InodeAttributes { ino, attr } = node;
        if attr.kind == FileKind::Dir {
            self.tree.read_head_state(|view| check_dir_empty(view, *ino))?;
        } else if attr.size > INLINE_MAX as u64 {
            // Its extents may fill many nodes: they are fetched here, not within the transaction.
            self.tree.read_head_state(|view| view.collect_inode_keys(*ino, &mut Vec::new()))?;
        }
        let is_first = attr.kind != FileKind::Dir && attr.nlink > 1 && place.is_first_link(attr);
        let next = if is_first { self.find_other_link(*ino, place)? } else { None };
        Ok(RemovedLink { ino: *ino, seen: Arc::clone(attr), next })
    }

    /// Repeats an operation until it meets what it has read before; caches forget what it did not meet.
    pub(super) fn retry_until_current(
        &self,
        places: &[NameInDir<'_>],
        mut attempt: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        while !attempt()? {
            for place in places {
                let dentry = MapKey::for_dentry(place.dir, place.name);
                let held = self.tree.read_head_state(|view| view.lookup_dentry(place.dir, place.name))?;
                let attr = held.map(|held| MapKey::for_attr(held.ino));
                self.inodes.invalidate_keys(&attr.into_iter().chain([dentry]).collect::<Vec<_>>());
            }
        }
        Ok(())
    }
}

/// Whether a place still names an inode.
pub(super) fn is_still_named(
    txn: &LiveTransaction<'_>,
    place: &NameInDir<'_>,
    node: &InodeAttributes,
) -> Result<bool> {
    let dentry = Dentry { ino: node.ino, kind: node.attr.kind };
    Ok(txn.lookup_dentry(place.dir, place.name)? == Some(dentry))
}

/// Takes a link from an inode; a directory must be empty. False, and nothing was changed, if what was found out before
/// does not hold any more.
pub(super) fn remove_link(
    txn: &mut LiveTransaction<'_>,
    place: &NameInDir<'_>,
    leaving: &RemovedLink,
    is_open: bool,
    time: UnixTime,
) -> Result<bool> {
    let ino = leaving.ino;
    let mut attr = txn.expect_inode_attr(ino)?;
    let mut is_last = attr.nlink <= 1;
    if attr.kind == FileKind::Dir {
        check_dir_empty(txn, ino)?;
        is_last = true;
    } else if !is_last && place.is_first_link(&attr) {
        match &leaving.next {
            Some(HardLink { dir, name })
                if txn.lookup_dentry(*dir, name)?.is_some_and(|next| next.ino == ino) =>
            {
                (attr.parent, attr.name) = (*dir, name.to_vec());
            }
            // The tree counts links that are not there: this was the last one.
            None if attr.ctime == leaving.seen.ctime && attr.nlink == leaving.seen.nlink => is_last = true,
            _ => return Ok(false),
        }
    }
    advance_change_time(&mut attr, time);
    if !is_last {
        attr.nlink -= 1;
        txn.set_inode_attr(ino, &attr);
    } else if is_open {
        (attr.nlink, attr.parent, attr.name) = (0, Ino::SUPER, Vec::new());
        txn.add_orphan(ino);
        txn.set_inode_attr(ino, &attr);
    } else {
        remove_inode(txn, ino)?;
    }
    Ok(true)
}

fn check_dir_empty(view: &(impl MapReader + ?Sized), dir: Ino) -> Result<()> {
    let mut is_empty = true;
    view.visit_dentries(dir, None, &mut |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    })?;
    if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
}

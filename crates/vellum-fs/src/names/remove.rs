//! Removing names, and with the last one the inode; if that is open, it stays as an orphan.

use std::ops::ControlFlow;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::INLINE_MAX;
use vellum_types::{BareInodeAttr, Dentry, FileKind, Ino, MapKey, UnixTime};

use super::places::HardLink;
use super::{LiveNames, NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::clock::advance_change_time;
use crate::content::remove_inode;
use crate::error::{FsError, Result};
use crate::trash::keep::TrashedName;
use crate::tree::{LiveTransaction, MapReader};

/// A link that is about to go: what was found out about its inode before the transaction.
pub(super) struct RemovedLink {
    pub ino: Ino,
    others: OtherLinks,
    /// What the trash is to know of the name if it is the last one; `None`: it is not kept.
    trashed: Option<TrashedName>,
}

/// What is known of an inode's links beside the one that goes.
enum OtherLinks {
    /// Nothing: most inodes have one link, and those need not be looked at before.
    Unknown,
    /// What was found when the inode had this time of change and so many links.
    Seen {
        ctime: UnixTime,
        nlink: u32,
        /// Another link, if the one that goes is the first of several.
        next: Option<HardLink>,
    },
}

/// What became of a link that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkRemoval {
    /// It is gone, and so is the inode, or it has other links.
    Removed,
    /// It is gone, and the inode is an orphan.
    Orphaned,
    /// Nothing was changed: what was found out before does not hold any more.
    Outdated,
    /// Nothing was changed: it has to be found out which links there are beside it.
    NeedsOtherLinks,
}

impl RemovedLink {
    /// Nothing was found out.
    fn unexplored(ino: Ino) -> Self {
        Self { ino, others: OtherLinks::Unknown, trashed: None }
    }
}

impl LiveNames {
    /// Removes a name of anything but a directory, for a user.
    pub fn unlink(&self, dir: Ino, name: &[u8], uid: u32) -> Result<()> {
        let place = NameInDir::new(dir, name)?;
        self.retry_until_current(&[place], || self.try_unlink(&place, uid))
    }

    fn try_unlink(&self, place: &NameInDir<'_>, uid: u32) -> Result<bool> {
        let dentry = self.expect_dentry(place)?;
        if dentry.kind == FileKind::Dir {
            // Linux answers so, where POSIX has `EPERM`.
            return Err(Errno::ISDIR.into());
        }
        self.remove_name(place, dentry, uid)
    }

    /// Removes an empty directory, for a user.
    pub fn rmdir(&self, dir: Ino, name: &[u8], uid: u32) -> Result<()> {
        let place = NameInDir::new(dir, name)?;
        self.retry_until_current(&[place], || self.try_rmdir(&place, uid))
    }

    fn try_rmdir(&self, place: &NameInDir<'_>, uid: u32) -> Result<bool> {
        let dentry = self.expect_dentry(place)?;
        if dentry.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        self.remove_name(place, dentry, uid)
    }

    /// Removes a name and what depends on it; false if it stands for something else by now.
    fn remove_name(&self, place: &NameInDir<'_>, dentry: Dentry, uid: u32) -> Result<bool> {
        let claim = self.content.open_inodes().claim_removal(dentry.ino);
        // With an orphan nothing goes yet but its name, for which its attributes are all that is needed: these are read
        // in the transaction. An inode that nobody has open goes with all its keys, a directory must be empty, and what
        // the trash keeps is copied there with all its keys.
        let is_kept = self.map.lock_head().trash.is_some();
        let leaving = if claim.is_some() || dentry.kind == FileKind::Dir || is_kept {
            self.prepare_link_removal(place, dentry, uid)?
        } else {
            RemovedLink::unexplored(dentry.ino)
        };
        let mut removal = self.commit_name_removal(place, dentry, &leaving, claim.is_none())?;
        // Only an open file that loses the first of several names needs this.
        if removal == LinkRemoval::NeedsOtherLinks {
            let leaving = self.prepare_link_removal(place, dentry, uid)?;
            removal = self.commit_name_removal(place, dentry, &leaving, claim.is_none())?;
        }
        self.finish_link_removal(dentry.ino, place, removal)
    }

    fn commit_name_removal(
        &self,
        place: &NameInDir<'_>,
        dentry: Dentry,
        leaving: &RemovedLink,
        is_open: bool,
    ) -> Result<LinkRemoval> {
        self.map.apply_change(|txn| {
            let mut parent = read_dir_attr(txn, place.dir)?;
            let time = current_time();
            if txn.lookup_dentry(place.dir, place.name)? != Some(dentry) {
                return Ok(LinkRemoval::Outdated);
            }
            let removal = remove_link(txn, place, leaving, is_open, time)?;
            if removal.is_done() {
                if dentry.kind == FileKind::Dir {
                    add_link_count(&mut parent, -1)?;
                }
                update_dir(&mut parent, time);
                txn.delete_key(MapKey::for_dentry(place.dir, place.name));
                txn.set_inode_attr(place.dir, &parent);
            }
            Ok(removal)
        })
    }

    /// What is to be done after a link was to be removed. False if it was not.
    pub(super) fn finish_link_removal(
        &self,
        ino: Ino,
        place: &NameInDir<'_>,
        removal: LinkRemoval,
    ) -> Result<bool> {
        if !removal.is_done() {
            return Ok(false);
        }
        self.links.remove_link(ino, place);
        // What was open may have been closed before it was an orphan: then nobody else removes it.
        if removal == LinkRemoval::Orphaned && !self.content.open_inodes().mark_orphan(ino) {
            self.content.remove_if_unused(ino)?;
        }
        Ok(true)
    }

    /// Finds out what must be known of an inode to take a link from it, for a user.
    pub(super) fn prepare_link_removal(
        &self,
        place: &NameInDir<'_>,
        Dentry { ino, kind }: Dentry,
        uid: u32,
    ) -> Result<RemovedLink> {
        let bare = self.map.read_head_state(|view| view.bare_inode_attr(ino))?;
        // Somebody else has removed it, or the tree is damaged: the transaction finds out.
        let Some(BareInodeAttr { attr, .. }) = bare else { return Ok(RemovedLink::unexplored(ino)) };
        if kind == FileKind::Dir {
            self.map.read_head_state(|view| check_dir_empty(view, ino))?;
        } else if attr.size > INLINE_MAX as u64 {
            // Its extents may fill many nodes: they are fetched here, not within the transaction.
            self.map.read_head_state(|view| view.collect_inode_keys(ino, &mut Vec::new()))?;
        }
        let is_first = kind != FileKind::Dir && attr.nlink > 1 && place.is_first_link(&attr);
        let next = if is_first { self.find_other_link(ino, place)? } else { None };
        let others = OtherLinks::Seen { ctime: attr.ctime, nlink: attr.nlink, next };
        let trashed = TrashedName::find_origin(&self.map, &self.log, place, uid)?;
        Ok(RemovedLink { ino, others, trashed })
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
                // From the map: the cache may be what has given the outdated answer.
                let held = self.map.read_head_state(|view| view.lookup_dentry(place.dir, place.name))?;
                let attr = held.map(|held| MapKey::for_attr(held.ino));
                self.map.inode_cache().invalidate_keys(&attr.into_iter().chain([dentry]).collect::<Vec<_>>());
            }
        }
        Ok(())
    }
}

impl LinkRemoval {
    /// Whether the link is gone.
    pub fn is_done(self) -> bool {
        match self {
            Self::Removed | Self::Orphaned => true,
            Self::Outdated | Self::NeedsOtherLinks => false,
        }
    }
}

/// Takes a link from an inode; a directory must be empty. The caller removes the entry.
pub(super) fn remove_link(
    txn: &mut LiveTransaction<'_>,
    place: &NameInDir<'_>,
    leaving: &RemovedLink,
    is_open: bool,
    time: UnixTime,
) -> Result<LinkRemoval> {
    let ino = leaving.ino;
    let missing = || FsError::BadTree(format!("inode {ino} is missing"));
    let mut bare = txn.bare_inode_attr(ino)?.ok_or_else(missing)?;
    let attr = &mut bare.attr;
    let mut is_last = attr.nlink <= 1;
    if attr.kind == FileKind::Dir {
        // Again, in the transaction: something may have been put into it since.
        check_dir_empty(txn, ino)?;
        // A directory has one name. All other links are entries `.` and `..`.
        is_last = true;
    } else if !is_last && place.is_first_link(attr) {
        match &leaving.others {
            // The attributes have to name another link. Finding one may take a walk over the map, which is
            // too long for a transaction.
            OtherLinks::Unknown => return Ok(LinkRemoval::NeedsOtherLinks),
            OtherLinks::Seen { next: Some(HardLink { dir, name }), .. }
                if txn.lookup_dentry(*dir, name)?.is_some_and(|next| next.ino == ino) =>
            {
                (attr.parent, attr.name) = (*dir, name.to_vec());
            }
            // The tree counts links that are not there: this was the last one.
            OtherLinks::Seen { ctime, nlink, next: None } if attr.ctime == *ctime && attr.nlink == *nlink => {
                is_last = true;
            }
            OtherLinks::Seen { .. } => return Ok(LinkRemoval::Outdated),
        }
    }
    if is_last && let Some(trashed) = &leaving.trashed {
        trashed.keep_inode(txn, ino, time)?;
    }
    advance_change_time(attr, time);
    if !is_last {
        attr.nlink -= 1;
        txn.set_bare_attr(ino, &bare);
    } else if is_open {
        // If this process dies, the record of the orphan lets the next one remove the inode.
        (attr.nlink, attr.parent, attr.name) = (0, Ino::SUPER, Vec::new());
        txn.add_orphan(ino);
        txn.set_bare_attr(ino, &bare);
        return Ok(LinkRemoval::Orphaned);
    } else {
        remove_inode(txn, ino)?;
    }
    Ok(LinkRemoval::Removed)
}

fn check_dir_empty(view: &(impl MapReader + ?Sized), dir: Ino) -> Result<()> {
    let mut is_empty = true;
    view.visit_dentries(dir, None, &mut |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    })?;
    if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
}

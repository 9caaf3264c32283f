//! Attributes: reading and setting them.

pub(crate) mod acl;
pub mod cache;
pub mod clock;
pub(crate) mod numbers;
pub(crate) mod statfs;
pub mod xattr;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::FILE_SIZE_MAX;
use vellum_types::value::MODE_MASK;
use vellum_types::{BareInodeAttr, FileKind, Ino, InodeAttr, MapKey, UnixTime};

use crate::attributes::clock::advance_change_time;
use crate::attributes::xattr::CAPABILITY;
use crate::content::clear_set_ids;
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
use crate::tree::{LiveTransaction, MapReader};

/// An access is recorded at the latest when the last one recorded is this old, in seconds: relatime.
const ACCESS_AGE: i64 = 24 * 60 * 60;

/// What to set; None stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits, set-id bits and the sticky bit.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of content, of files only.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeChange>,
    /// Last change of content.
    pub mtime: Option<TimeChange>,
    /// Last change of attributes: for a kernel that has kept it; otherwise it is now.
    pub ctime: Option<UnixTime>,
}

/// What a time is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    /// The time of the operation.
    Now,
    /// This moment.
    At(UnixTime),
}

impl TimeChange {
    fn resolve_time(self, now: UnixTime) -> UnixTime {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

impl LiveFilesystem {
    /// The attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<InodeAttributes> {
        Ok(InodeAttributes { ino, attr: self.inode_attr(ino)? })
    }

    /// The attributes of an inode, without its number.
    pub(crate) fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        let ticket = match self.inodes.get_attr(ino) {
            Ok(attr) => return Ok(attr),
            Err(ticket) => ticket,
        };
        let mut attr = self.tree.read_head_state(|view| view.expect_inode_attr(ino))?;
        self.tree.access_times().apply_access_time(ino, &mut attr);
        let attr = Arc::new(attr);
        self.inodes.insert_attr(ino, &attr, ticket);
        Ok(attr)
    }

    /// Returns the attributes of an inode without its inline content. Reads the cache, but adds nothing to it: the
    /// caller shows the attributes once, and the kernel caches them.
    pub fn bare_inode_attr(&self, ino: Ino) -> Result<BareInodeAttr> {
        if let Some(attr) = self.inodes.find_attr(ino) {
            return Ok(BareInodeAttr::copy_of(&attr));
        }
        let mut bare = self.tree.read_head_state(|view| view.expect_bare_attr(ino))?;
        self.tree.access_times().apply_access_time(ino, &mut bare.attr);
        Ok(bare)
    }

    /// Sets all of the given attributes, or none if it fails. As on Linux, a change of the owner clears set-id bits,
    /// and an access control list follows the mode.
    pub fn setattr(&self, ino: Ino, set: &AttributeChanges, caller: RequestCaller) -> Result<BareInodeAttr> {
        let Some(size) = set.size else {
            return self.apply_change(|txn| {
                let mut bare = txn.expect_bare_attr(ino)?;
                let now = current_time();
                set_change_time(&mut bare.attr, set, now);
                set_plain_attributes(txn, ino, &mut bare.attr, set, now)?;
                txn.set_bare_attr(ino, &bare);
                Ok(bare)
            });
        };
        let changed = self.apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            let now = current_time();
            set_change_time(&mut attr, set, now);
            check_new_size(&attr, size)?;
            self.truncate_in_transaction(txn, ino, &mut attr, size)?;
            attr.mtime = now;
            if caller.uid != 0 {
                clear_set_ids(&mut attr);
            }
            set_plain_attributes(txn, ino, &mut attr, set, now)?;
            txn.set_inode_attr(ino, &attr);
            Ok(attr.into())
        })?;
        self.stored_counts.forget_file(ino);
        Ok(changed)
    }

    /// Records an access now if the last recorded one is older than the last change, or a day old (relatime). The time
    /// is shown at once, and stored with the next change of the inode.
    pub fn record_access(&self, ino: Ino) -> Result<()> {
        if self.keeps_access_times.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = current_time();
        if is_access_due(&*self.inode_attr(ino)?, now) {
            self.tree.access_times().record_access(ino, now);
            self.inodes.invalidate_keys(&[MapKey::for_attr(ino)]);
        }
        Ok(())
    }
}

/// Sets the time of change as a kernel that kept it says, or to now.
fn set_change_time(attr: &mut InodeAttr, set: &AttributeChanges, now: UnixTime) {
    match set.ctime {
        Some(ctime) => attr.ctime = ctime,
        None => advance_change_time(attr, now),
    }
}

/// Sets all but the size and the time of change. The caller puts the attributes.
fn set_plain_attributes(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    attr: &mut InodeAttr,
    set: &AttributeChanges,
    now: UnixTime,
) -> Result<()> {
    if let Some(mode) = set.mode {
        set_inode_mode(txn, ino, attr, mode)?;
    }
    set_inode_owner(txn, ino, attr, set)?;
    attr.atime = set.atime.map_or(attr.atime, |time| time.resolve_time(now));
    attr.mtime = set.mtime.map_or(attr.mtime, |time| time.resolve_time(now));
    Ok(())
}

fn is_access_due(attr: &InodeAttr, now: UnixTime) -> bool {
    // Within one tick of the clock an access is not later than the change before it: nothing would be recorded.
    if now <= attr.atime && attr.atime <= attr.mtime.max(attr.ctime) {
        return false;
    }
    attr.atime <= attr.mtime.max(attr.ctime) || now.secs.saturating_sub(attr.atime.secs) >= ACCESS_AGE
}

fn check_new_size(attr: &InodeAttr, size: u64) -> Result<()> {
    match attr.kind {
        FileKind::File if size <= FILE_SIZE_MAX => Ok(()),
        FileKind::File => Err(Errno::FBIG.into()),
        FileKind::Dir => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

fn set_inode_mode(txn: &mut LiveTransaction<'_>, ino: Ino, attr: &mut InodeAttr, mode: u32) -> Result<()> {
    if attr.kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    attr.mode = mode & MODE_MASK;
    acl::update_acl_mode(txn, ino, attr.mode)
}

fn set_inode_owner(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    attr: &mut InodeAttr,
    set: &AttributeChanges,
) -> Result<()> {
    if set.uid.is_none() && set.gid.is_none() {
        return Ok(());
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    if attr.kind != FileKind::Dir {
        clear_set_ids(attr);
        let capability = MapKey::for_xattr(ino, CAPABILITY);
        if txn.get_value(&capability)?.is_some() {
            txn.delete_key(capability);
        }
    }
    Ok(())
}

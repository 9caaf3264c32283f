//! Attributes: reading and setting them.

pub(crate) mod acl;
pub mod clock;
pub(crate) mod statfs;
pub mod xattr;

use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::FILE_SIZE_MAX;
use vellum_types::value::MODE_MASK;
use vellum_types::{BareInodeAttr, FileKind, Ino, InodeAttr, UnixTime};
use vellum_volume::Volume;

use crate::attributes::clock::advance_change_time;
use crate::attributes::xattr::remove_capability;
use crate::content::{LiveContent, clear_set_ids};
use crate::error::Result;
use crate::fs::{LiveBase, RequestCaller};
use crate::lease::WorktreeLease;
use crate::log::WriteLog;
use crate::tree::{LiveMap, LiveTransaction, MapReader};

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

impl AttributeChanges {
    /// The times of last access and change of content of another inode.
    pub(crate) fn for_times_of(attr: &InodeAttr) -> Self {
        let atime = Some(TimeChange::At(attr.atime));
        Self { atime, mtime: Some(TimeChange::At(attr.mtime)), ..Self::default() }
    }
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

/// The attributes of a live worktree's inodes, extended ones too, and its quota.
pub struct LiveAttributes {
    volume: Arc<Volume>,
    lease: Arc<WorktreeLease>,
    map: Arc<LiveMap>,
    log: Arc<WriteLog>,
    content: Arc<LiveContent>,
}

impl LiveAttributes {
    /// The attributes that the map has; a size that is set cuts content.
    pub(crate) fn new(base: &LiveBase, content: Arc<LiveContent>) -> Self {
        let LiveBase { volume, lease, map, log } = base.clone();
        Self { volume, lease, map, log, content }
    }

    /// Sets all of the given attributes, or none if it fails. As on Linux, a change of the owner clears set-id bits,
    /// and an access control list follows the mode.
    pub fn setattr(&self, ino: Ino, set: &AttributeChanges, caller: RequestCaller) -> Result<BareInodeAttr> {
        // Without a size the content stays. Attributes alone are enough then, and inline content is not
        // written again.
        let Some(size) = set.size else {
            return self.map.apply_change(|txn| {
                let mut bare = txn.expect_bare_attr(ino)?;
                let now = current_time();
                set_change_time(&mut bare.attr, set, now);
                set_plain_attributes(txn, ino, &mut bare.attr, set, now)?;
                txn.set_bare_attr(ino, &bare);
                Ok(bare)
            });
        };
        let changed = self.map.apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            let now = current_time();
            set_change_time(&mut attr, set, now);
            check_new_size(&attr, size)?;
            self.content.truncate_in_transaction(txn, ino, &mut attr, size)?;
            // `truncate(2)` sets the time of the content. A time in the same request replaces it below.
            attr.mtime = now;
            // A change of the size clears set-id bits as a write does. Root keeps them there, too.
            if caller.uid != 0 {
                clear_set_ids(&mut attr);
            }
            set_plain_attributes(txn, ino, &mut attr, set, now)?;
            txn.set_inode_attr(ino, &attr);
            Ok(attr.into())
        })?;
        // After the commit: a count that somebody takes before it is still that of the old extents.
        self.content.forget_count(ino);
        Ok(changed)
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
    // The mode first: a change of the owner in the same request clears set-id bits, also those that were just
    // set.
    if let Some(mode) = set.mode {
        set_inode_mode(txn, ino, attr, mode)?;
    }
    set_inode_owner(txn, ino, attr, set)?;
    attr.atime = set.atime.map_or(attr.atime, |time| time.resolve_time(now));
    attr.mtime = set.mtime.map_or(attr.mtime, |time| time.resolve_time(now));
    Ok(())
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
    // Linux ignores the modes of symlinks, and refuses to set them with this error.
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
    // On a directory the set-group-id bit is no privilege: it lets new entries have the directory's group.
    if attr.kind != FileKind::Dir {
        clear_set_ids(attr);
        remove_capability(txn, ino)?;
    }
    Ok(())
}

//! Attributes: reading and setting them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vellum_types::limits::FILE_SIZE_MAX;
use vellum_types::value::MODE_MASK;
use vellum_types::{FileKind, Ino, InodeAttr, MapKey, UnixTime};

use crate::acl;
use crate::clock::{now, stamp_change};
use crate::content::{drop_set_ids, extents};
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
use crate::tree::{LiveTransaction, MapReader};
use crate::xattr::CAPABILITY;

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
    fn at(self, now: UnixTime) -> UnixTime {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

impl LiveFilesystem {
    /// The attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<InodeAttributes> {
        Ok(InodeAttributes { ino, attr: self.attr(ino)? })
    }

    /// How many bytes an inode takes: of a file, those that are no holes.
    pub fn stored(&self, node: &InodeAttributes) -> Result<u64> {
        if node.attr.inline.is_some() || node.attr.size == 0 {
            return Ok(node.attr.size);
        }
        self.tree.read(|view| extents::stored(view, node.ino, &node.attr))
    }

    /// The attributes of an inode, without its number.
    pub(crate) fn attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        let ticket = match self.inodes.attr(ino) {
            Ok(attr) => return Ok(attr),
            Err(ticket) => ticket,
        };
        let mut attr = self.tree.read(|view| view.attr_of(ino))?;
        self.tree.accesses().apply(ino, &mut attr);
        let attr = Arc::new(attr);
        self.inodes.put_attr(ino, &attr, ticket);
        Ok(attr)
    }

    /// Sets attributes, all of them or none. What Linux changes beside them changes, too: set-id bits go when the
    /// owner changes, an access control list follows the mode.
    pub fn setattr(
        &self,
        ino: Ino,
        set: &AttributeChanges,
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        self.attr(ino)?;
        if set.mode.is_some() {
            self.xattr(ino, acl::ACCESS)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.xattr(ino, CAPABILITY)?;
        }
        self.change(|txn| {
            let now = now();
            let mut attr = txn.attr_of(ino)?;
            match set.ctime {
                Some(ctime) => attr.ctime = ctime,
                None => stamp_change(&mut attr, now),
            }
            if let Some(size) = set.size {
                check_size(&attr, size)?;
                self.truncate_in(txn, ino, &mut attr, size)?;
                attr.mtime = now;
                if caller.uid != 0 {
                    drop_set_ids(&mut attr);
                }
            }
            if let Some(mode) = set.mode {
                set_mode(txn, ino, &mut attr, mode)?;
            }
            set_owner(txn, ino, &mut attr, set)?;
            attr.atime = set.atime.map_or(attr.atime, |time| time.at(now));
            attr.mtime = set.mtime.map_or(attr.mtime, |time| time.at(now));
            txn.put_attr(ino, &attr);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    /// Notes an access now, if the last one is before the last change or a day old (relatime). It is shown, and
    /// goes into the map with the next change of the inode.
    pub fn accessed(&self, ino: Ino) -> Result<()> {
        if self.keeps_access_times.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = now();
        if is_access_due(&*self.attr(ino)?, now) {
            self.tree.accesses().note(ino, now);
            self.inodes.forget(&[MapKey::attr(ino)]);
        }
        Ok(())
    }
}

fn is_access_due(attr: &InodeAttr, now: UnixTime) -> bool {
    // Within one tick of the clock an access is not later than the change before it: nothing would be recorded.
    if now <= attr.atime && attr.atime <= attr.mtime.max(attr.ctime) {
        return false;
    }
    attr.atime <= attr.mtime.max(attr.ctime) || now.secs.saturating_sub(attr.atime.secs) >= ACCESS_AGE
}

fn check_size(attr: &InodeAttr, size: u64) -> Result<()> {
    match attr.kind {
        FileKind::File if size <= FILE_SIZE_MAX => Ok(()),
        FileKind::File => Err(Errno::FBIG.into()),
        FileKind::Dir => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

fn set_mode(txn: &mut LiveTransaction<'_>, ino: Ino, attr: &mut InodeAttr, mode: u32) -> Result<()> {
    if attr.kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    attr.mode = mode & MODE_MASK;
    acl::follow_mode(txn, ino, attr.mode)
}

fn set_owner(
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
        drop_set_ids(attr);
        let capability = MapKey::xattr(ino, CAPABILITY);
        if txn.value(&capability)?.is_some() {
            txn.delete(capability);
        }
    }
    Ok(())
}

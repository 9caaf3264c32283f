//! Names: looking up, creating, linking, removing, renaming.
//!
//! Invariant: every entry has its inode, an inode has as many links as entries name it (a directory 2 and its
//! subdirectories), and its attributes say where one of them is. Each operation is one transaction. What it
//! needs of directories' entries is read before; if that has changed by then, the operation begins again. Attributes are
//! read in the transaction, which is begun anew if they have to be fetched from the store ([`crate::tree`]).

mod link;
mod make;
pub(crate) mod numbers;
mod places;
mod read;
mod remove;
mod remove_tree;
mod rename;

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::limits::NAME_MAX;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, UnixTime};
use vellum_volume::state::STATE_DIR;

use crate::attributes::clock::advance_change_time;
use crate::content::LiveContent;
use crate::error::Result;
use crate::fs::LiveBase;
use crate::log::WriteLog;
use crate::tree::{LiveMap, LiveTransaction, MapReader};
use numbers::InodeNumberPool;
use places::HardLinks;

pub(crate) use make::put_first_name;
pub(crate) use read::read_dir_entries;
pub use rename::RenameFlags;

/// The names of a live worktree, and the numbers that new inodes get.
pub struct LiveNames {
    map: Arc<LiveMap>,
    log: Arc<WriteLog>,
    content: Arc<LiveContent>,
    links: HardLinks,
    numbers: InodeNumberPool,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameInDir<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

impl<'a> NameInDir<'a> {
    /// The place of a legal name.
    pub fn new(dir: Ino, name: &'a [u8]) -> Result<Self> {
        check_name(name)?;
        Ok(Self { dir, name })
    }

    /// Refuses names that nothing of this kind may have: the state directory's name is taken at the root by what
    /// mounts show there, and is below it that of other volumes' state, which no snapshot holds.
    pub fn check_name_allowed(&self, kind: FileKind) -> Result<()> {
        let taken = self.name == STATE_DIR.as_bytes() && (self.dir == Ino::ROOT || kind == FileKind::Dir);
        if taken { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Whether the attributes of an inode say that this is its first link.
    fn is_first_link(&self, attr: &InodeAttr) -> bool {
        attr.parent == self.dir && attr.name == self.name
    }
}

/// The user for whom this process removes what nobody asked it to remove.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What Linux would not even ask a filesystem about.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::NOENT.into()),
        b"." | b".." => Err(Errno::INVAL.into()),
        name if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG.into()),
        name if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// The attributes of a directory in which something is to be changed.
pub(crate) fn read_dir_attr(txn: &LiveTransaction<'_>, dir: Ino) -> Result<InodeAttr> {
    let attr = txn.expect_inode_attr(dir)?;
    check_is_dir(&attr)?;
    // The directory was removed while somebody has it open: POSIX lets nothing be made in it.
    if attr.nlink == 0 { Err(Errno::NOENT.into()) } else { Ok(attr) }
}

pub(crate) fn check_is_dir(attr: &InodeAttr) -> Result<()> {
    if attr.kind == FileKind::Dir { Ok(()) } else { Err(Errno::NOTDIR.into()) }
}

/// A directory whose entries change has other times, and another link count if a directory comes or goes.
pub(crate) fn update_dir(attr: &mut InodeAttr, time: UnixTime) {
    attr.mtime = time;
    advance_change_time(attr, time);
}

pub(crate) fn add_link_count(attr: &mut InodeAttr, count: i32) -> Result<()> {
    // `mkdir(2)` and `link(2)` answer so if there would be too many.
    attr.nlink = attr.nlink.checked_add_signed(count).ok_or(Errno::MLINK)?;
    Ok(())
}

impl LiveNames {
    /// The names that the map has; an inode that loses its last name goes with its content.
    pub(crate) fn new(base: &LiveBase, content: Arc<LiveContent>) -> Self {
        let LiveBase { map, log, .. } = base.clone();
        Self { map, log, content, links: HardLinks::default(), numbers: InodeNumberPool::default() }
    }

    /// What a directory must hold under a name.
    fn expect_dentry(&self, place: &NameInDir<'_>) -> Result<Dentry> {
        if let Some(dentry) = self.map.lookup_dentry(place.dir, place.name)? {
            return Ok(dentry);
        }
        // Looked at only if the name was not found: mostly it is, and the attributes of the directory need
        // not be read.
        check_is_dir(&*self.map.inode_attr(place.dir)?)?;
        Err(Errno::NOENT.into())
    }

    /// Fails unless a directory is one, and holds nothing under a name.
    pub(crate) fn check_name_free(&self, place: &NameInDir<'_>) -> Result<()> {
        check_is_dir(&*self.map.inode_attr(place.dir)?)?;
        match self.map.lookup_dentry(place.dir, place.name)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(()),
        }
    }

    /// Forgets links and numbers, because the worktree has another state. To be called like [`LiveMap::forget_cached`].
    pub(crate) fn forget_state(&self) {
        self.links.forget_all();
        self.numbers.discard_numbers();
    }
}

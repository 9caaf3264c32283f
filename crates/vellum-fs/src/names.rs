//! Names: looking up, creating, linking, removing, renaming.
//!
//! Invariant: every entry has its inode, an inode has as many links as entries name it (a directory 2 and its
//! subdirectories), and its attributes say where one of them is. Each operation is one transaction. What it
//! needs of directories' entries is read before; if that has changed by then, the operation begins again. Attributes are
//! read in the transaction, which is begun anew if they have to be fetched from the store ([`crate::tree`]).

mod copy;
mod link;
mod make;
mod places;
mod read;
mod remove;
mod remove_tree;
mod rename;

use rustix::io::Errno;
use vellum_types::limits::NAME_MAX;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, UnixTime};
use vellum_volume::state::STATE_DIR;

use crate::attributes::clock::advance_change_time;
use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::{LiveTransaction, MapReader};

pub(crate) use copy::new_hidden_name;
pub(crate) use places::HardLinks;
pub(crate) use read::read_dir_entries;
pub use rename::RenameFlags;

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
    fn check_name_allowed(&self, kind: FileKind) -> Result<()> {
        let taken = self.name == STATE_DIR.as_bytes() && (self.dir == Ino::ROOT || kind == FileKind::Dir);
        if taken { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Whether the attributes of an inode say that this is its first link.
    fn is_first_link(&self, attr: &InodeAttr) -> bool {
        attr.parent == self.dir && attr.name == self.name
    }
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
fn read_dir_attr(txn: &LiveTransaction<'_>, dir: Ino) -> Result<InodeAttr> {
    let attr = txn.expect_inode_attr(dir)?;
    check_is_dir(&attr)?;
    if attr.nlink == 0 { Err(Errno::NOENT.into()) } else { Ok(attr) }
}

pub(crate) fn check_is_dir(attr: &InodeAttr) -> Result<()> {
    if attr.kind == FileKind::Dir { Ok(()) } else { Err(Errno::NOTDIR.into()) }
}

/// A directory whose entries change has other times, and another link count if a directory comes or goes.
fn update_dir(attr: &mut InodeAttr, time: UnixTime) {
    attr.mtime = time;
    advance_change_time(attr, time);
}

fn add_link_count(attr: &mut InodeAttr, count: i32) -> Result<()> {
    attr.nlink = attr.nlink.checked_add_signed(count).ok_or(Errno::MLINK)?;
    Ok(())
}

impl LiveFilesystem {
    /// What a directory holds under a name.
    pub(crate) fn lookup_dentry(&self, place: &NameInDir<'_>) -> Result<Option<Dentry>> {
        let NameInDir { dir, name } = *place;
        let ticket = match self.inodes.get_dentry(dir, name) {
            Ok(dentry) => return Ok(dentry),
            Err(ticket) => ticket,
        };
        let dentry = self.tree.read_head_state(|view| view.lookup_dentry(dir, name))?;
        self.inodes.insert_dentry(dir, name, dentry, ticket);
        Ok(dentry)
    }

    /// The same, of what must be there.
    pub(crate) fn expect_dentry(&self, place: &NameInDir<'_>) -> Result<Dentry> {
        if let Some(dentry) = self.lookup_dentry(place)? {
            return Ok(dentry);
        }
        check_is_dir(&*self.inode_attr(place.dir)?)?;
        Err(Errno::NOENT.into())
    }
}

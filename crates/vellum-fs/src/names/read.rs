//! Looking up and listing.

use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{BareInodeAttr, Dentry, Ino};
use vellum_volume::tree::{DirectoryEntry, path_components};

use super::{LiveNames, NameInDir, check_is_dir};
use crate::error::{FsError, Result};
use crate::fs::{BareInode, InodeAttributes};
use crate::tree::MapReader;

impl LiveNames {
    /// What a directory holds under a name. Fails with `ENOENT` if that is nothing.
    pub fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        self.expect_dentry(&NameInDir::new(dir, name)?)
    }

    /// All entries of a directory by name, without `.` and `..`.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<DirectoryEntry>> {
        check_is_dir(&*self.map.inode_attr(dir)?)?;
        let entries = self.map.read_head_state(|view| read_dir_entries(view, dir))?;
        // POSIX counts a listing as an access to the directory.
        self.map.record_access(dir)?;
        Ok(entries)
    }

    /// The inode that a directory holds under a name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        let ino = self.expect_dentry(&place)?.ino;
        match self.map.inode_attr(ino) {
            Ok(attr) => Ok(InodeAttributes { ino, attr }),
            // The inode went after its entry was read. By now the name may stand for another one.
            Err(FsError::Posix(Errno::STALE)) => self.try_lookup(&place),
            Err(error) => Err(error),
        }
    }

    /// The same, with attributes that no cache keeps ([`crate::tree::LiveMap::bare_inode_attr`]).
    pub fn lookup_bare(&self, dir: Ino, name: &[u8]) -> Result<BareInode> {
        let place = NameInDir::new(dir, name)?;
        let ino = self.expect_dentry(&place)?.ino;
        match self.map.bare_inode_attr(ino) {
            // As in `lookup`: the name may stand for another inode by now.
            Err(FsError::Posix(Errno::STALE)) => {
                let InodeAttributes { ino, attr } = self.try_lookup(&place)?;
                Ok(BareInode { ino, bare: BareInodeAttr::copy_of(&attr) })
            }
            read => Ok(BareInode { ino, bare: read? }),
        }
    }

    /// The same, of one moment: where an entry has changed while its inode was being read.
    fn try_lookup(&self, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        self.map.apply_change(|txn| {
            let ino = txn.lookup_dentry(place.dir, place.name)?.ok_or(Errno::NOENT)?.ino;
            let attr =
                txn.inode_attr(ino)?.ok_or_else(|| FsError::BadTree(format!("inode {ino} is missing")))?;
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    /// The inode at a path from the root, without following symlinks.
    pub fn resolve_path(&self, path: &[u8]) -> Result<InodeAttributes> {
        let mut ino = Ino::ROOT;
        for name in path_components(path) {
            ino = match name {
                b".." => self.parent_dir(ino)?,
                name => self.find_dentry(ino, name)?.ino,
            };
        }
        Ok(InodeAttributes { ino, attr: self.map.inode_attr(ino)? })
    }

    /// Returns the parent of a directory. The root is its own parent.
    pub fn parent_dir(&self, ino: Ino) -> Result<Ino> {
        let parent = self.map.inode_attr(ino)?.parent;
        Ok(if parent == Ino::SUPER { ino } else { parent })
    }
}

/// All entries of a directory by name.
pub(crate) fn read_dir_entries(view: &dyn MapReader, dir: Ino) -> Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    view.visit_dentries(dir, None, &mut |name, dentry| {
        entries.push(DirectoryEntry { name: name.to_vec(), ino: dentry.ino, kind: dentry.kind });
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

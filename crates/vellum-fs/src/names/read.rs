//! Looking up and listing.

use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino};
use vellum_volume::tree::path_components;

use super::{NameInDir, check_is_dir};
use crate::error::{FsError, Result};
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::tree::MapReader;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it names.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
}

impl LiveFilesystem {
    /// The inode that a directory holds under a name.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        let ino = self.expect_dentry(&place)?.ino;
        match self.inode_attr(ino) {
            Ok(attr) => Ok(InodeAttributes { ino, attr }),
            Err(FsError::Posix(Errno::STALE)) => self.try_lookup(&place),
            Err(error) => Err(error),
        }
    }

    /// The same, of one moment: where an entry has changed while its inode was being read.
    fn try_lookup(&self, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        self.apply_change(|txn| {
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
                name => self.expect_dentry(&NameInDir::new(ino, name)?)?.ino,
            };
        }
        self.getattr(ino)
    }

    /// All entries of a directory by name, without `.` and `..`.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        check_is_dir(&*self.inode_attr(dir)?)?;
        let entries = self.tree.read_head_state(|view| read_dir_entries(view, dir))?;
        self.record_access(dir)?;
        Ok(entries)
    }

    /// What a directory holds under a name.
    pub fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        self.expect_dentry(&NameInDir::new(dir, name)?)
    }

    /// The directory that a directory lies in; of the root itself.
    pub fn parent_dir(&self, ino: Ino) -> Result<Ino> {
        let parent = self.inode_attr(ino)?.parent;
        Ok(if parent == Ino::SUPER { ino } else { parent })
    }

    /// The target of a symlink.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.inode_attr(ino)?;
        if attr.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        self.record_access(ino)?;
        Ok(attr.target.clone())
    }
}

/// All entries of a directory by name.
pub(crate) fn read_dir_entries(view: &dyn MapReader, dir: Ino) -> Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    view.visit_dentries(dir, None, &mut |name, dentry| {
        entries.push(DirEntry { name: name.to_vec(), ino: dentry.ino, kind: dentry.kind });
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

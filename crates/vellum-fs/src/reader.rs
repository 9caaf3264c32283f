//! The states of a live worktree, read by inode: the current one, which is read through caches and records accesses, and
//! views of others.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::tree::{DirectoryEntry, SeekTarget, StateReader};

use crate::attributes::xattr::list_xattr_names;
use crate::content::extents::count_stored_bytes;
use crate::content::seek_in_state;
use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::history::view::LiveView;
use crate::names::{check_is_dir, check_name, read_dir_entries};

impl StateReader<FsError> for LiveFilesystem {
    fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        self.live_map().inode_attr(ino)
    }

    fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        self.names().find_dentry(dir, name)
    }

    fn list_entries(&self, dir: Ino) -> Result<Vec<DirectoryEntry>> {
        self.names().list_entries(dir)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = symlink_target(&*self.inode_attr(ino)?)?;
        self.live_map().record_access(ino)?;
        Ok(target)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        self.attributes().getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.attributes().listxattr(ino)
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.content().read_live(ino, offset, len)
    }

    fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        self.live_map().read_head_state(|view| seek_in_state(view, ino, offset, seek))
    }

    /// Of a file with very many extents it is an estimate, or up to a second old.
    fn stored_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64> {
        self.content().count_live_bytes(ino, attr)
    }
}

impl StateReader<FsError> for LiveView {
    fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        self.read_state(|view| view.expect_inode_attr(ino)).map(Arc::new)
    }

    fn find_dentry(&self, dir: Ino, name: &[u8]) -> Result<Dentry> {
        check_name(name)?;
        self.read_state(|view| match view.lookup_dentry(dir, name)? {
            Some(dentry) => Ok(dentry),
            None => {
                // A name that is not found is `ENOENT` in a directory, and `ENOTDIR` in anything else.
                check_is_dir(&view.expect_inode_attr(dir)?)?;
                Err(Errno::NOENT.into())
            }
        })
    }

    fn list_entries(&self, dir: Ino) -> Result<Vec<DirectoryEntry>> {
        self.read_state(|view| {
            check_is_dir(&view.expect_inode_attr(dir)?)?;
            read_dir_entries(view, dir)
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        symlink_target(&*self.inode_attr(ino)?)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        let value = self.read_state(|view| view.get_value(&MapKey::for_xattr(ino, name)))?;
        Ok(value.ok_or(Errno::NODATA)?.as_bytes().into())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.read_state(|view| list_xattr_names(view, ino))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.filesystem().content().read_sealed(self.layered_state(), ino, offset, len)
    }

    fn seek_data_or_hole(&self, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
        self.read_state(|view| seek_in_state(view, ino, offset, seek))
    }

    fn stored_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64> {
        if attr.kind != FileKind::File || attr.inline.is_some() {
            return Ok(attr.size);
        }
        Ok(self.read_state(|view| count_stored_bytes(view, ino, attr))?.stored)
    }
}

fn symlink_target(attr: &InodeAttr) -> Result<Vec<u8>> {
    if attr.kind == FileKind::Symlink { Ok(attr.target.clone()) } else { Err(Errno::INVAL.into()) }
}

//! Permissions, owners, times, extended attributes. Symlinks are followed, but by [`Dir::lchown`].

use std::path::Path;
use std::time::SystemTime;

use vellum_fs::{AttributeChanges, TimeChange, XattrFlags};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::metadata::time;
use crate::tree::{bytes, sealed::RootedTree};

impl Dir {
    /// Sets the permission bits, the set-id bits and the sticky bit.
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let set = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
        self.set("change the permissions of", bytes(&path), true, &set)
    }

    /// Sets owner and group; None stays.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = AttributeChanges { uid, gid, ..AttributeChanges::default() };
        self.set("change the owner of", bytes(&path), true, &set)
    }

    /// The same, of a symlink itself.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = AttributeChanges { uid, gid, ..AttributeChanges::default() };
        self.set("change the owner of", bytes(&path), false, &set)
    }

    /// Sets the times of the last access and of the last change of content; None stays.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let at = |moment: SystemTime| TimeChange::At(time(moment));
        let set = AttributeChanges {
            atime: accessed.map(at),
            mtime: modified.map(at),
            ..AttributeChanges::default()
        };
        self.set("change the times of", bytes(&path), true, &set)
    }

    /// Sets the size of a file: what is beyond goes, what is missing reads as zeros.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        let set = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        self.set("truncate", bytes(&path), true, &set)
    }

    /// Sets an extended attribute; its name begins with `user.`, `trusted.` or `security.`, as on Linux.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = bytes(&path);
        let set = || {
            let _entered = self.fs().enter();
            let at = self.reader().resolve(path, true)?;
            self.fs().setxattr(at.ino, name.as_ref(), value.as_ref(), XattrFlags::default())
        };
        set().map_err(Error::at("set an extended attribute of", path))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        let path = bytes(&path);
        let _entered = self.fs().enter();
        let remove = || self.fs().removexattr(self.reader().resolve(path, true)?.ino, name.as_ref());
        remove().map_err(Error::at("remove an extended attribute of", path))
    }

    fn set(&self, action: &'static str, path: &[u8], follow: bool, set: &AttributeChanges) -> Result<()> {
        let change = || {
            let _entered = self.fs().enter();
            let at = self.reader().resolve(path, follow)?;
            self.fs().setattr(at.ino, set, caller()).map(drop)
        };
        change().map_err(Error::at(action, path))
    }
}

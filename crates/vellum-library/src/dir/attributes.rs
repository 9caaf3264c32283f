//! Permissions, owners, times, extended attributes. All methods follow symlinks, except [`Dir::lchown`].

use std::path::Path;
use std::time::SystemTime;

use vellum_fs::{AttributeChanges, TimeChange, XattrFlags};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::metadata::from_system_time;
use crate::tree::{path_bytes, sealed::RootedTree};

impl Dir {
    /// Sets the permission bits, the set-id bits and the sticky bit.
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let set = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
        self.set_attributes("change the permissions of", path_bytes(&path), true, &set)
    }

    /// Sets owner and group; `None` leaves one unchanged.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = AttributeChanges { uid, gid, ..AttributeChanges::default() };
        self.set_attributes("change the owner of", path_bytes(&path), true, &set)
    }

    /// Like [`Self::chown`], but does not follow a symlink.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = AttributeChanges { uid, gid, ..AttributeChanges::default() };
        self.set_attributes("change the owner of", path_bytes(&path), false, &set)
    }

    /// Sets the times of the last access and of the last change of content; `None` leaves one unchanged.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let at = |moment: SystemTime| TimeChange::At(from_system_time(moment));
        let set = AttributeChanges {
            atime: accessed.map(at),
            mtime: modified.map(at),
            ..AttributeChanges::default()
        };
        self.set_attributes("change the times of", path_bytes(&path), true, &set)
    }

    /// Sets the size of a file. Content beyond it is removed; added space reads as zeros.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        let set = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        self.set_attributes("truncate", path_bytes(&path), true, &set)
    }

    /// Sets an extended attribute; its name begins with `user.`, `trusted.` or `security.`, as on Linux.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = path_bytes(&path);
        let set = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let at = self.reader().resolve_path(path, true)?;
            self.filesystem().attributes().setxattr(
                at.ino,
                name.as_ref(),
                value.as_ref(),
                XattrFlags::default(),
            )
        };
        set().map_err(Error::for_action("set an extended attribute of", path))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        let path = path_bytes(&path);
        let _entered = self.filesystem().epochs().enter_epoch();
        let remove = || {
            self.filesystem()
                .attributes()
                .removexattr(self.reader().resolve_path(path, true)?.ino, name.as_ref())
        };
        remove().map_err(Error::for_action("remove an extended attribute of", path))
    }

    fn set_attributes(
        &self,
        action: &'static str,
        path: &[u8],
        follow: bool,
        set: &AttributeChanges,
    ) -> Result<()> {
        let change = || {
            // As long as this guard is held no restore begins, which could make the number that is looked up another file's.
            let _entered = self.filesystem().epochs().enter_epoch();
            let at = self.reader().resolve_path(path, follow)?;
            self.filesystem().attributes().setattr(at.ino, set, caller()).map(drop)
        };
        change().map_err(Error::for_action(action, path))
    }
}

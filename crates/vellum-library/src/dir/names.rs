//! Making, removing and renaming.

use std::path::Path;

use rustix::io::Errno;
use vellum_fs::{FsError, RenameFlags, Result as FsResult};
use vellum_types::{Dentry, FileKind};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::paths::ParentAndName;
use crate::tree::{path_bytes, sealed::RootedTree};

/// Permissions of new directories.
const MODE: u32 = 0o755;

impl Dir {
    /// Makes a directory.
    pub fn mkdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let _entered = self.filesystem().enter_epoch();
        self.create_dir(path).map_err(Error::for_action("make the directory", path))
    }

    /// Makes a directory, and those above it that are missing. That it is there is no error.
    pub fn mkdir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let _entered = self.filesystem().enter_epoch();
        self.create_dir_all(path).map_err(Error::for_action("make the directory", path))
    }

    /// Removes a name; of a directory, which must be empty, too. What has it open keeps it.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let remove = || {
            let _entered = self.filesystem().enter_epoch();
            let (place, entry) = self.find_entry(path)?;
            match entry.kind {
                FileKind::Dir => self.filesystem().rmdir(place.dir, place.name),
                _ => self.filesystem().unlink(place.dir, place.name),
            }
        };
        remove().map_err(Error::for_action("remove", path))
    }

    /// Removes what stands at a path, with all below it. That nothing is there is no error.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let remove = || {
            let _entered = self.filesystem().enter_epoch();
            let (place, _) = self.find_entry(path)?;
            self.filesystem().remove_tree(place.dir, place.name)
        };
        match remove() {
            Err(FsError::Posix(Errno::NOENT | Errno::STALE)) => Ok(()),
            done => done.map_err(Error::for_action("remove", path)),
        }
    }

    /// Gives what stands at a path another one. What stands there goes, a directory only if it is empty.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = path_bytes(&from);
        let to = path_bytes(&to);
        let rename = || {
            let _entered = self.filesystem().enter_epoch();
            // Both directories before both names, as Linux looks them up.
            let [old, new] = [self.split_name(from, Errno::BUSY)?, self.split_name(to, Errno::BUSY)?];
            let entry = self.filesystem().find_dentry(old.dir, old.name)?;
            if (old.is_dir || new.is_dir) && entry.kind != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            self.filesystem().rename(old.dir, old.name, new.dir, new.name, RenameFlags::default())
        };
        rename().map_err(Error::for_action("rename", from))
    }

    /// Makes a symlink that leads to `target`, whether that is there or not.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = path_bytes(&target);
        let path = path_bytes(&path);
        let make = || {
            let _entered = self.filesystem().enter_epoch();
            let place = self.split_name(path, Errno::EXIST)?;
            self.refuse_trailing_slash(&place)?;
            self.filesystem().symlink(place.dir, place.name, target, caller()).map(drop)
        };
        make().map_err(Error::for_action("make the symlink", path))
    }

    /// Gives a file another name beside the one it has. A symlink gets one itself.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = path_bytes(&from);
        let to = path_bytes(&to);
        let link = || {
            let _entered = self.filesystem().enter_epoch();
            let found = self.reader().resolve_path(from, false)?;
            let place = self.split_name(to, Errno::EXIST)?;
            self.refuse_trailing_slash(&place)?;
            // Linux says so first, also of directories, which cannot be linked.
            if self.filesystem().find_dentry(place.dir, place.name).is_ok() {
                return Err(Errno::EXIST.into());
            }
            self.filesystem().link(found.ino, place.dir, place.name).map(drop)
        };
        link().map_err(Error::for_action("make the link", to))
    }

    fn create_dir(&self, path: &[u8]) -> FsResult<()> {
        let place = self.split_name(path, Errno::EXIST)?;
        self.filesystem().mkdir(place.dir, place.name, MODE, caller()).map(drop)
    }

    fn create_dir_all(&self, path: &[u8]) -> FsResult<()> {
        match self.create_dir(path) {
            Err(FsError::Posix(Errno::NOENT)) => {
                let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
                let slash = path.get(..end).and_then(|path| path.iter().rposition(|byte| *byte == b'/'));
                let above = slash.and_then(|slash| path.get(..slash)).filter(|above| !above.is_empty());
                self.create_dir_all(above.ok_or(Errno::NOENT)?)?;
                match self.create_dir(path) {
                    // Somebody else made it.
                    Err(FsError::Posix(Errno::EXIST)) => self.expect_dir(path),
                    done => done,
                }
            }
            Err(FsError::Posix(Errno::EXIST)) => self.expect_dir(path),
            done => done,
        }
    }

    fn expect_dir(&self, path: &[u8]) -> FsResult<()> {
        match self.reader().resolve_path(path, true) {
            Ok(found) if found.kind == FileKind::Dir => Ok(()),
            _ => Err(Errno::EXIST.into()),
        }
    }

    /// What stands at a path that ends with a name, and the name.
    fn find_entry<'p>(&self, path: &'p [u8]) -> FsResult<(ParentAndName<'p>, Dentry)> {
        let place = self.split_name(path, Errno::BUSY)?;
        let entry = self.filesystem().find_dentry(place.dir, place.name)?;
        if place.is_dir && entry.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        Ok((place, entry))
    }

    /// The name that a path ends with; the error if it ends with none.
    pub(super) fn split_name<'p>(&self, path: &'p [u8], otherwise: Errno) -> FsResult<ParentAndName<'p>> {
        self.reader().split_parent(path)?.ok_or_else(|| otherwise.into())
    }

    /// Refuses a slash after a name that is to be no directory's.
    fn refuse_trailing_slash(&self, place: &ParentAndName<'_>) -> FsResult<()> {
        match (place.is_dir, self.filesystem().find_dentry(place.dir, place.name)) {
            (false, _) => Ok(()),
            (true, Ok(_)) => Err(Errno::EXIST.into()),
            (true, Err(_)) => Err(Errno::NOENT.into()),
        }
    }
}

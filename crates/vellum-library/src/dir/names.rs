//! Creating, removing and renaming entries.

use std::path::Path;

use rustix::io::Errno;
use vellum_fs::StateReader;
use vellum_fs::{FsError, RenameFlags, Result as FsResult};
use vellum_types::{Dentry, FileKind};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::paths::ParentAndName;
use crate::tree::{path_bytes, sealed::RootedTree};

/// Permissions of new directories.
const MODE: u32 = 0o755;

impl Dir {
    /// Creates a directory.
    pub fn mkdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let _entered = self.filesystem().epochs().enter_epoch();
        self.create_dir(path).map_err(Error::for_action("make the directory", path))
    }

    /// Creates a directory and its missing parents. It is not an error if it exists.
    pub fn mkdir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        // One guard for all directories: a restore in between could take away those that were just made.
        let _entered = self.filesystem().epochs().enter_epoch();
        self.create_dir_all(path).map_err(Error::for_action("make the directory", path))
    }

    /// Removes a name, also that of an empty directory. Processes that have it open keep it.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let remove = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let (place, entry) = self.find_entry(path)?;
            match entry.kind {
                FileKind::Dir => self.filesystem().names().rmdir(place.dir, place.name, caller().uid),
                _ => self.filesystem().names().unlink(place.dir, place.name, caller().uid),
            }
        };
        remove().map_err(Error::for_action("remove", path))
    }

    /// Removes an entry with everything below it. It is not an error if it does not exist.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let remove = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let (place, _) = self.find_entry(path)?;
            self.filesystem().names().remove_tree(place.dir, place.name, caller().uid)
        };
        match remove() {
            // Somebody else may have removed it in between. The purpose is fulfilled all the same.
            Err(FsError::Posix(Errno::NOENT | Errno::STALE)) => Ok(()),
            done => done.map_err(Error::for_action("remove", path)),
        }
    }

    /// Renames an entry. An existing entry of the new name is replaced; a directory only if it is empty.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = path_bytes(&from);
        let to = path_bytes(&to);
        let rename = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            // Both directories before both names, as Linux looks them up.
            let [old, new] = [self.split_name(from, Errno::BUSY)?, self.split_name(to, Errno::BUSY)?];
            let flags = RenameFlags { uid: caller().uid, ..RenameFlags::default() };
            let entry = self.filesystem().find_dentry(old.dir, old.name)?;
            // As in Linux: unless a directory is renamed, a slash at the end of either path is an error.
            if (old.is_dir || new.is_dir) && entry.kind != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            self.filesystem().names().rename(old.dir, old.name, new.dir, new.name, flags)
        };
        rename().map_err(Error::for_action("rename", from))
    }

    /// Creates a symlink to `target`, which need not exist.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = path_bytes(&target);
        let path = path_bytes(&path);
        let make = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let place = self.split_name(path, Errno::EXIST)?;
            self.refuse_trailing_slash(&place)?;
            self.filesystem().names().symlink(place.dir, place.name, target, caller()).map(drop)
        };
        make().map_err(Error::for_action("make the symlink", path))
    }

    /// Creates a hard link to a file. A symlink is linked itself, not followed.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = path_bytes(&from);
        let to = path_bytes(&to);
        let link = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let found = self.reader().resolve_path(from, false)?;
            let place = self.split_name(to, Errno::EXIST)?;
            self.refuse_trailing_slash(&place)?;
            // Linux checks this first, also for directories, which cannot be linked.
            if self.filesystem().find_dentry(place.dir, place.name).is_ok() {
                return Err(Errno::EXIST.into());
            }
            self.filesystem().names().link(found.ino, place.dir, place.name).map(drop)
        };
        link().map_err(Error::for_action("make the link", to))
    }

    fn create_dir(&self, path: &[u8]) -> FsResult<()> {
        let place = self.split_name(path, Errno::EXIST)?;
        self.filesystem().names().mkdir(place.dir, place.name, MODE, caller()).map(drop)
    }

    fn create_dir_all(&self, path: &[u8]) -> FsResult<()> {
        match self.create_dir(path) {
            Err(FsError::Posix(Errno::NOENT)) => {
                // Slashes at the end are no part of the last name.
                let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
                let slash = path.get(..end).and_then(|path| path.iter().rposition(|byte| *byte == b'/'));
                let above = slash.and_then(|slash| path.get(..slash)).filter(|above| !above.is_empty());
                self.create_dir_all(above.ok_or(Errno::NOENT)?)?;
                match self.create_dir(path) {
                    // Another thread made it.
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
            // A symlink to a directory counts as one, as for `mkdir -p`.
            Ok(found) if found.kind == FileKind::Dir => Ok(()),
            _ => Err(Errno::EXIST.into()),
        }
    }

    /// Returns the entry at a path that ends with a name, and the name.
    fn find_entry<'p>(&self, path: &'p [u8]) -> FsResult<(ParentAndName<'p>, Dentry)> {
        let place = self.split_name(path, Errno::BUSY)?;
        let entry = self.filesystem().find_dentry(place.dir, place.name)?;
        if place.is_dir && entry.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        Ok((place, entry))
    }

    /// Returns the last name of a path, or the error if there is none.
    pub(super) fn split_name<'p>(&self, path: &'p [u8], otherwise: Errno) -> FsResult<ParentAndName<'p>> {
        self.reader().split_parent(path)?.ok_or_else(|| otherwise.into())
    }

    /// Fails if a slash follows a name that is not to be a directory.
    fn refuse_trailing_slash(&self, place: &ParentAndName<'_>) -> FsResult<()> {
        // As in Linux, where a name that is taken counts before a slash behind it.
        match (place.is_dir, self.filesystem().find_dentry(place.dir, place.name)) {
            (false, _) => Ok(()),
            (true, Ok(_)) => Err(Errno::EXIST.into()),
            (true, Err(_)) => Err(Errno::NOENT.into()),
        }
    }
}

//! Removing a directory with everything in it.

use rustix::io::Errno;
use vellum_types::{FileKind, Ino};
use vellum_volume::tree::DirectoryEntry;

use super::LiveNames;
use crate::error::{FsError, Result};

/// A directory that is to go.
struct RemovedDirectory {
    parent: Ino,
    name: Vec<u8>,
    ino: Ino,
    /// What is in it and has to go before; None: to be found out.
    below: Option<Vec<DirectoryEntry>>,
}

impl LiveNames {
    /// Removes an entry and everything below it, for a user, including entries that are created meanwhile. Entries that
    /// another caller removes meanwhile are no error.
    pub fn remove_tree(&self, dir: Ino, name: &[u8], uid: u32) -> Result<()> {
        let entry = self.find_dentry(dir, name)?;
        if entry.kind != FileKind::Dir {
            return self.unlink(dir, name, uid);
        }
        let mut path =
            vec![RemovedDirectory { parent: dir, name: name.to_vec(), ino: entry.ino, below: None }];
        // A list instead of recursion: depth is bounded only by what somebody made.
        while let Some(going) = path.last_mut() {
            let below = match going.below.take() {
                Some(below) => below,
                // A directory that is gone holds nothing, and `rmdir` below finds it missing, too.
                None => ignore_not_found(self.remove_dir_files(going.ino, uid))?.unwrap_or_default(),
            };
            let parent = going.ino;
            let mut below = below;
            if let Some(DirectoryEntry { name, ino, .. }) = below.pop() {
                going.below = Some(below);
                path.push(RemovedDirectory { parent, name, ino, below: None });
                continue;
            }
            match ignore_not_found(self.rmdir(going.parent, &going.name, uid)) {
                // Somebody put something there: it is looked for again.
                Err(FsError::Posix(Errno::NOTEMPTY)) => {}
                done => {
                    done?;
                    path.pop();
                }
            }
        }
        Ok(())
    }

    /// Removes what a directory holds, but for directories, which it gives.
    fn remove_dir_files(&self, dir: Ino, uid: u32) -> Result<Vec<DirectoryEntry>> {
        let mut dirs = Vec::new();
        for entry in self.list_entries(dir)? {
            if entry.kind == FileKind::Dir {
                dirs.push(entry);
            } else {
                ignore_not_found(self.unlink(dir, &entry.name, uid))?;
            }
        }
        Ok(dirs)
    }
}

/// What is gone already need not be removed.
fn ignore_not_found<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(FsError::Posix(Errno::NOENT | Errno::STALE)) => Ok(None),
        Err(error) => Err(error),
    }
}

//! Hidden directories: new directories that become visible together with their content.
//!
//! Invariant: a hidden directory has a temporary name until it is complete; its writer holds its lock that long, so
//! that [`remove_stale_hidden_dir`] removes only those of killed writers. Files in it are created under their final
//! names: renaming one directory costs less than renaming all of its files. Deliberately absent: subdirectories of a
//! hidden directory.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_types::LookupResult;

use super::dir::{HeldDir, system_error};
use super::{BeneathError, Result, StagedFile, new_temp_name};

/// Permissions of a directory until its own are applied, so that other users cannot read it before.
const PRIVATE: u32 = 0o700;
/// How often another directory is created if one was removed before it was locked.
const TRIES: usize = 16;

/// A directory that is being filled. Dropping it before [`HiddenDir::commit`] removes it with its entries.
#[derive(Debug)]
pub struct HiddenDir {
    parent: HeldDir,
    temp: Vec<u8>,
    dir: HeldDir,
    is_named: std::sync::atomic::AtomicBool,
}

impl HeldDir {
    /// Creates a hidden directory in this one.
    pub fn create_hidden_dir(&self) -> Result<HiddenDir> {
        for _ in 0..TRIES {
            let temp = new_temp_name()?;
            // Between this call and the lock, another run can take the directory for one that a killed run
            // left, and remove it. Then the next name is tried.
            self.create_dir(&temp, PRIVATE)?;
            match self.open_dir_to_read(&temp) {
                Ok(dir) if lock_new_dir(&dir)? => {
                    return Ok(HiddenDir { parent: self.clone(), temp, dir, is_named: false.into() });
                }
                // Another run removed it as that of a killed writer.
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Err(system_error("make a directory in", b".", Errno::BUSY))
    }
}

/// Locks a new directory; false if another process is removing it, or has removed it.
fn lock_new_dir(dir: &HeldDir) -> Result<bool> {
    // Where there are no locks nothing is swept either.
    let locked = flock(dir, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
    // A directory that was removed before it was locked can still be locked, but has no links.
    Ok(locked && dir.stat_self()?.nlink > 0)
}

impl HiddenDir {
    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &HeldDir {
        &self.dir
    }

    /// Creates a file in it under its final name, with its final mode, reduced by the umask.
    pub fn stage_file(&self, name: &[u8], mode: u32) -> Result<StagedFile> {
        StagedFile::stage_hidden(&self.dir, name, mode)
    }

    /// Gives the directory its name atomically, unless the name exists.
    pub fn commit(&self, name: &[u8]) -> Result<()> {
        // The lock is given up after the rename: as long as the name is temporary, the lock protects it.
        self.parent.rename_no_replace(&self.temp, &self.parent, name)?;
        self.is_named.store(true, std::sync::atomic::Ordering::Relaxed);
        // The lock is not needed after the rename, and the descriptor may be kept open for long.
        let _ = flock(&self.dir, FlockOperation::Unlock);
        Ok(())
    }

    /// Moves its entries into another directory, except those whose names exist there; returns the others with their
    /// errors.
    pub fn move_entries_into(&self, into: &HeldDir) -> Result<Vec<(Vec<u8>, BeneathError)>> {
        let mut stayed = Vec::new();
        for listed in self.dir.read_names()?.iter() {
            if let Err(error) = self.dir.rename_no_replace(listed.name, into, listed.name) {
                stayed.push((listed.name.to_vec(), error));
            }
        }
        Ok(stayed)
    }
}

impl Drop for HiddenDir {
    fn drop(&mut self) {
        if !self.is_named.load(std::sync::atomic::Ordering::Relaxed) {
            // What cannot be removed now is swept later.
            let _ = remove_dir_tree(&self.parent, &self.temp, &self.dir);
        }
    }
}

/// Removes a directory with a temporary name that a killed writer left; false if a writer holds its lock, or the name
/// is not a temporary one.
pub fn remove_stale_hidden_dir(parent: &HeldDir, temp: &[u8]) -> Result<bool> {
    let dir = parent.open_dir_to_read(temp)?;
    // Its writer is alive.
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    // It may have got its own name, and been unlocked, since it was opened.
    if !parent.stat(temp)?.is_same_file(&dir.stat_self()?) {
        return Ok(false);
    }
    remove_dir_tree(parent, temp, &dir).map(|()| true)
}

fn remove_dir_tree(parent: &HeldDir, temp: &[u8], dir: &HeldDir) -> Result<()> {
    for listed in dir.read_names()?.iter() {
        // Hidden directories contain no directories, so one level is enough.
        dir.unlink(listed.name).ignore_missing()?;
    }
    parent.remove_dir(temp)
}

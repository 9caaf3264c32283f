//! Partial files: the received part of a large file is kept under a name that the next run finds, if the run is cut
//! off.
//!
//! Invariant: content of an earlier run is not trusted; it is compared with the source before it is used.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_host::beneath::{BeneathError, HeldDir, ReplacePolicy, TEMP_PREFIX, stat_file};
use vellum_types::LookupResult;
use xxhash_rust::xxh3::xxh3_64;

use super::keep::create_path;
use super::staging::StagingDirectories;
use crate::error::Result;
use crate::model::listing::ListingEntry;
use crate::model::options::WriteOptions;

/// Files up to this many bytes are sent again: that costs less than comparing their received part.
const SIZE_MIN: u64 = 1 << 20;

/// A file being written that stays if the run is cut off.
pub(super) struct PartialFile {
    dir: HeldDir,
    name: Vec<u8>,
    /// The file, at first with the content of an earlier run.
    pub file: File,
    /// The directory that was created for it: its parent and its name.
    made: Option<(HeldDir, Vec<u8>)>,
}

/// The location of a partial file.
pub(super) struct PartialPlace {
    pub dir: HeldDir,
    pub name: Vec<u8>,
    /// The directory that is created for it: its parent and its name.
    made: Option<(HeldDir, Vec<u8>)>,
}

/// The name of the partial file of a source file; it changes with the file.
pub(crate) fn partial_file_name(entry: &ListingEntry<'_>) -> Vec<u8> {
    let mut key = entry.path();
    let size = entry.size();
    let mtime = entry.mtime();
    // With size and time in the name, a later version of the source does not continue an earlier one.
    key.extend_from_slice(&size.to_le_bytes());
    key.extend_from_slice(&mtime.secs.to_le_bytes());
    key.extend_from_slice(&mtime.nanos.to_le_bytes());
    [TEMP_PREFIX, format!("{:016x}", xxh3_64(&key)).as_bytes()].concat()
}

impl PartialFile {
    /// Opens or creates it; None if the options exclude it, the file is small, or another run is writing it.
    pub fn open(
        dir: &HeldDir,
        entry: &ListingEntry<'_>,
        writing: &WriteOptions,
        staging: &StagingDirectories,
    ) -> Result<Option<Self>> {
        if entry.size() <= SIZE_MIN || !(writing.resume || writing.partial_dir.is_some()) {
            return Ok(None);
        }
        let PartialPlace { dir: home, name, made } = Self::resolve_location(dir, entry, writing, staging)?;
        let file = match home.open_file_to_update(&name) {
            // Writing would change the file under its other names as well. Only a user can have linked it.
            Ok(opened) if opened.stat.nlink == 1 => Some(opened.file),
            Ok(_) => None,
            Err(error) if error.is_not_found() => create_partial_file(&home, &name)?,
            Err(error) => return Err(error.into()),
        };
        // A second run on the same destination writes its own copy instead.
        let Some(file) = file else { return Ok(None) };
        let is_locked = lock_named_file(&home, &name, &file)?;
        Ok(is_locked.then_some(Self { dir: home, name, file, made }))
    }

    /// Determines its location.
    pub fn resolve_location(
        dir: &HeldDir,
        entry: &ListingEntry<'_>,
        writing: &WriteOptions,
        staging: &StagingDirectories,
    ) -> Result<PartialPlace> {
        Ok(match (&staging.partial, &writing.partial_dir) {
            // Files of all directories meet there.
            (Some(common), _) => {
                PartialPlace { dir: common.clone(), name: partial_file_name(entry), made: None }
            }
            (None, None) => {
                let dir = staging.temp.as_ref().unwrap_or(dir).clone();
                PartialPlace { dir, name: partial_file_name(entry), made: None }
            }
            (None, Some(path)) => {
                let made = Some((dir.clone(), path.clone()));
                PartialPlace { dir: create_path(dir, path)?, name: entry.name().to_vec(), made }
            }
        })
    }

    /// Removes it if it is empty, or useless for another run.
    pub fn discard_unless_useful(&self, is_of_use: bool) {
        if !is_of_use || self.arrived_len() == 0 {
            // What cannot be removed is found by the next run.
            let _ = self.dir.unlink(&self.name);
            self.remove_dir();
        }
    }

    /// The length of its content.
    pub fn arrived_len(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    /// Renames it to its final name.
    pub fn commit_in(&self, to: &HeldDir, name: &[u8], replace: ReplacePolicy) -> Result<(), BeneathError> {
        match replace {
            ReplacePolicy::Always => self.dir.rename(&self.name, to, name)?,
            ReplacePolicy::Never => self.dir.rename_no_replace(&self.name, to, name)?,
        }
        self.remove_dir();
        Ok(())
    }

    fn remove_dir(&self) {
        if let Some((parent, path)) = &self.made
            // Only a directory directly beside the file was created for it alone.
            && !path.contains(&b'/')
        {
            // The directory may still contain other files.
            let _ = parent.remove_dir(path);
        }
    }
}

/// Creates a partial file; None if another run has just created it.
fn create_partial_file(dir: &HeldDir, name: &[u8]) -> Result<Option<File>> {
    match dir.create_file(name, 0o600) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.errno() == Some(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Locks a partial file for as long as it is open; false if another run writes it, or has completed it.
fn lock_named_file(dir: &HeldDir, name: &[u8], file: &File) -> Result<bool> {
    // Filesystems without locks fail with other errors. Two runs at a time are not kept apart there.
    if flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Ok(false);
    }
    // Until the lock was granted, another run may have held it, given the file its final name, and ended. The
    // file must not be written to then.
    let Some(stat) = dir.stat(name).none_if_missing()? else { return Ok(false) };
    Ok(stat.is_same_file(&stat_file(file)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was written over in place, under its final name.
    #[test]
    fn a_file_that_another_run_completed_before_the_lock_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let file = create_partial_file(&dir, b"partial").unwrap().unwrap();
        assert!(lock_named_file(&dir, b"partial", &file).unwrap());
        let other = dir.open_file_to_update(b"partial").unwrap().file;
        assert!(!lock_named_file(&dir, b"partial", &other).unwrap());
        dir.rename(b"partial", &dir, b"final").unwrap();
        drop(file);
        assert!(!lock_named_file(&dir, b"partial", &other).unwrap());
        // A third run has begun the file anew.
        let _new = create_partial_file(&dir, b"partial").unwrap().unwrap();
        assert!(!lock_named_file(&dir, b"partial", &other).unwrap());
    }

    #[test]
    fn a_file_that_another_run_creates_at_the_same_time_is_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let _theirs = create_partial_file(&dir, b"partial").unwrap().unwrap();
        assert!(create_partial_file(&dir, b"partial").unwrap().is_none());
    }
}

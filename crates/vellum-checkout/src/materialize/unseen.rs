//! New directories that are filled while they are hidden: their files are created under their final names, with half of
//! the system calls.
//!
//! Invariant: such a directory gets its name once the last of its files is done or given up, or once it contains many
//! bytes; until then it has a temporary name, and is removed if it is dropped. A killed run leaves temporary
//! directories, which the next one removes. Deliberately absent: directories in which others are created, which must
//! have their names before.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vellum_host::beneath::{BeneathError, HeldDir, HiddenDir, StagedFile};
use vellum_host::metadata::FreshFileDefaults;
use vellum_types::Ino;

use crate::error::Result;
use crate::plan::{FileWrite, PlanSteps, TargetEntry};

/// Fewest files: the cost of a temporary name and a rename is that of a few files.
const FILES_MIN: usize = 4;
/// Most bytes, for each directory, which a killed run has to write again.
const BYTES_MAX: u64 = 256 << 20;

/// The new directories of a plan that are filled while hidden.
#[derive(Default)]
pub struct HiddenDirs<'a> {
    dirs: HashMap<Ino, HiddenDirState<'a>>,
}

/// One hidden directory.
struct HiddenDirState<'a> {
    place: &'a TargetEntry,
    /// The number of files in it that are not done yet.
    left: usize,
    /// Bytes of the files that are done.
    bytes: u64,
    home: Mutex<FillLocation>,
}

/// Where its files are created.
enum FillLocation {
    /// The directory does not exist yet.
    Unmade,
    /// In the directory with a temporary name.
    Unseen(Arc<HiddenFillDir>),
    /// In the directory with its final name.
    Named,
}

/// An existing hidden directory.
pub struct HiddenFillDir {
    hidden: HiddenDir,
    /// The initial attributes of new files, by the mode of their creation.
    fresh: Mutex<Vec<(u32, FreshFileDefaults)>>,
}

impl HiddenFillDir {
    /// The directory.
    pub fn dir(&self) -> &HeldDir {
        self.hidden.dir()
    }

    /// Creates a file under its final name; returns it with its initial attributes.
    pub fn stage_file(&self, name: &[u8], mode: u32) -> Result<(StagedFile, FreshFileDefaults)> {
        let new = self.hidden.stage_file(name, mode)?;
        // What a new file looks like depends on the umask, the default ACL and the set-group-id bit of the
        // directory, all of which are the same for all files of one directory and mode. So one `statx` for
        // each mode is enough.
        let known = || self.fresh.lock();
        if let Some((_, fresh)) = known().iter().find(|(of, _)| *of == mode) {
            return Ok((new, *fresh));
        }
        let fresh = FreshFileDefaults::from_node(&new.node()?)?;
        known().push((mode, fresh));
        Ok((new, fresh))
    }
}

impl<'a> HiddenDirs<'a> {
    /// Selects the directories for which it pays: with some files, none of which replaces an entry, and without
    /// subdirectories.
    pub fn from_steps(steps: &'a PlanSteps) -> Self {
        let dir = |place: &'a TargetEntry| {
            (place.ino, HiddenDirState { place, left: 0, bytes: 0, home: Mutex::new(FillLocation::Unmade) })
        };
        let mut dirs: HashMap<_, _> = steps.make_dirs.iter().map(dir).collect();
        // `dirs` are found by the path that the target gives them, so a directory with subdirectories must
        // have its name when these are created.
        for place in &steps.make_dirs {
            dirs.remove(&place.dir);
        }
        for write in &steps.writes {
            // The file to be replaced is in an existing directory of that name.
            if write.replaces.is_some() || write.overwrites {
                dirs.remove(&write.place.dir);
            } else if let Some(dir) = dirs.get_mut(&write.place.dir) {
                dir.left += 1;
            }
        }
        dirs.retain(|_, dir| dir.left >= FILES_MIN);
        Self { dirs }
    }

    /// Whether a directory is one of them.
    pub fn contains(&self, dir: Ino) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// The hidden directory for entries of a directory; None if it has its name, or is not a hidden one. `parent` opens
    /// the directory above it.
    pub fn find_fill_dir(
        &self,
        dir: Ino,
        parent: impl FnOnce(&TargetEntry) -> Result<HeldDir>,
    ) -> Result<Option<Arc<HiddenFillDir>>> {
        let Some(unseen) = self.dirs.get(&dir) else { return Ok(None) };
        let mut home = unseen.lock();
        // The lock is held while the directory is created, so that two workers do not create two.
        if matches!(*home, FillLocation::Unmade) {
            let hidden = parent(unseen.place)?.create_hidden_dir()?;
            *home = FillLocation::Unseen(Arc::new(HiddenFillDir { hidden, fresh: Mutex::default() }));
        }
        Ok(match &*home {
            FillLocation::Unseen(home) => Some(home.clone()),
            FillLocation::Unmade | FillLocation::Named => None,
        })
    }

    /// Counts files that are done or given up, while no file is being written; returns the directories that can get
    /// their names.
    pub fn count_finished_files<'w>(
        &mut self,
        done: impl Iterator<Item = (&'w FileWrite, u64)>,
    ) -> Vec<FilledDir<'a>> {
        let mut ready = Vec::new();
        for (write, bytes) in done {
            let Some(dir) = self.dirs.get_mut(&write.place.dir) else { continue };
            dir.left = dir.left.saturating_sub(1);
            dir.bytes += bytes;
            if dir.left > 0 && dir.bytes < BYTES_MAX {
                continue;
            }
            // Batches do not overlap: when this is called, no worker writes into the directory. Later files
            // of a directory that is named early are written as in any other.
            if let FillLocation::Unseen(home) = std::mem::replace(&mut *dir.lock(), FillLocation::Named) {
                ready.push(FilledDir { place: dir.place, home });
            }
        }
        ready
    }
}

impl HiddenDirState<'_> {
    fn lock(&self) -> MutexGuard<'_, FillLocation> {
        self.home.lock()
    }
}

/// A filled directory that is to get its name.
pub struct FilledDir<'a> {
    /// Its place.
    pub place: &'a TargetEntry,
    home: Arc<HiddenFillDir>,
}

impl FilledDir<'_> {
    /// Renames it to its final name. If that exists already, its entries are moved into the existing directory; returns
    /// those that could not be moved.
    pub fn publish_name(self, parent: &HeldDir) -> Result<Vec<(Vec<u8>, BeneathError)>> {
        let name = &self.place.name;
        match self.home.hidden.commit(name) {
            // Made by an earlier, interrupted run, or something that was left out of the scan.
            Err(error) if error.errno() == Some(rustix::io::Errno::EXIST) => {
                Ok(self.home.hidden.move_entries_into(&parent.open_dir(name)?)?)
            }
            done => Ok(done.map(|()| Vec::new())?),
        }
    }
}

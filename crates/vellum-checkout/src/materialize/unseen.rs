//! New directories that are filled while they are hidden: their files are created under their own names, with half of
//! the system calls.
//!
//! Invariant: such a directory gets its name when the last of its files is done or given up, or when much is in it; until
//! then it has a temporary one, and goes if nothing more comes of it. A run that is killed leaves temporary directories,
//! which the next one sweeps. Deliberately absent: directories in which others are made, which must have their names
//! before.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vellum_host::beneath::{BeneathError, HeldDir, HiddenDir, StagedFile};
use vellum_host::metadata::FreshFileDefaults;
use vellum_types::Ino;

use crate::error::Result;
use crate::plan::{FileWrite, PlanSteps, TargetEntry};

/// Files for which it is worth it: a name that must be drawn, and given, is paid for by a few.
const FILES_MIN: usize = 4;
/// Bytes that a run which is killed may have to write again, for each directory.
const BYTES_MAX: u64 = 256 << 20;

/// The new directories of a plan that are filled unseen.
#[derive(Default)]
pub struct HiddenDirs<'a> {
    dirs: HashMap<Ino, HiddenDirState<'a>>,
}

/// One of them.
struct HiddenDirState<'a> {
    place: &'a TargetEntry,
    /// Files in it that are not done yet.
    left: usize,
    /// Bytes of those that are done.
    bytes: u64,
    home: Mutex<FillLocation>,
}

/// Where its files are made.
enum FillLocation {
    /// Not made yet.
    Unmade,
    /// Under a temporary name.
    Unseen(Arc<HiddenFillDir>),
    /// Under its own name.
    Named,
}

/// A directory that nobody sees.
pub struct HiddenFillDir {
    hidden: HiddenDir,
    /// What new files are like, by the mode that they were asked for.
    fresh: Mutex<Vec<(u32, FreshFileDefaults)>>,
}

impl HiddenFillDir {
    /// The directory.
    pub fn dir(&self) -> &HeldDir {
        self.hidden.dir()
    }

    /// Makes a file under its own name; and says what such a file is like before anything is applied to it.
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
    /// Those that are worth it: with some files, nothing in the way of them, and no directories.
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

    /// Where to make what belongs in a directory; None if it has its name, or is none of these. `parent` opens the
    /// directory above it.
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

    /// Counts files that are done or given up, while none is being made; gives the directories that are to be named now.
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

/// A directory that is to be named.
pub struct FilledDir<'a> {
    /// Where it belongs.
    pub place: &'a TargetEntry,
    home: Arc<HiddenFillDir>,
}

impl FilledDir<'_> {
    /// Gives it its name. If a directory has that already, what is in it goes there, as far as names are free; gives
    /// what could not be moved.
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

//! New directories that are filled before anybody sees them: a file in one is made under its own name, and costs half the
//! calls.
//!
//! Invariant: such a directory gets its name when the last of its files is done or given up, or when much is in it; until
//! then it has a temporary one, and goes if nothing more comes of it. A run that is killed leaves temporary directories,
//! which the next one sweeps. Deliberately absent: directories in which others are made, which must have their names
//! before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vellum_types::Ino;

use crate::beneath::{BeneathError, Dir, HiddenDir, NewFile};
use crate::error::Result;
use crate::meta::FreshFile;
use crate::plan::{Place, Steps, Write};

/// Files for which it is worth it: a name that must be drawn, and given, is paid for by a few.
const FILES_MIN: usize = 4;
/// Bytes that a run which is killed may have to write again, for each directory.
const BYTES_MAX: u64 = 256 << 20;

/// The new directories of a plan that are filled unseen.
#[derive(Default)]
pub struct UnseenDirs<'a> {
    dirs: HashMap<Ino, UnseenDir<'a>>,
}

/// One of them.
struct UnseenDir<'a> {
    place: &'a Place,
    /// Files in it that are not done yet.
    left: usize,
    /// Bytes of those that are done.
    bytes: u64,
    home: Mutex<Home>,
}

/// Where its files are made.
enum Home {
    /// Not made yet.
    Unmade,
    /// Under a temporary name.
    Unseen(Arc<UnseenHome>),
    /// Under its own name.
    Named,
}

/// A directory that nobody sees.
pub struct UnseenHome {
    hidden: HiddenDir,
    /// What new files are like, by the mode that they were asked for.
    fresh: Mutex<Vec<(u32, FreshFile)>>,
}

impl UnseenHome {
    /// The directory.
    pub fn dir(&self) -> &Dir {
        self.hidden.dir()
    }

    /// Makes a file under its own name; and says what such a file is like before anything is applied to it.
    pub fn new_file(&self, name: &[u8], mode: u32) -> Result<(NewFile, FreshFile)> {
        let new = self.hidden.new_file(name, mode)?;
        let known = || self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, fresh)) = known().iter().find(|(of, _)| *of == mode) {
            return Ok((new, *fresh));
        }
        let fresh = FreshFile::of(&new.node()?)?;
        known().push((mode, fresh));
        Ok((new, fresh))
    }
}

impl<'a> UnseenDirs<'a> {
    /// Those that are worth it: with some files, nothing in the way of them, and no directories.
    pub fn of(steps: &'a Steps) -> Self {
        let dir = |place: &'a Place| {
            (place.ino, UnseenDir { place, left: 0, bytes: 0, home: Mutex::new(Home::Unmade) })
        };
        let mut dirs: HashMap<_, _> = steps.make_dirs.iter().map(dir).collect();
        for place in &steps.make_dirs {
            dirs.remove(&place.dir);
        }
        for write in &steps.writes {
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
    pub fn home(
        &self,
        dir: Ino,
        parent: impl FnOnce(&Place) -> Result<Dir>,
    ) -> Result<Option<Arc<UnseenHome>>> {
        let Some(unseen) = self.dirs.get(&dir) else { return Ok(None) };
        let mut home = unseen.lock();
        if matches!(*home, Home::Unmade) {
            let hidden = parent(unseen.place)?.hidden_dir()?;
            *home = Home::Unseen(Arc::new(UnseenHome { hidden, fresh: Mutex::default() }));
        }
        Ok(match &*home {
            Home::Unseen(home) => Some(home.clone()),
            Home::Unmade | Home::Named => None,
        })
    }

    /// Counts files that are done or given up, while none is being made; gives the directories that are to be named now.
    pub fn count<'w>(&mut self, done: impl Iterator<Item = (&'w Write, u64)>) -> Vec<Filled<'a>> {
        let mut ready = Vec::new();
        for (write, bytes) in done {
            let Some(dir) = self.dirs.get_mut(&write.place.dir) else { continue };
            dir.left = dir.left.saturating_sub(1);
            dir.bytes += bytes;
            if dir.left > 0 && dir.bytes < BYTES_MAX {
                continue;
            }
            if let Home::Unseen(home) = std::mem::replace(&mut *dir.lock(), Home::Named) {
                ready.push(Filled { place: dir.place, home });
            }
        }
        ready
    }
}

impl UnseenDir<'_> {
    fn lock(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A directory that is to be named.
pub struct Filled<'a> {
    /// Where it belongs.
    pub place: &'a Place,
    home: Arc<UnseenHome>,
}

impl Filled<'_> {
    /// Gives it its name. If a directory has that already, what is in it goes there, as far as names are free; gives
    /// what could not be moved.
    pub fn name(self, parent: &Dir) -> Result<Vec<(Vec<u8>, BeneathError)>> {
        let name = &self.place.name;
        match self.home.hidden.commit(name) {
            // Made by an earlier, interrupted run, or something that was left out of the scan.
            Err(error) if error.errno() == Some(rustix::io::Errno::EXIST) => {
                Ok(self.home.hidden.pour(&parent.open_dir(name)?)?)
            }
            done => Ok(done.map(|()| Vec::new())?),
        }
    }
}

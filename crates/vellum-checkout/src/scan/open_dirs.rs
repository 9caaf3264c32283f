//! Opening the directories of a scanned tree again, to read their files.

use std::collections::HashMap;

use parking_lot::Mutex;
use vellum_host::beneath::{BeneathError, HeldDir};

use super::{ScanDirIndex, ScanTree};

/// How many directories are kept open: those of the files that all threads read, and in most trees those above them.
const KEPT: usize = 256;

/// Opens directories of a tree by number, and keeps the most recently used ones open. It can be shared between threads.
#[derive(Debug)]
pub struct OpenTreeDirs<'t> {
    tree: &'t ScanTree,
    root: HeldDir,
    kept: Mutex<KeptDir>,
}

#[derive(Debug, Default)]
struct KeptDir {
    dirs: HashMap<u32, (HeldDir, u64)>,
    clock: u64,
}

impl<'t> OpenTreeDirs<'t> {
    /// Opens directories of `tree` below `root`, which was scanned.
    #[must_use]
    pub fn new(tree: &'t ScanTree, root: &HeldDir) -> Self {
        Self { tree, root: root.clone(), kept: Mutex::default() }
    }

    /// Opens the directory component by component from the nearest open one, at any depth. Fails with
    /// [`BeneathError::Replaced`] if another directory has its name now.
    pub fn open_dir(&self, index: ScanDirIndex) -> Result<HeldDir, BeneathError> {
        let (mut here, way) = self.find_nearest_open(index);
        for index in way.into_iter().rev() {
            let Some(entry) = self.tree.dir(index).own_entry() else { continue };
            here = here.open_dir(entry.name())?;
            let now = here.stat_self()?;
            // The name may lead to another directory since the scan. What is read or removed in it would not
            // be what was planned.
            if (now.dev, now.ino) != (entry.stat().dev, entry.stat().ino) {
                return Err(BeneathError::Replaced(entry.path().into()));
            }
            self.keep_open(index, &here);
        }
        Ok(here)
    }

    /// The nearest open directory at `index` or above, and the directories between them, the deepest first.
    fn find_nearest_open(&self, index: ScanDirIndex) -> (HeldDir, Vec<ScanDirIndex>) {
        let mut kept = self.kept.lock();
        let mut way = Vec::new();
        let mut here = self.tree.dir(index);
        loop {
            if let Some(dir) = kept.mark_used(here.index()) {
                return (dir, way);
            }
            let Some(entry) = here.own_entry() else { return (self.root.clone(), way) };
            way.push(here.index());
            here = entry.containing_dir();
        }
    }

    fn keep_open(&self, index: ScanDirIndex, dir: &HeldDir) {
        let mut kept = self.kept.lock();
        if kept.dirs.len() >= KEPT {
            let oldest = kept.dirs.iter().min_by_key(|(_, (_, used))| *used).map(|(number, _)| *number);
            oldest.and_then(|number| kept.dirs.remove(&number));
        }
        kept.clock += 1;
        let used = kept.clock;
        kept.dirs.insert(index.0, (dir.clone(), used));
    }
}

impl KeptDir {
    fn mark_used(&mut self, index: ScanDirIndex) -> Option<HeldDir> {
        self.clock += 1;
        let clock = self.clock;
        let (dir, used) = self.dirs.get_mut(&index.0)?;
        *used = clock;
        Some(dir.clone())
    }
}

//! Directories of the target, opened by their inode numbers.

use std::collections::HashMap;

use parking_lot::Mutex;
use vellum_host::beneath::HeldDir;
use vellum_types::Ino;
use vellum_volume::FsTree;

use crate::error::Result;

/// Directories that are used between two times that those are closed which were not, a count: at most twice as many are
/// open.
const KEPT: usize = 256;

/// Opens directories below the root by the target's inode numbers, at any depth.
pub struct TargetDirs<'a> {
    target: &'a FsTree,
    root: &'a HeldDir,
    base: Ino,
    kept: Mutex<RecentDirs<HeldDir>>,
}

impl<'a> TargetDirs<'a> {
    /// Opens directories of `target` below `base`, which corresponds to `root`.
    pub fn new(target: &'a FsTree, root: &'a HeldDir, base: Ino) -> Self {
        Self { target, root, base, kept: Mutex::default() }
    }

    /// Opens the directory at the path that it has in the target.
    pub fn open_dir(&self, ino: Ino) -> Result<HeldDir> {
        let mut way = Vec::new();
        let mut at = ino;
        // Names are collected upwards until a directory that is open, so the usual case opens one component.
        // The plan has checked that each directory has the parent and name by which it was reached, so this
        // ends.
        let mut here = loop {
            if at == self.base {
                break self.root.clone();
            }
            if let Some(dir) = self.find_kept_dir(at) {
                break dir;
            }
            let attr = self.target.expect_inode_attr(at)?;
            way.push((at, attr.name));
            at = attr.parent;
        };
        for (ino, name) in way.into_iter().rev() {
            here = here.open_dir(&name)?;
            self.keep_dir(ino, &here);
        }
        Ok(here)
    }

    fn find_kept_dir(&self, ino: Ino) -> Option<HeldDir> {
        self.kept.lock().find_dir(ino)
    }

    fn keep_dir(&self, ino: Ino, dir: &HeldDir) {
        self.kept.lock().keep_dir(ino, dir.clone());
    }
}

/// The directories that were used most recently, in two generations: each operation takes constant time.
struct RecentDirs<D> {
    young: HashMap<Ino, D>,
    old: HashMap<Ino, D>,
}

impl<D> Default for RecentDirs<D> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<D: Clone> RecentDirs<D> {
    fn find_dir(&mut self, ino: Ino) -> Option<D> {
        if let Some(dir) = self.young.get(&ino) {
            return Some(dir.clone());
        }
        // It is in use, so it goes to those that stay.
        let dir = self.old.remove(&ino)?;
        self.keep_dir(ino, dir.clone());
        Some(dir)
    }

    fn keep_dir(&mut self, ino: Ino, dir: D) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_stays_open_and_few_others_do() {
        let mut dirs = RecentDirs::default();
        dirs.keep_dir(Ino(0), 0);
        for number in 1..10 * KEPT as u64 {
            dirs.keep_dir(Ino(number), number);
            assert_eq!(dirs.find_dir(Ino(0)), Some(0), "after {number} others");
            assert!(dirs.young.len() + dirs.old.len() <= 2 * KEPT);
        }
        assert_eq!(dirs.find_dir(Ino(1)), None);
    }
}

//! Directories of the target, opened by their inode numbers.

use std::collections::HashMap;

use parking_lot::Mutex;
use vellum_host::beneath::HeldDir;
use vellum_types::Ino;
use vellum_volume::FsTree;

use crate::error::Result;

/// How many directories are kept open; half of them, the oldest, are closed when there are more.
const KEPT: usize = 512;

/// Opens directories below the root by the target's inode numbers, at any depth.
pub struct TargetDirs<'a> {
    target: &'a FsTree,
    root: &'a HeldDir,
    base: Ino,
    kept: Mutex<HashMap<Ino, (HeldDir, u64)>>,
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
        let kept = self.kept.lock();
        kept.get(&ino).map(|(dir, _)| dir.clone())
    }

    fn keep_dir(&self, ino: Ino, dir: &HeldDir) {
        let mut kept = self.kept.lock();
        let clock = kept.values().map(|(_, used)| *used).max().unwrap_or(0) + 1;
        if kept.len() >= KEPT {
            let middle = clock.saturating_sub(KEPT as u64 / 2);
            kept.retain(|_, (_, used)| *used >= middle);
        }
        kept.insert(ino, (dir.clone(), clock));
    }
}

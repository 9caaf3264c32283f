//! Reaching the directories of a listing again, to read and write what is in them.

use std::sync::{Mutex, PoisonError};

use vellum_checkout::beneath::Dir;

use crate::error::Result;
use crate::listing::{Entry, EntryId};

/// Directories kept open: those that all workers are busy in, and some that come back soon.
const KEPT: usize = 32;

/// Opens directories by their entries, and keeps the last used ones open.
pub(crate) struct OpenDirs {
    root: Dir,
    kept: Mutex<Vec<(EntryId, Dir)>>,
}

impl OpenDirs {
    pub fn new(root: Dir) -> Self {
        Self { root, kept: Mutex::default() }
    }

    /// The directory that stands at the path of an entry of one listing, always the same one.
    pub fn get(&self, dir: &Entry<'_>) -> Result<Dir> {
        if dir.id() == EntryId::ROOT {
            return Ok(self.root.clone());
        }
        if let Some(known) = self.known(dir.id()) {
            return Ok(known);
        }
        let opened = match dir.parent().and_then(|parent| self.known(parent.id())) {
            Some(parent) => parent.open_dir(dir.name())?,
            None => self.root.resolve(&dir.path())?,
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((dir.id(), opened.clone()));
        Ok(opened)
    }

    /// Looks from the last one on, which it mostly is.
    fn known(&self, id: EntryId) -> Option<Dir> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().find(|(known, _)| *known == id).map(|(_, dir)| dir.clone())
    }

    /// Forgets what is open: directories were made, renamed or deleted.
    pub fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

//! Opening the directories of a listing again, to read and write their entries.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use vellum_host::beneath::HeldDir;

use crate::error::Result;
use crate::model::listing::{ListingEntry, ListingEntryId};

/// How many directories are kept open: those that all threads work in, and some that are needed again soon.
const KEPT: usize = 32;

/// Opens directories by their entries, and keeps the last opened ones.
pub(crate) struct OpenListingDirs {
    root: HeldDir,
    /// At the source: symlinks that the listing followed are followed again.
    follows: bool,
    /// At a destination: paths of symlinks that are treated as the directories that they lead to.
    dir_links: Arc<HashSet<Vec<u8>>>,
    kept: Mutex<Vec<(ListingEntryId, HeldDir)>>,
}

impl OpenListingDirs {
    pub fn new(root: HeldDir) -> Self {
        Self { root, follows: false, dir_links: Arc::default(), kept: Mutex::default() }
    }

    /// The same for a source: symlinks that the listing followed are followed again.
    pub fn new_following_symlinks(root: HeldDir) -> Self {
        Self { follows: true, ..Self::new(root) }
    }

    /// The same for a destination where symlinks at these paths are treated as directories.
    pub fn new_with_dir_links(root: HeldDir, dir_links: &Arc<HashSet<Vec<u8>>>) -> Self {
        Self { dir_links: Arc::clone(dir_links), ..Self::new(root) }
    }

    /// Opens the directory at the path of an entry. All entries have to be of the same listing.
    pub fn open_dir(&self, dir: &ListingEntry<'_>) -> Result<HeldDir> {
        if dir.id() == ListingEntryId::ROOT {
            return Ok(self.root.clone());
        }
        if let Some(known) = self.find_cached(dir.id()) {
            return Ok(known);
        }
        // The kernel resolves the path below the root and follows symlinks only within it.
        if self.is_through_link(dir) {
            let opened = self.root.open_dir_within(&dir.path())?;
            return Ok(self.cache_dir(dir.id(), opened));
        }
        let opened = match dir.parent().and_then(|parent| self.find_cached(parent.id())) {
            Some(parent) if self.follows && dir.listing().is_followed(dir.id()) => {
                parent.open_dir_following(dir.name())?
            }
            Some(parent) => parent.open_dir(dir.name())?,
            // The way is walked again from the root: symlinks that the listing followed are followed at the
            // same places and nowhere else.
            None if self.follows => DirectoryRoute::for_dir(dir).open_from(&self.root)?,
            None => self.root.resolve_dir(&dir.path())?,
        };
        Ok(self.cache_dir(dir.id(), opened))
    }

    /// Whether the path of the directory contains a symlink that is treated as a directory.
    fn is_through_link(&self, dir: &ListingEntry<'_>) -> bool {
        // Building paths of all ancestors is expensive, and without `--keep-dirlinks` there is nothing to
        // find.
        let mut here = (!self.dir_links.is_empty()).then_some(*dir);
        while let Some(entry) = here {
            if self.dir_links.contains(&entry.path()) {
                return true;
            }
            here = entry.parent();
        }
        false
    }

    fn cache_dir(&self, id: ListingEntryId, opened: HeldDir) -> HeldDir {
        let mut kept = self.kept.lock();
        // The oldest is dropped. Entries of a plan are grouped by directory, so it is not needed again soon.
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((id, opened.clone()));
        opened
    }

    /// Searches from the most recent one on, which in most cases is the right one.
    fn find_cached(&self, id: ListingEntryId) -> Option<HeldDir> {
        let kept = self.kept.lock();
        kept.iter().rev().find(|(known, _)| *known == id).map(|(_, dir)| dir.clone())
    }

    /// Closes all directories: some were created, renamed or deleted.
    pub fn clear_cache(&self) {
        self.kept.lock().clear();
    }
}

/// The path from a root to a directory of a listing, in sections: paths without symlinks, and symlinks that were
/// followed.
pub(crate) struct DirectoryRoute(Vec<RouteStep>);

enum RouteStep {
    Path(Vec<u8>),
    Followed(Vec<u8>),
}

impl DirectoryRoute {
    /// The path to an entry.
    pub fn for_dir(dir: &ListingEntry<'_>) -> Self {
        let listing = dir.listing();
        let mut names = Vec::new();
        let mut here = *dir;
        while let Some(parent) = here.parent() {
            names.push((here.name().to_vec(), listing.is_followed(here.id())));
            here = parent;
        }
        let mut steps: Vec<RouteStep> = Vec::new();
        for (name, followed) in names.into_iter().rev() {
            match (followed, steps.last_mut()) {
                (true, _) => steps.push(RouteStep::Followed(name)),
                (false, Some(RouteStep::Path(path))) => {
                    path.push(b'/');
                    path.extend(name);
                }
                (false, _) => steps.push(RouteStep::Path(name)),
            }
        }
        Self(steps)
    }

    /// Opens the directory at its end.
    pub fn open_from(&self, root: &HeldDir) -> Result<HeldDir> {
        let mut here = root.clone();
        for step in &self.0 {
            here = match step {
                RouteStep::Path(path) => here.resolve_dir(path)?,
                RouteStep::Followed(name) => here.open_dir_following(name)?,
            };
        }
        Ok(here)
    }
}

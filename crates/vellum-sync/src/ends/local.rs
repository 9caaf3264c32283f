//! A directory of this host as an end of a run.
//!
//! Invariant: everything below the root's descriptor is reached from it, never through a symlink; the root itself may
//! be reached through one. Deliberately absent: what is done with the content.

mod dirs;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{BeneathError, HeldDir, remove_stale_entry};
use vellum_types::FileKind;

pub(crate) use dirs::{DirectoryRoute, OpenListingDirs};

use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncReport};
use crate::local::scan;
use crate::local::transfer;
use crate::model::listing::{ContentDigests, ListingEntry, ListingEntryId, OwnerNames, TreeListing};

/// A directory of this host, or one entry of one.
pub struct LocalEnd {
    root: HeldDir,
    /// The entry that is the whole source, and the name under which it is listed.
    single: Option<(Vec<u8>, Vec<u8>)>,
    dirs: OpenListingDirs,
}

impl LocalEnd {
    /// All entries of a directory.
    #[must_use]
    pub fn new(root: HeldDir) -> Self {
        let dirs = OpenListingDirs::new_following_symlinks(root.clone());
        Self { root, single: None, dirs }
    }

    /// All entries of the directory at a path, for reading.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::new(HeldDir::open_root(path)?))
    }

    /// All entries of the directory at a path, for writing: symlinks of other users in the path are refused.
    pub fn open_destination(path: &Path) -> Result<Self> {
        Ok(Self::new(HeldDir::open_trusted_root(path)?))
    }

    /// One entry of a directory, listed under the name `shown`.
    #[must_use]
    pub fn from_single_entry(dir: HeldDir, name: &[u8], shown: &[u8]) -> Self {
        Self { single: Some((name.to_vec(), shown.to_vec())), ..Self::new(dir) }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &HeldDir {
        &self.root
    }

    fn open_file(&self, file: &ListingEntry<'_>) -> Result<vellum_host::beneath::OpenedFile> {
        self.open_file_with(file, |dir, name| match file.listing().is_followed(file.id()) {
            true => dir.open_file_following(name),
            false => dir.open_file(name),
        })
    }

    /// Opens a file with the given function, which gets its directory and its name there.
    fn open_file_with<T>(
        &self,
        file: &ListingEntry<'_>,
        open: impl FnOnce(&HeldDir, &[u8]) -> Result<T, BeneathError>,
    ) -> Result<T> {
        let parent = file.parent().unwrap_or(*file);
        // The file is reached through its directory and one name. A path would follow a symlink that somebody
        // put in the place of a directory.
        let dir = self.dirs.open_dir(&parent)?;
        let name = self.single.as_ref().map_or(file.name(), |(name, _)| name);
        open(&dir, name).map_err(|error| match error.is_not_found() {
            true => SyncError::Vanished,
            false => error.into(),
        })
    }

    /// Removes what a killed run left, unless another run is writing it.
    pub(crate) fn remove_leftovers(&self, listing: &TreeListing, keep: &dyn Fn(&[u8]) -> bool) {
        for path in listing.leftovers.iter().filter(|path| !keep(path)) {
            // What cannot be removed now is found by the next run.
            let Ok((dir, name)) = self.root.resolve_parent(path) else { continue };
            let _ = remove_stale_entry(&dir, name);
        }
    }
}

impl SyncEnd for LocalEnd {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        // Entries of another listing have other numbers.
        self.dirs.clear_cache();
        let mut listing = match &self.single {
            Some((name, shown)) => scan::scan_entry(&self.root, name, shown, wish)?,
            None => scan::scan_dir(&self.root, wish, meter)?,
        };
        if wish.owners {
            listing.owners = OwnerNames::read_local(wish.side, &listing, !wish.options.preserve.numeric_ids);
        }
        Ok(listing)
    }

    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let found = Mutex::new(vec![None; files.len()]);
        // Threads take files one by one, so a large file keeps one thread busy and not its share of the
        // others.
        let next = AtomicUsize::new(0);
        let work = || {
            while !meter.is_stopped() {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(id) = files.get(place) else { break };
                let entry = listing.entry(*id);
                if entry.kind() != FileKind::File {
                    continue;
                }
                // A file that cannot be read has no hash and counts as different. Reading it for the transfer
                // reports the error.
                let digest = self
                    .open_file(&entry)
                    .and_then(|opened| crate::local::receive::hash_file(&opened.file, meter))
                    .ok();
                let mut found = found.lock();
                if let Some(slot) = found.get_mut(place) {
                    *slot = digest;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get);
        std::thread::scope(|scope| {
            for _ in 1..threads.min(files.len()) {
                scope.spawn(work);
            }
            work();
        });
        if meter.is_stopped() {
            return Err(SyncError::Stopped);
        }
        Ok(found.into_inner())
    }
}

impl SourceEnd for LocalEnd {
    fn open_content(&self, file: ListingEntry<'_>, _old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        self.open_file(&file).map(SourceContent::File)
    }

    fn open_unchecked(&self, file: ListingEntry<'_>) -> Result<Option<File>> {
        match file.listing().is_followed(file.id()) {
            true => Ok(None),
            false => self.open_file_with(&file, HeldDir::open_file_unchecked).map(Some),
        }
    }

    fn needs_old_version(&self) -> bool {
        false
    }

    fn remove_entries(
        &self,
        listing: &TreeListing,
        entries: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        Ok(crate::local::moving::remove_unchanged_entries(listing, entries, meter, |entry| {
            let name = self.single.as_ref().map_or(entry.name(), |(name, _)| name);
            Ok((self.dirs.open_dir(&entry.parent().unwrap_or(*entry))?, name.to_vec()))
        }))
    }
}

impl DestinationEnd for LocalEnd {
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
        transfer::execute_plan(self, job, meter)
    }
}

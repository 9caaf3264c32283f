//! A folder of plain objects in an object store: each file is an object whose key is the file's path.
//!
//! Invariant: an object is replaced, deleted or read only as the version that was listed. The only metadata that is
//! stored with a file's content is its modification time, in the form that rclone uses. Deliberately absent: requests
//! (see `vellum_store::PlainObjects`).

mod checksum;
mod list;
mod parallel;
mod pieces;
mod plan;
mod reader;
mod removal;
mod reserved;
mod tree;
mod upload;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_store::{ObjectTag, PlainListing, PlainObjects, StoreError};
use vellum_types::{ErrorKind, UnixTime};
use vellum_volume::VolumeError;

pub use checksum::ComparedTree;
pub use plan::{adapt_plan, count_empty_directories, find_compared_objects, withhold_unstorable_files};
pub use reserved::check_not_in_store;

use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, SyncSide};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncReport};
use crate::model::listing::{ContentDigests, ListingEntry, ListingEntryId, TreeListing, UnlistedEntry};
use list::KeyTreeLister;
use pieces::ObjectPieces;
use tree::KeyTree;

/// Most concurrent requests for the metadata of single objects, a count.
const LOOKS_AT_ONCE: usize = 16;

/// The facts about a listed object that a listing has no field for.
#[derive(Debug, Clone)]
struct ListedObject {
    tag: ObjectTag,
    /// The time in the listing is that of the file, and not that of the upload.
    is_dated: bool,
}

/// A folder of plain objects.
pub struct ObjectEnd {
    objects: Arc<PlainObjects>,
    /// Length of the folder with its slash, which are part of every key, bytes.
    folder_len: usize,
    /// The objects of the last listing.
    listed: Mutex<HashMap<ListingEntryId, ListedObject>>,
}

impl ObjectEnd {
    /// The objects in a folder; `folder_len` is its length with the slash.
    #[must_use]
    pub fn new(objects: PlainObjects, folder_len: usize) -> Self {
        Self { objects: Arc::new(objects), folder_len, listed: Mutex::default() }
    }

    /// Replaces upload times in the listing by the modification times of the files. Each object whose time is not known
    /// yet takes one request.
    pub fn load_times(
        &self,
        listing: &mut TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<()> {
        let wanted: Vec<ListingEntryId> = {
            let listed = self.listed.lock();
            let is_undated = |id: &&ListingEntryId| listed.get(id).is_some_and(|object| !object.is_dated);
            // A listing of a service has the time of the upload. The time of the file is in the metadata of
            // the object, which takes a request for each; only the objects whose time matters are asked for.
            files.iter().filter(is_undated).copied().collect()
        };
        let keys: Vec<String> = wanted.iter().map(|id| object_key(&listing.entry(*id))).collect();
        let looked = parallel::map_in_parallel(&keys, LOOKS_AT_ONCE, meter, |key| self.read_time(key))?;
        for (id, time) in wanted.iter().zip(looked) {
            match time {
                Ok(Some(time)) => {
                    listing.set_mtime(*id, time);
                    if let Some(object) = self.listed.lock().get_mut(id) {
                        object.is_dated = true;
                    }
                }
                Ok(None) => listing.unlisted.push(UnlistedEntry {
                    path: listing.entry(*id).path(),
                    message: "the object vanished after it was listed".to_owned(),
                    vanished: true,
                }),
                // The service does not answer. All other requests would wait just as long.
                Err(error) if error.is_final() => return Err(error),
                Err(error) => listing.unlisted.push(UnlistedEntry {
                    path: listing.entry(*id).path(),
                    message: error.format_chain(),
                    vanished: false,
                }),
            }
        }
        Ok(())
    }

    /// The modification time of a file; the time of the upload if the object has none. None if the object does not
    /// exist.
    fn read_time(&self, key: &str) -> Result<Option<UnixTime>> {
        let head = self.objects.stat_object(key).map_err(map_object_error)?;
        Ok(head.map(|head| head.mtime.unwrap_or(head.uploaded)))
    }

    /// Loads all times, for rules that depend on them.
    fn load_all_times(&self, found: &mut PlainListing, meter: &ProgressMeter) -> Result<()> {
        let keys: Vec<String> = found.objects.iter().map(|object| object.key.clone()).collect();
        let looked = parallel::map_in_parallel(&keys, LOOKS_AT_ONCE, meter, |key| self.read_time(key))?;
        for (object, time) in found.objects.iter_mut().zip(looked) {
            object.uploaded = time?.unwrap_or(object.uploaded);
        }
        Ok(())
    }

    /// The listed version of an object.
    fn listed_tag(&self, id: ListingEntryId) -> Option<ObjectTag> {
        self.listed.lock().get(&id).map(|object| object.tag.clone())
    }

    fn open_pieces(&self, file: &ListingEntry<'_>) -> Result<ObjectPieces> {
        let tag = self.listed_tag(file.id()).ok_or(SyncError::Vanished)?;
        Ok(ObjectPieces::new(&self.objects, object_key(file), tag, file.size()))
    }

    /// The error of a source without objects.
    fn nothing_error(&self) -> SyncError {
        SyncError::End {
            what: "cannot read the source",
            path: self.objects.describe_location().as_bytes().to_vec(),
            why: "there are no objects: name the prefix that they have in common, not one object".to_owned(),
        }
    }
}

impl SyncEnd for ObjectEnd {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        let listed = |count| meter.add_progress(count, 0);
        let mut found = self.objects.list_objects(&listed).map_err(map_object_error)?;
        let is_empty = found.objects.is_empty() && found.markers.is_empty() && found.misnamed.is_empty();
        // A prefix without objects and a mistyped one look the same. As a source it would empty the
        // destination.
        if is_empty && wish.side == SyncSide::Source {
            return Err(self.nothing_error());
        }
        let has_age_limit =
            || wish.rules.sync_filters().is_some_and(|filters| filters.limits.newer_than.is_some());
        // The age decides which objects are transferred, so all times are needed before the listing is made.
        let is_dated = wish.side == SyncSide::Source && has_age_limit();
        if is_dated {
            self.load_all_times(&mut found, meter)?;
        }
        let tree = KeyTree::from_listing(&found);
        let lister = KeyTreeLister { end: self, wish, found: &found, is_dated };
        let (listing, objects) = lister.list_tree(tree)?;
        *self.listed.lock() = objects.into_iter().collect();
        Ok(listing)
    }

    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get);
        let hash = |id: &ListingEntryId| {
            let mut pieces = self.open_pieces(&listing.entry(*id)).ok()?;
            checksum::hash_pieces(&mut pieces, meter).ok()
        };
        // At least four at a time: most of the time is spent waiting for the service.
        parallel::map_in_parallel(files, threads.max(4), meter, hash)
    }
}

impl SourceEnd for ObjectEnd {
    fn open_content(&self, file: ListingEntry<'_>, _old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        Ok(SourceContent::Pieces(Box::new(self.open_pieces(&file)?)))
    }

    fn remove_entries(
        &self,
        listing: &TreeListing,
        entries: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        Ok(removal::remove_unchanged_objects(self, listing, entries, meter))
    }

    fn needs_old_version(&self) -> bool {
        false
    }

    fn has_request_per_file(&self) -> bool {
        true
    }
}

impl DestinationEnd for ObjectEnd {
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
        upload::execute_plan(self, job, meter)
    }
}

/// The key of an object: paths that are not UTF-8 are neither listed nor uploaded.
fn object_key(entry: &ListingEntry<'_>) -> String {
    String::from_utf8_lossy(&entry.path()).into_owned()
}

/// Maps an error of the store.
fn map_object_error(error: StoreError) -> SyncError {
    match error {
        StoreError::Changed { .. } => SyncError::ObjectChanged,
        StoreError::NotFound { .. } => SyncError::Vanished,
        StoreError::UploadLost { .. } => SyncError::UploadLost,
        // The request was given up because the user wants to stop, which is no failure of the service.
        error if error.kind() == ErrorKind::Interrupted => SyncError::Stopped,
        error => VolumeError::from(error).into(),
    }
}

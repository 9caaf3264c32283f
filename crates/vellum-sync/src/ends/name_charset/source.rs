//! A source whose names are in another charset than the destination's.

use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use super::NameConversion;
use super::listing::ConvertedListing;
use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, WantedFile};
use crate::error::{Result, SyncError};
use crate::local::receive::SyncReport;
use crate::model::listing::{ContentDigests, ListingEntry, ListingEntryId, TreeListing};

/// The location of a source; it determines what is converted besides the targets of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePlace {
    /// On this host: names are converted. The paths of unlisted entries are not, since a user of this host reads them.
    Local,
    /// On another host: both are converted.
    Remote,
    /// A single entry on another host, which is listed under the name that it gets on this one: names are not
    /// converted.
    RemoteEntry,
}

/// A source that is listed in the charset of the destination.
pub struct ConvertedSource {
    source: Box<dyn SourceEnd>,
    conversion: NameConversion,
    place: SourcePlace,
    listed: Mutex<Option<Arc<OriginalListing>>>,
}

/// The last listing of the source, and the number in it of each converted entry.
struct OriginalListing {
    listing: TreeListing,
    origins: Vec<ListingEntryId>,
}

impl OriginalListing {
    fn find_original(&self, id: ListingEntryId) -> Result<ListingEntry<'_>> {
        self.origins.get(id.index()).and_then(|id| self.listing.get(*id)).ok_or(SyncError::Vanished)
    }

    fn find_ids(&self, ids: impl Iterator<Item = ListingEntryId>) -> Result<Vec<ListingEntryId>> {
        ids.map(|id| Ok(self.find_original(id)?.id())).collect()
    }
}

impl ConvertedSource {
    /// Converts the names of `source`, which are in the first charset of `conversion`.
    #[must_use]
    pub fn new(source: Box<dyn SourceEnd>, conversion: NameConversion, place: SourcePlace) -> Self {
        Self { source, conversion, place, listed: Mutex::new(None) }
    }

    fn last_listed(&self) -> Result<Arc<OriginalListing>> {
        self.listed.lock().clone().ok_or(SyncError::Vanished)
    }
}

impl SyncEnd for ConvertedSource {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        let original = self.source.list_entries(wish, meter)?;
        let converts_names = match self.place {
            SourcePlace::Local | SourcePlace::Remote => true,
            SourcePlace::RemoteEntry => false,
        };
        let ConvertedListing { mut listing, origins, .. } =
            ConvertedListing::convert_listing(&original, self.conversion, converts_names)?;
        match self.place {
            SourcePlace::Remote => {
                for unlisted in &mut listing.unlisted {
                    unlisted.path = self.conversion.convert_path(&unlisted.path);
                }
            }
            SourcePlace::Local | SourcePlace::RemoteEntry => {}
        }
        // The original is kept, because the source knows entries by their numbers in its own listing.
        *self.listed.lock() = Some(Arc::new(OriginalListing { listing: original, origins }));
        Ok(listing)
    }

    fn hash_files(
        &self,
        _: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let listed = self.last_listed()?;
        self.source.hash_files(&listed.listing, &listed.find_ids(files.iter().copied())?, meter)
    }
}

impl SourceEnd for ConvertedSource {
    fn announce_files(&self, _: &TreeListing, files: &[WantedFile]) {
        // The announcement is only a hint: without a listing, opening a file fails.
        let Ok(listed) = self.last_listed() else { return };
        let original = |wanted: &WantedFile| {
            listed.find_original(wanted.id).ok().map(|entry| WantedFile { id: entry.id(), ..*wanted })
        };
        let wanted: Vec<WantedFile> = files.iter().filter_map(original).collect();
        self.source.announce_files(&listed.listing, &wanted);
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        self.source.open_content(self.last_listed()?.find_original(file.id())?, old)
    }

    fn open_unchecked(&self, file: ListingEntry<'_>) -> Result<Option<File>> {
        self.source.open_unchecked(self.last_listed()?.find_original(file.id())?)
    }

    fn remove_entries(
        &self,
        _: &TreeListing,
        entries: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        let listed = self.last_listed()?;
        let ids = listed.find_ids(entries.iter().copied())?;
        let mut report = self.source.remove_entries(&listed.listing, &ids, meter)?;
        match self.place {
            SourcePlace::Local | SourcePlace::Remote => {
                for problem in &mut report.problems {
                    problem.path = self.conversion.convert_path(&problem.path);
                }
            }
            SourcePlace::RemoteEntry => {}
        }
        Ok(report)
    }

    fn needs_old_version(&self) -> bool {
        self.source.needs_old_version()
    }
}

//! The ends of a run, where entries and content come from and go: a directory, a snapshot, another host, an object
//! store.
//!
//! Invariant: content is only returned as complete if it stayed the same from the listing to its last byte.
//! Deliberately absent: how content is written (see `receive`).

pub mod local;
pub mod name_charset;
pub mod object;
pub mod remote;
pub mod snapshot;
pub mod stored_stat;
pub mod union;

use std::fs::File;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_host::beneath::OpenedFile;

use crate::error::{Result, SyncError};
use crate::local::receive::SyncReport;
use crate::model::listing::{ContentDigest, ContentDigests, ListingEntry, ListingEntryId, TreeListing};
use crate::model::options::SyncOptions;

/// One of the two sides of a run: rules have different effects on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SyncSide {
    /// The side that entries are read from.
    Source,
    /// The side that entries are written to.
    Destination,
}

/// A request for a listing.
#[derive(Clone)]
pub struct ListingRequest {
    /// Which side is listed.
    pub side: SyncSide,
    /// The options of the run: they determine which attributes are listed.
    pub options: Arc<SyncOptions>,
    /// The rules that exclude entries.
    pub rules: Arc<dyn crate::local::scan::EntryFilter>,
    /// The name of the root in the paths that rules match: empty, or that of a directory that was named without a
    /// slash.
    pub top: Vec<u8>,
    /// A directory (device and inode) that is not entered: the other end, if it lies within this one.
    pub avoid: Option<(u64, u64)>,
    /// Whether the names of owners and groups are requested.
    pub owners: bool,
}

impl ListingRequest {
    /// Whether the root only holds entries that were listed, or named by their whole path: then its own attributes are
    /// not copied.
    #[must_use]
    pub(crate) fn is_root_implied(&self) -> bool {
        let filters =
            self.rules.sync_filters().filter(|_| self.side == SyncSide::Source && self.top.is_empty());
        filters.is_some_and(|filters| {
            filters.selection.as_ref().is_some_and(|selection| !selection.contains_root())
        })
    }
}

/// The destination's old version of a file that is to be received.
#[derive(Debug, Clone, Copy)]
pub struct OldVersion<'f> {
    /// It.
    pub file: &'f File,
    /// The new version is written over it from its start: content before the current position is gone.
    pub is_overwritten: bool,
}

impl<'f> OldVersion<'f> {
    /// An old version that stays unchanged while the new one is written.
    #[must_use]
    pub fn from_kept_file(file: &'f File) -> Self {
        Self { file, is_overwritten: false }
    }
}

/// One end of a run.
pub trait SyncEnd: Send + Sync {
    /// Lists the whole tree.
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing>;

    /// Reads files and hashes them; None for one that could not be read.
    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests>;
}

/// An end that entries are read from.
pub trait SourceEnd: SyncEnd {
    /// Announces the files that will be opened, roughly in this order. A source on another host requests them ahead.
    fn announce_files(&self, _listing: &TreeListing, _files: &[WantedFile]) {}

    /// Opens the content of a file. `old` is the destination's version of it, if its blocks may be used; only a source
    /// with a slow connection reads it.
    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent>;

    /// Opens a file that is read at once, without `fstat`: the caller checks its attributes after reading. None if the
    /// content is not a file of this host.
    fn open_unchecked(&self, _file: ListingEntry<'_>) -> Result<Option<File>> {
        Ok(None)
    }

    /// Removes entries that are still as they were listed; directories stay. The report contains those that could not
    /// be removed.
    fn remove_entries(
        &self,
        _listing: &TreeListing,
        _entries: &[ListingEntryId],
        _meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        Err(SyncError::Unchangeable)
    }

    /// Whether the old version is used, because the connection is slow. Otherwise the caller need not open it.
    fn needs_old_version(&self) -> bool {
        true
    }

    /// Whether each file takes a request of its own, with its round trip: then each thread takes one file at a time.
    fn has_request_per_file(&self) -> bool {
        false
    }
}

/// A file that will be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedFile {
    /// Its number in the listing.
    pub id: ListingEntryId,
    /// It will be opened with an old version.
    pub delta: bool,
}

/// The content of a file.
pub enum SourceContent {
    /// A file of this host, which the receiver copies in the fastest way, and checks for changes after reading it.
    File(OpenedFile),
    /// Pieces that arrive one after the other.
    Pieces(Box<dyn ContentPieces>),
}

/// Content that arrives piece by piece.
pub trait ContentPieces: Send {
    /// The next piece; None at the end, once the source has confirmed that the file stayed the same.
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>>;

    /// The hash of the whole file, once all pieces were returned; None if the source does not provide one.
    fn content_digest(&self) -> Option<ContentDigest> {
        None
    }

    /// All of the content in adjacent parts that can be read at the same time; None if it has to be read in order.
    fn split_parts(&self) -> Option<Vec<FilePart>> {
        None
    }
}

/// A part of a file that is read independently.
pub struct FilePart {
    /// The offset of its first byte.
    pub start: u64,
    /// The offset after its last byte.
    pub end: u64,
    /// Its content, which has no pieces of the old file.
    pub pieces: Box<dyn ContentPieces>,
}

/// A piece of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPiece<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// Zeros that are not stored: a hole.
    Hole(u64),
    /// A range of the old file.
    Old {
        /// Its offset.
        offset: u64,
        /// Its length.
        len: u64,
    },
}

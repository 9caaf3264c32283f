//! Where entries and content come from: a directory, a snapshot, another host, a service of objects.
//!
//! Invariant: content is never handed out as whole that did not stay the same from its listing to its last byte.
//! Deliberately absent: what becomes of it (see `receive`).

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
use crate::model::listing::{ContentDigest, ListingEntry, ListingEntryId, TreeListing};
use crate::model::options::SyncOptions;

/// Which of the two sides is meant: rules mean different things on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SyncSide {
    /// Where entries come from.
    Source,
    /// Where they go.
    Destination,
}

/// What a listing has to say.
#[derive(Clone)]
pub struct ListingRequest {
    /// Which side is listed.
    pub side: SyncSide,
    /// The options of the run: which attributes are asked for.
    pub options: Arc<SyncOptions>,
    /// What is left out.
    pub rules: Arc<dyn crate::local::scan::EntryFilter>,
    /// The name under which rules know the root: none, or that of a directory which was named without a slash.
    pub top: Vec<u8>,
    /// A directory (device and inode) that is not entered: the other end, if it lies in this one.
    pub avoid: Option<(u64, u64)>,
    /// Whether the names of owners and groups are asked for.
    pub owners: bool,
}

impl ListingRequest {
    /// Whether the root only holds what was listed, or named by its whole path: then nothing of itself is copied.
    #[must_use]
    pub(crate) fn is_root_implied(&self) -> bool {
        let filters =
            self.rules.sync_filters().filter(|_| self.side == SyncSide::Source && self.top.is_empty());
        filters.is_some_and(|filters| {
            filters.selection.as_ref().is_some_and(|selection| !selection.contains_root())
        })
    }
}

/// What the destination has of a file that is to be received.
#[derive(Debug, Clone, Copy)]
pub struct OldVersion<'f> {
    /// It.
    pub file: &'f File,
    /// The new version is written over it, from its start on: what was passed is not there any more.
    pub is_overwritten: bool,
}

impl<'f> OldVersion<'f> {
    /// One that stays while the new version is written.
    #[must_use]
    pub fn from_kept_file(file: &'f File) -> Self {
        Self { file, is_overwritten: false }
    }
}

/// One end of a run.
pub trait SyncEnd: Send + Sync {
    /// Lists all of it.
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing>;

    /// Reads files and hashes them; None for one that could not be read.
    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<Vec<Option<ContentDigest>>>;
}

/// The end where entries come from.
pub trait SourceEnd: SyncEnd {
    /// Says which files will be opened, about in this order. A source to which the way is long asks for them ahead.
    fn announce_files(&self, _listing: &TreeListing, _files: &[WantedFile]) {}

    /// Opens a file's content. `old` is what the destination has under that name, if its blocks may be used; only a
    /// source to which the way is long looks at it.
    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent>;

    /// Opens a file that is to be read at once, without a look at it: who reads it looks afterwards. None where content
    /// is not a file of this host.
    fn open_unchecked(&self, _file: ListingEntry<'_>) -> Result<Option<File>> {
        Ok(None)
    }

    /// Takes away entries that are as they were listed; directories stay. Tells what could not be taken away.
    fn remove_entries(
        &self,
        _listing: &TreeListing,
        _entries: &[ListingEntryId],
        _meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        Err(SyncError::Unchangeable)
    }

    /// Whether it looks at what the destination has, since the way to it is long. Else nobody needs to open that.
    fn needs_old_version(&self) -> bool {
        true
    }

    /// Whether each file is requested by itself, and takes the time of a request: then each thread takes one at a time.
    fn has_request_per_file(&self) -> bool {
        false
    }
}

/// A file that will be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedFile {
    /// Which.
    pub id: ListingEntryId,
    /// It will be opened with what the destination has.
    pub delta: bool,
}

/// The content of a file.
pub enum SourceContent {
    /// A file of this host, which the receiver copies as is fastest, and looks at again after it was read.
    File(OpenedFile),
    /// Pieces that arrive one after the other.
    Pieces(Box<dyn ContentPieces>),
}

/// Content that arrives piece by piece.
pub trait ContentPieces: Send {
    /// The next piece; None at the end, when the source has said that the file stayed the same meanwhile.
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>>;

    /// What the whole file hashes to, once all pieces are there; None if the source does not say.
    fn content_digest(&self) -> Option<ContentDigest> {
        None
    }

    /// All of it in parts, one behind the other, which can be read at the same time; None if it has to arrive in order.
    fn split_parts(&self) -> Option<Vec<FilePart>> {
        None
    }
}

/// A part of a file that is read by itself.
pub struct FilePart {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
    /// What is there; never of the old file.
    pub pieces: Box<dyn ContentPieces>,
}

/// A piece of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPiece<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// Zeros that are not stored.
    Hole(u64),
    /// Bytes that the old file has.
    Old {
        /// From where on.
        offset: u64,
        /// How many.
        len: u64,
    },
}

//! The interface of a walk to the rules.

use std::sync::Arc;

use vellum_types::UnixTime;

use crate::ends::{ListingRequest, SyncSide};
use crate::error::Result;
use crate::model::listing::{EntryFlags, NewListingEntry, TreeListing};

/// The verdict of the rules on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryVerdict {
    /// It is transferred.
    pub transfer: bool,
    /// It is not deleted.
    pub protect_from_delete: bool,
    /// It is deleted nevertheless if its directory is.
    pub perishable: bool,
    /// It is above a named path: a directory there may also be a symlink to one.
    pub is_way: bool,
    /// It is above a named path, and was not named itself.
    pub is_between: bool,
}

/// Reads a rule file of the directory that is about to be entered; None if there is none.
pub type ReadScanRules<'a> = &'a dyn Fn(&[u8]) -> Result<Option<Vec<u8>>>;

/// The rules of one directory, which decide which entries are listed.
pub trait EntryFilter: Send + Sync {
    /// The verdict on an entry of this directory.
    fn evaluate_entry(&self, name: &[u8], is_dir: bool) -> EntryVerdict;

    /// The rules of a subdirectory (with an empty name: of the root); None if the same rules apply to everything below
    /// it.
    fn enter_dir(&self, name: &[u8], read: ReadScanRules<'_>) -> Result<Option<Arc<dyn EntryFilter>>>;

    /// Names in this directory that were listed one by one, and should exist.
    fn listed_names(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Whether a file of this size and time is transferred; its copy is not deleted in either case.
    fn should_transfer_file(&self, _size: u64, _mtime: UnixTime) -> bool {
        true
    }

    /// Whether an extended attribute of an entry of this directory is transferred.
    fn should_transfer_xattr(&self, _name: &[u8]) -> bool {
        true
    }

    /// The rules in a form that can be sent to another host; None if there is none.
    fn sync_filters(&self) -> Option<Arc<crate::rules::SyncFilters>> {
        None
    }
}

/// Whether the rules include a source that was named itself, as an entry of its directory.
pub(crate) fn should_list_named(wish: &ListingRequest, name: &[u8], is_dir: bool) -> Result<bool> {
    Ok(wish.side == SyncSide::Destination
        || create_beside_filter(wish)?.evaluate_entry(name, is_dir).transfer)
}

/// The rules of the directory that contains a source that was named itself.
pub(super) fn create_beside_filter(wish: &ListingRequest) -> Result<Arc<dyn EntryFilter>> {
    Ok(wish.rules.enter_dir(b"", &|_| Ok(None))?.unwrap_or_else(|| Arc::clone(&wish.rules)))
}

/// The listing of a source that was named itself and is excluded by a rule.
pub(crate) fn create_omitted_listing() -> TreeListing {
    TreeListing::new(
        &NewListingEntry {
            flags: EntryFlags::IMPLIED.union(EntryFlags::WITHHELD),
            ..NewListingEntry::unknown_dir()
        },
        None,
    )
}

/// No rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFilter;

impl EntryFilter for NoFilter {
    fn evaluate_entry(&self, _: &[u8], _: bool) -> EntryVerdict {
        EntryVerdict {
            transfer: true,
            protect_from_delete: false,
            perishable: false,
            is_way: false,
            is_between: false,
        }
    }

    fn enter_dir(&self, _: &[u8], _: ReadScanRules<'_>) -> Result<Option<Arc<dyn EntryFilter>>> {
        Ok(None)
    }
}

//! What a walk asks of the rules.

use std::sync::Arc;

use vellum_types::UnixTime;

use crate::ends::{ListingRequest, SyncSide};
use crate::error::Result;
use crate::model::listing::{EntryFlags, NewListingEntry, TreeListing};

/// What a rule says of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryVerdict {
    /// It is transferred.
    pub transfer: bool,
    /// It is not deleted.
    pub protect_from_delete: bool,
    /// It is deleted nevertheless where its directory is.
    pub perishable: bool,
    /// It is on the way to what was asked for by its path: a directory there, though it be a symlink's.
    pub is_way: bool,
    /// It is on the way to what was asked for, and was not asked for itself.
    pub is_between: bool,
}

/// How a judge reads a rule file of the directory that it is about to enter: None if there is none.
pub type ReadScanRules<'a> = &'a dyn Fn(&[u8]) -> Result<Option<Vec<u8>>>;

/// What decides which entries are listed: rules, as they hold in one directory.
pub trait EntryFilter: Send + Sync {
    /// What is to become of an entry of this directory.
    fn evaluate_entry(&self, name: &[u8], is_dir: bool) -> EntryVerdict;

    /// Rules as they hold in a subdirectory (of an empty name: in the root); None if they hold as they are in all that
    /// is below.
    fn enter_dir(&self, name: &[u8], read: ReadScanRules<'_>) -> Result<Option<Arc<dyn EntryFilter>>>;

    /// Names that were listed one by one and should be in this directory.
    fn listed_names(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Whether a file of this size and time is transferred; it is not deleted either way.
    fn should_transfer_file(&self, _size: u64, _mtime: UnixTime) -> bool {
        true
    }

    /// Whether an extended attribute of an entry of this directory takes part.
    fn should_transfer_xattr(&self, _name: &[u8]) -> bool {
        true
    }

    /// What the judge was made of, for another host to judge alike; None if it cannot be told.
    fn sync_filters(&self) -> Option<Arc<crate::rules::SyncFilters>> {
        None
    }
}

/// Whether the rules take a source that was named itself, as an entry of the directory that it is in.
pub(crate) fn should_list_named(wish: &ListingRequest, name: &[u8], is_dir: bool) -> Result<bool> {
    Ok(wish.side == SyncSide::Destination
        || create_beside_filter(wish)?.evaluate_entry(name, is_dir).transfer)
}

/// The rules that hold beside a source that was named itself.
pub(super) fn create_beside_filter(wish: &ListingRequest) -> Result<Arc<dyn EntryFilter>> {
    Ok(wish.rules.enter_dir(b"", &|_| Ok(None))?.unwrap_or_else(|| Arc::clone(&wish.rules)))
}

/// What is listed of a source that was named itself and that a rule leaves out.
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

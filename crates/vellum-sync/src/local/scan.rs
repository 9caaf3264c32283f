//! Listing a local tree: in parallel, with one `statx` for each entry, relative to open directories.
//!
//! Invariant: only directories and, where rules require it, regular rule files are opened; every call uses one
//! component below an open directory, so that no symlink is followed and depth is not limited. Deliberately absent: the
//! semantics of rules (see `rules`).

mod follow;
mod judge;
mod visit;
mod walk;

use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, is_temp_name};
use vellum_volume::state::STATE_DIR;

pub use judge::{EntryFilter, EntryVerdict, NoFilter, ReadScanRules};
pub(crate) use judge::{create_omitted_listing, should_list_named};
pub(crate) use visit::{compute_identity, compute_stamp};
pub(crate) use walk::read_rule_file;

use crate::ends::ListingRequest;
use crate::error::Result;
use crate::model::listing::{EntryFlags, NewListingEntry, TreeListing};

/// The directory of deleted and replaced entries at the destination's root, with `--trash`.
pub const TRASH_DIR: &[u8] = b".vellum-trash";

/// Whether a name is reserved for Vellum: it is neither listed nor deleted, whatever the rules are.
#[must_use]
pub fn is_own_name(name: &[u8]) -> bool {
    name.starts_with(b".vellum") && (name == STATE_DIR.as_bytes() || name == TRASH_DIR || is_temp_name(name))
}

/// Lists the entries of a directory.
pub fn scan_dir(root: &HeldDir, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
    if !wish.top.is_empty() && !should_list_named(wish, &wish.top, true)? {
        return Ok(create_omitted_listing());
    }
    walk::DirectoryWalk::new(root, wish, meter)?.run_walk()
}

/// Lists one entry of a directory as the only one, under the name `shown`.
pub fn scan_entry(dir: &HeldDir, name: &[u8], shown: &[u8], wish: &ListingRequest) -> Result<TreeListing> {
    if !should_list_named(wish, name, false)? {
        return Ok(create_omitted_listing());
    }
    let mut listing = TreeListing::new(
        &NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() },
        None,
    );
    let mut found = visit::DirectoryContents::with_capacity(1);
    visit::DirectoryVisitor::new(wish).add_named_entry(dir, name, shown, &mut found)?;
    for (place, device, inode) in &found.linked {
        // The only entry of the listing is a group by itself.
        found.block.set_link_group(*place as usize, 1);
        listing.linked_files = vec![(*device, *inode)];
    }
    let first = listing.attach_block(crate::model::listing::ListingEntryId::ROOT, &mut found.block)?;
    for (place, stamp) in &found.stamps {
        listing.set_change_stamp(first.offset_by(*place), *stamp);
    }
    if !found.followed.is_empty() {
        listing.set_followed(first);
    }
    Ok(listing)
}

#[cfg(test)]
mod tests;

//! A listing in another charset.

use std::collections::VecDeque;

use vellum_types::key::check_name;

use super::{NameConversion, NameConversionError};
use crate::error::Result;
use crate::model::listing::{
    DirectoryBlock, EntryDetail, EntryFlags, ListingEntry, ListingEntryId, NewListingEntry, TreeListing,
    UnlistedEntry,
};

/// A listing with converted names, in their new order.
pub(super) struct ConvertedListing {
    pub listing: TreeListing,
    /// The number of each entry in the original listing.
    pub origins: Vec<ListingEntryId>,
    converts_names: bool,
}

/// A directory whose entries are to be converted, and its number in the converted listing.
struct ConvertedDir<'o> {
    original: ListingEntry<'o>,
    id: ListingEntryId,
}

impl ConvertedListing {
    /// Converts the targets of symlinks, and names if `converts_names`. The paths of unlisted entries stay in the
    /// charset of the original.
    pub fn convert_listing(
        original: &TreeListing,
        conversion: NameConversion,
        converts_names: bool,
    ) -> Result<Self> {
        let root = original.root();
        let mut listing = TreeListing::new(&NewListingEntry::from_entry(&root), root.detail().cloned());
        listing.granularity = original.granularity;
        listing.owners = original.owners.clone();
        listing.linked_files.clone_from(&original.linked_files);
        listing.shadowed = original.shadowed.iter().map(|path| conversion.convert_path(path)).collect();
        listing.unlisted.clone_from(&original.unlisted);
        let mut converted = Self { listing, origins: vec![root.id()], converts_names };
        let mut dirs = VecDeque::from([ConvertedDir { original: root, id: root.id() }]);
        // Directories are attached in the order in which they are found, so entries come after their
        // directory as in any listing.
        while let Some(dir) = dirs.pop_front() {
            converted.convert_dir(&dir, conversion, &mut dirs)?;
        }
        Ok(converted)
    }

    fn convert_dir<'o>(
        &mut self,
        dir: &ConvertedDir<'o>,
        conversion: NameConversion,
        dirs: &mut VecDeque<ConvertedDir<'o>>,
    ) -> Result<()> {
        let mut named: Vec<(Vec<u8>, Option<EntryDetail>, ListingEntry<'o>)> = Vec::new();
        for child in dir.original.children() {
            let name = if self.converts_names {
                convert_name(child.name(), conversion)
            } else {
                Ok(child.name().to_vec())
            };
            let name = name.map_err(|error| format!("its name {error}"));
            let detail = convert_detail(&child, conversion).map_err(|error| format!("its target {error}"));
            match name.and_then(|name| Ok((name, detail?))) {
                Ok((name, detail)) => named.push((name, detail, child)),
                // The directory of such an entry is left out with all that is in it.
                Err(why) => self.leave_out(&child, dir.id, why),
            }
        }
        // Stable: of two with one name the first of the original stays the first.
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let mut block = DirectoryBlock::with_capacity(named.len());
        let mut taken: Vec<ListingEntry<'o>> = Vec::with_capacity(named.len());
        let mut last: Option<Vec<u8>> = None;
        for (name, detail, child) in named {
            if last.as_ref() == Some(&name) {
                let why = NameConversionError::Taken(conversion.to.name());
                self.leave_out(&child, dir.id, format!("its name {why}"));
                continue;
            }
            block.push(&name, &NewListingEntry::from_entry(&child), detail)?;
            taken.push(child);
            last = Some(name);
        }
        let first = self.listing.attach_block(dir.id, &mut block)?;
        for (place, child) in (0..).zip(taken) {
            let id = first.offset_by(place);
            self.origins.push(child.id());
            if child.listing().is_followed(child.id()) {
                self.listing.set_followed(id);
            }
            // Without its stamp, a file that is source and destination at once is not recognised as itself, and
            // would be removed at the source.
            let stamp = child.listing().change_stamp(child.id());
            if stamp != 0 {
                self.listing.set_change_stamp(id, stamp);
            }
            if child.is_dir() {
                dirs.push_back(ConvertedDir { original: child, id });
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, entry: &ListingEntry<'_>, dir: ListingEntryId, message: String) {
        // The entry exists at the source, so its directory is not empty; and an unlisted entry keeps the run
        // from deleting anything.
        self.listing.add_flags(dir, EntryFlags::KEEPS);
        self.listing.unlisted.push(UnlistedEntry { path: entry.path(), message, vanished: false });
    }
}

fn convert_name(name: &[u8], conversion: NameConversion) -> Result<Vec<u8>, NameConversionError> {
    let name = conversion.convert(name)?;
    check_name(&name).map_err(|_| NameConversionError::TooLong(conversion.to.name()))?;
    Ok(name)
}

fn convert_detail(
    entry: &ListingEntry<'_>,
    conversion: NameConversion,
) -> Result<Option<EntryDetail>, NameConversionError> {
    let Some(mut detail) = entry.detail().cloned() else { return Ok(None) };
    if !detail.target.is_empty() {
        detail.target = conversion.convert(&detail.target)?.into();
    }
    Ok(Some(detail))
}

//! Finding entries that the destination lacks in basis directories.
//!
//! Invariant: an entry is linked, or left out, only if it is equal in everything that the options compare; a file with
//! equal content and other attributes is copied from the basis directory, and gets its own attributes.

use super::walk::SyncPlanner;
use super::{StepAction, compare, compare_attributes};
use crate::model::listing::ListingEntry;
use crate::model::options::{BASIS_DIRS_MAX, BasisUsage};

/// What happens with an entry that a basis directory has.
pub(super) enum BasisMatch {
    /// Nothing is created.
    LeftOut,
    /// It is created by this action.
    Taken(StepAction),
}

impl SyncPlanner<'_> {
    /// The use of the first basis directory that has an entry unchanged; None if the entry is taken from the source.
    pub(super) fn find_basis_match(&self, source: &ListingEntry<'_>) -> Option<BasisMatch> {
        let usage = self.options.basis.as_ref()?.usage;
        let path = source.path();
        let mut same_content = None;
        for (number, listing) in (0_u8..).zip(self.basis.iter().take(BASIS_DIRS_MAX)) {
            let Some(there) = listing.find_path(&path).filter(|there| there.kind() == source.kind()) else {
                continue;
            };
            if !compare::compare_content(source, &there, self.options).is_empty() {
                continue;
            }
            // A hard link shares owner, mode and times with the file in the basis directory, so all of them
            // must be right already.
            if compare_attributes(source, &there, self.options).is_empty() {
                match usage {
                    BasisUsage::Link => return Some(BasisMatch::Taken(StepAction::LinkBasis(number))),
                    BasisUsage::LeaveOut => return Some(BasisMatch::LeftOut),
                    BasisUsage::Copy => {}
                }
            }
            // A later directory may have the entry with equal attributes, so the search goes on.
            same_content.get_or_insert(number);
        }
        let copied = same_content.filter(|_| source.is_file());
        copied.map(|number| BasisMatch::Taken(StepAction::CopyBasis(number)))
    }

    /// Whether a file of the destination may be a hard link of one in a basis directory, whose attributes would change
    /// with it.
    pub(super) fn can_be_in_basis(&self, old: &ListingEntry<'_>) -> bool {
        // The file at the destination may be a hard link that an earlier run made. Changing its mode would
        // change the older backup.
        let links = self.options.basis.as_ref().is_some_and(|basis| basis.usage == BasisUsage::Link);
        links && old.flags().contains(crate::model::listing::EntryFlags::LINKED)
    }
}

//! Snapshots of a directory whose last snapshot is partly lost from the store: content that the directory still has is
//! stored again.
//!
//! Invariant: inode numbers of a tree that is made from the directory alone begin after all numbers of its ancestors,
//! as far as one of them can be read: an old number is never used for another file.

use vellum_types::{ErrorKind, Ino};
use vellum_volume::history::{AncestorWalk, HistoryEntry};
use vellum_volume::lost::LostContent;

use crate::error::{CheckoutError, Result};
use crate::worktree::CheckoutWorktree;

/// How many numbers are left out after those of an ancestor: snapshots between it and the lost one may have used them.
const NUMBERS_SKIPPED: u64 = 1 << 20;
/// How many ancestors are read for their numbers.
const FORERUNNERS_ASKED: usize = 100;

impl CheckoutWorktree {
    /// What a snapshot on top of `head` has to store again.
    pub(crate) fn plan_renewal(&self, head: Option<&HistoryEntry>) -> Result<LostContent> {
        match head {
            Some(head) => Ok(self.volume.plan_renewal(head.record.root)?),
            None => Ok(LostContent::Nothing),
        }
    }

    /// The first inode number that neither `head` nor a snapshot before it has used, as far as that is known.
    pub(crate) fn first_unused_number(&self, head: &HistoryEntry) -> Result<Ino> {
        if let Ok(record) = self.volume.open_tree(head.record.root).read_super_block() {
            // It is above all numbers of the snapshots before, too.
            return Ok(record.next_ino);
        }
        let entries = AncestorWalk::from_heads(&self.volume.catalog, [head.id])?.take(FORERUNNERS_ASKED);
        // Trees that cannot be read are skipped: the search needs any forerunner, and the numbers that are
        // skipped cover those that came after it.
        let next = entries
            .filter_map(|entry| self.volume.open_tree(entry.ok()?.record.root).read_super_block().ok())
            .map(|record| record.next_ino.0)
            .max();
        Ok(Ino(next.unwrap_or(Ino::ROOT.0).saturating_add(NUMBERS_SKIPPED)))
    }
}

/// Whether an error means that the last snapshot cannot be read.
pub fn is_lost_base(error: &CheckoutError) -> bool {
    // Other errors of these kinds are about files in the directory.
    matches!(error, CheckoutError::Volume(_))
        && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

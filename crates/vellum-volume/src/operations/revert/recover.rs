//! Forgotten snapshots, back in the history: only if all that they need is still there, and no collection is taking it.

use std::collections::HashSet;

use vellum_host::ProgressMeter;
use vellum_types::{BlobId, SnapshotId};

use super::RevertError;
use crate::error::{Result, is_data_loss};
use crate::gc::{low_half_bits, mark_reached_blobs};
use crate::operations::record::OperationEffect;
use crate::volume::Volume;

impl Volume {
    /// Brings forgotten snapshots into the history again, all or none. Fails with [`RevertError::Collected`] if a collection has
    /// deleted, or is about to delete, what one of them needs.
    pub(super) fn recover_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        // While the session is there, a collection deletes nothing that is not condemned yet; and what is condemned counts
        // as gone below.
        let session = self.begin_write_session()?;
        self.check_recoverable(ids)?;
        let effects = ids.iter().copied().map(OperationEffect::Recovered).collect();
        let pending = self.refs.begin_recorded(effects)?;
        for id in ids {
            // Killed before, or somebody else did it.
            if !self.catalog.has_snapshot(id)? {
                self.catalog.restore_forgotten_record(id)?;
            }
        }
        pending.map_or(Ok(()), |pending| self.refs.finish_operation(pending))?;
        session.end_session()
    }

    /// Fails with [`RevertError::Collected`] if something is missing that one of these forgotten snapshots needs.
    pub(super) fn check_recoverable(&self, ids: &[SnapshotId]) -> Result<()> {
        self.blobs.refresh_index()?;
        let mut reached = HashSet::new();
        for id in ids {
            let record = self.catalog.fetch_record(id)?;
            let mut is_lacking = false;
            let mut reach = |blob: &BlobId| {
                if !reached.insert(low_half_bits(blob)) {
                    return false;
                }
                // What is in condemned packs only does not count. What the store does not have, its source may.
                let is_stored = self.blobs.contains(blob) && !self.blobs.is_lost(blob);
                let is_there = is_stored || self.blobs.has_source();
                is_lacking |= !is_there;
                is_there
            };
            let walked = mark_reached_blobs(self, [record.root], &mut reach, &ProgressMeter::default());
            match walked {
                Ok(()) if !is_lacking => {}
                Err(error) if !is_lacking && !is_data_loss(&error) => return Err(error),
                Ok(()) | Err(_) => return Err(RevertError::Collected { snapshot: *id }.into()),
            }
        }
        Ok(())
    }
}

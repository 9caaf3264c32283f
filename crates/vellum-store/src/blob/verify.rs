//! Checks stored objects, and rebuilds the index from packs.
//!
//! Invariant: checks read from the store, never from a local copy.

use std::sync::Arc;

use vellum_types::{ErrorKind, PackId};

use super::{BlobError, BlobStore};
use crate::index::BlobLocation;
use crate::object::map_requests;
use crate::pack::{PackFinding, PackRange, PackRangeCheck, check_pack, check_pack_range};

/// The result of a rebuild.
#[derive(Debug, Default)]
pub struct RebuildStats {
    /// Packs whose tables were read.
    pub packs: u64,
    /// Blobs that the index knows now.
    pub blobs: u64,
    /// Packs that the index leaves out because their tables cannot be read.
    pub unreadable: Vec<(PackId, BlobError)>,
}

impl BlobStore {
    /// Checks every byte and every blob of a pack. An error means that the store did not answer.
    pub fn check_pack(&self, pack: &PackId) -> Result<Vec<PackFinding>, BlobError> {
        check_pack(&*self.inner.objects, &self.inner.keys, pack)
    }

    /// Checks a part of a pack, and all of it if that part is damaged. An error means that the store did not answer.
    pub fn check_pack_range(&self, pack: &PackId, range: PackRange) -> Result<PackRangeCheck, BlobError> {
        check_pack_range(&*self.inner.objects, &self.inner.keys, pack, range)
    }

    /// Index objects that cannot be used, and why. What only they know is found again by
    /// [`Self::rebuild_index`].
    #[must_use]
    pub fn index_problems(&self) -> Vec<Arc<BlobError>> {
        self.inner.index.problems()
    }

    /// Makes the index anew from the packs' own tables. No other writer may be at work: what it puts meanwhile
    /// is kept, but what it merges may be lost to the index until the next rebuild.
    pub fn rebuild_index(&self) -> Result<RebuildStats, BlobError> {
        let mut stats = RebuildStats::default();
        let mut blobs = Vec::new();
        let packs = self.list_packs()?;
        let read = map_requests(&*self.inner.objects, &packs, |pack| self.read_pack_entries(&pack.id));
        for (pack, read) in packs.into_iter().zip(read) {
            match read {
                Ok(entries) => {
                    stats.packs += 1;
                    blobs.extend(
                        entries.iter().map(|entry| (entry.id, BlobLocation::from_pack_entry(pack.id, entry))),
                    );
                }
                // Only a pack that is certainly damaged or gone is left out. After any other error, such as a lost
                // connection, the new index would lack the blobs of an intact pack, so the rebuild stops.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                    stats.unreadable.push((pack.id, error));
                }
                Err(error) => return Err(error),
            }
        }
        stats.blobs = self.inner.index.rebuild_index(blobs)? as u64;
        Ok(stats)
    }
}

//! Blobs that a writer has accepted and that are not in the index yet.
//!
//! Invariant: of several threads that bring one content, exactly one claims it. Bounded by the writer, which writes
//! an index object and forgets them when there are many.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::{Mutex, MutexGuard};
use vellum_types::BlobId;

use crate::pack::PackEntry;

/// Parts of the table, each with a lock of its own, a count: far more than threads.
const SHARDS: usize = 64;

/// Where a pending blob is: a pack by the writer's own number, and the place in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingLocation {
    pub(super) number: u32,
    pub(super) entry: PackEntry,
}

type PendingShard = HashMap<BlobId, Option<PendingLocation>>;

pub(super) struct PendingBlobs {
    shards: [Mutex<PendingShard>; SHARDS],
}

impl Default for PendingBlobs {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl PendingBlobs {
    fn lock_shard(&self, id: &BlobId) -> MutexGuard<'_, PendingShard> {
        // Ids are keyed hashes, so their first byte spreads the blobs evenly over the shards.
        let [first, ..] = id.0;
        self.shards[usize::from(first) % SHARDS].lock()
    }

    /// Returns true for the first caller.
    pub(super) fn claim_blob(&self, id: &BlobId) -> bool {
        match self.lock_shard(id).entry(*id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                // Claimed before it has a place: other threads must see the claim while this one seals.
                vacant.insert(None);
                true
            }
        }
    }

    pub(super) fn set_location(&self, id: &BlobId, spot: PendingLocation) {
        self.lock_shard(id).insert(*id, Some(spot));
    }

    /// `None`: not pending; `Some(None)`: claimed, and not placed yet.
    pub(super) fn get(&self, id: &BlobId) -> Option<Option<PendingLocation>> {
        self.lock_shard(id).get(id).copied()
    }

    pub(super) fn remove_blob(&self, id: &BlobId) {
        self.lock_shard(id).remove(id);
    }
}

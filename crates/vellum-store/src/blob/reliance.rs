//! Reliance: which stored blobs a writer may refer to instead of storing them again.
//!
//! Invariant: a blob counts as stored only if its pack exists with its full length, which each writer checks once per
//! pack, and if neither the blob nor its pack was found missing or damaged. Other blobs are stored again, and the
//! index then drops the lost copy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use vellum_types::{BlobId, BlobKind, PackId};

use super::{BlobError, BlobStore};
use crate::index::BlobLocation;
use crate::pack::is_pack_whole;

/// Lost blobs and packs, found by this process or by an earlier verification.
#[derive(Default)]
pub(super) struct LostCopies {
    any: AtomicBool,
    lost: RwLock<LostSets>,
}

#[derive(Default)]
struct LostSets {
    packs: HashSet<PackId>,
    blobs: HashSet<BlobId>,
}

impl LostCopies {
    fn update_sets(&self, change: impl FnOnce(&mut LostSets)) {
        change(&mut self.lost.write());
        // Set after the sets are filled: a thread that sees the flag also sees their entries. Most processes never
        // find damage, and their readers then take no lock.
        self.any.store(true, Ordering::Release);
    }

    /// Whether the copy of a blob at this place was found lost.
    pub(super) fn contains_copy(&self, id: &BlobId, place: &BlobLocation) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let lost = self.lost.read();
        lost.packs.contains(&place.pack) || lost.blobs.contains(id)
    }

    /// Whether a blob was found lost, wherever it is.
    fn contains_blob(&self, id: &BlobId) -> bool {
        self.any.load(Ordering::Acquire) && self.lost.read().blobs.contains(id)
    }

    /// The copy of a blob at this place could not be read.
    pub(super) fn record_unreadable(&self, place: &BlobLocation) {
        self.update_sets(|lost| lost.packs.extend([place.pack]));
    }

    /// Records that these blobs were stored again: earlier findings concern their lost copies.
    pub(super) fn record_stored(&self, blobs: &HashSet<BlobId>) {
        let mut lost = self.lost.write();
        // Lost packs stay in the set, since other blobs of theirs have not been stored again.
        lost.blobs.retain(|id| !blobs.contains(id));
    }
}

/// The packs on which one writer relies, and the result of checking them.
#[derive(Default)]
pub(super) struct PackReliance {
    packs: Mutex<HashMap<PackId, Arc<PackCheck>>>,
}

/// Whether a pack is there with its length, once that was asked.
#[derive(Default)]
struct PackCheck {
    whole: Mutex<Option<bool>>,
}

impl PackReliance {
    /// Whether the pack is there with its length; asked of the store once.
    fn is_pack_whole(&self, store: &BlobStore, place: &BlobLocation) -> Result<bool, BlobError> {
        let check = self.packs.lock().entry(place.pack).or_default().clone();
        // Threads that ask about the same pack wait for one request; those that ask about other packs do not.
        let mut known = check.whole.lock();
        if let Some(whole) = *known {
            return Ok(whole);
        }
        let whole = is_pack_whole(&*store.inner.objects, &place.pack)?;
        if !whole {
            store.inner.lost.record_unreadable(place);
        }
        *known = Some(whole);
        Ok(whole)
    }
}

/// The stored copy of a blob, from a writer's point of view.
pub(super) enum StoredCopy {
    /// It need not be stored again.
    Reliable,
    /// It must be stored; these copies are lost.
    Lost(Vec<PackId>),
}

impl BlobStore {
    /// Returns whether a writer may rely on the stored copy of a blob.
    pub(super) fn find_reliable_copy(
        &self,
        kind: BlobKind,
        id: &BlobId,
        packs: &PackReliance,
    ) -> Result<StoredCopy, BlobError> {
        let view = self.inner.index.current_view();
        let reliable = |place: &BlobLocation| {
            Ok::<_, BlobError>(!self.inner.lost.contains_copy(id, place) && packs.is_pack_whole(self, place)?)
        };
        let Some(first) = view.find_live_copy(id).filter(|place| place.kind == kind) else {
            // The blob is not known, so there is no entry that the index would have to drop later.
            return Ok(StoredCopy::Lost(Vec::new()));
        };
        // Nearly every blob has one copy, which is whole. The others are looked up only if it is not.
        if reliable(&first)? {
            return Ok(StoredCopy::Reliable);
        }
        let mut lost = vec![first.pack];
        for place in view.find_all_copies(id) {
            // A blob may be in several packs: two writers stored it at once, or it was repacked. One whole copy is
            // enough.
            if place.kind != kind
                || view.condemned_packs().contains_key(&place.pack)
                || lost.contains(&place.pack)
            {
                continue;
            }
            if reliable(&place)? {
                return Ok(StoredCopy::Reliable);
            }
            lost.push(place.pack);
        }
        Ok(StoredCopy::Lost(lost))
    }

    /// Prevents writers of this process from relying on these blobs: their copies were found missing or damaged.
    pub fn record_lost_blobs(&self, blobs: impl IntoIterator<Item = BlobId>) {
        // An empty call must not set the flag, which makes all writers take the lock from then on.
        let mut blobs = blobs.into_iter().peekable();
        if blobs.peek().is_some() {
            self.inner.lost.update_sets(|lost| lost.blobs.extend(blobs));
        }
    }

    /// Prevents writers of this process from relying on these packs: a blob in them could not be read.
    pub fn record_damaged_packs(&self, packs: impl IntoIterator<Item = PackId>) {
        let mut packs = packs.into_iter().peekable();
        if packs.peek().is_some() {
            self.inner.lost.update_sets(|lost| lost.packs.extend(packs));
        }
    }

    /// The packs that the index relies on and that the store does not list; no writer of this process relies on them
    /// from now on. Packs that are about to be collected, or were, do not count.
    pub fn find_missing_packs(&self) -> Result<HashSet<PackId>, BlobError> {
        let mut missing: HashSet<PackId> = {
            let view = self.inner.index.current_view();
            let packs = view.runs().iter().flat_map(|run| run.packs());
            packs.map(|(pack, _)| pack).filter(|pack| !view.condemned_packs().contains_key(pack)).collect()
        };
        for pack in self.list_packs()? {
            missing.remove(&pack.id);
        }
        // A listing may leave out what is there.
        let mut lost = HashSet::new();
        for pack in missing {
            // Each candidate is asked for by name. Otherwise a lagging listing would cause everything in the pack
            // to be stored again.
            if !is_pack_whole(&*self.inner.objects, &pack)? {
                lost.insert(pack);
            }
        }
        if !lost.is_empty() {
            self.inner.lost.update_sets(|sets| sets.packs.extend(&lost));
        }
        Ok(lost)
    }

    /// Whether every copy of a blob that the index knows was found missing or damaged, or it knows none, and none in the
    /// source of the store. A source that cannot be opened is taken to have it.
    #[must_use]
    pub fn is_lost(&self, id: &BlobId) -> bool {
        let places = self.inner.index.current_view().find_all_copies(id);
        if places.is_empty() && self.has_source() && !self.inner.lost.contains_blob(id) {
            return self.open_source().is_ok_and(|source| source.is_some_and(|source| source.is_lost(id)));
        }
        places.iter().all(|place| self.inner.lost.contains_copy(id, place))
    }
}

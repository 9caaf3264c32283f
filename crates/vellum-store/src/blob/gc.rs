//! Operations for garbage collection: listing packs and their content, condemning and repacking.
//!
//! Invariant: a condemned pack is never relied on by a writer that knows of it, and stays readable until it is
//! deleted. Deliberately absent: what is alive; the volume decides that, waits for the grace period, marks again
//! and only then replaces the index and deletes.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use vellum_types::{BlobId, PackId};

use super::{BlobError, BlobStore, WriteStats};
use crate::index::{BlobLocation, CondemnedPack, IndexAddition, current_seconds};
use crate::object::unlist_objects;
use crate::pack::{PACKS_FOLDER, PackEntry, pack_key, parse_pack_key, read_pack_toc};

/// A pack as the store lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackInfo {
    /// The pack.
    pub id: PackId,
    /// Its length in bytes.
    pub size: u64,
    /// When it was put, if the store knows.
    pub modified: Option<SystemTime>,
}

impl BlobStore {
    /// All packs in the store, sorted by id.
    pub fn list_packs(&self) -> Result<Vec<PackInfo>, BlobError> {
        // The store and not the index is asked: packs of writers that crashed are in no index.
        let is_pack = |key: &_| parse_pack_key(key).is_some();
        let listed = self.inner.objects.select_objects(PACKS_FOLDER, is_pack)?.objects;
        // Other names in the folder are none of ours: a collector that does not know them must not delete them.
        let packs = listed.into_iter().filter_map(|info| {
            Some(PackInfo { id: parse_pack_key(&info.key)?, size: info.size, modified: info.modified })
        });
        Ok(packs.collect())
    }

    /// Returns the content of a pack from its own table, even if the index no longer has it.
    pub fn read_pack_entries(&self, pack: &PackId) -> Result<Vec<PackEntry>, BlobError> {
        read_pack_toc(&*self.inner.objects, &self.inner.keys, pack)
    }

    /// Visits every place that the index knows; a blob that is stored twice comes twice.
    pub fn for_each_entry(&self, mut visit: impl FnMut(&BlobId, &BlobLocation)) {
        for run in self.inner.index.current_view().runs() {
            run.iter().for_each(|(id, place)| visit(&id, &place));
        }
    }

    /// Declares that packs are to be deleted: from now on no writer that has refreshed relies on what is in
    /// them. They stay readable.
    pub fn condemn_packs(&self, packs: &[PackId]) -> Result<(), BlobError> {
        let since = current_seconds();
        let mut condemned: Vec<_> = packs.iter().map(|pack| CondemnedPack { pack: *pack, since }).collect();
        condemned.sort();
        condemned.dedup();
        self.inner.index.commit_addition(IndexAddition { condemned, ..IndexAddition::default() })?;
        Ok(())
    }

    /// The condemned packs, deleted ones included for some time, and when they were condemned (seconds since
    /// 1970).
    #[must_use]
    pub fn condemned_packs(&self) -> HashMap<PackId, u64> {
        self.inner.index.current_view().condemned_packs().clone()
    }

    /// Makes the index forget some packs. Afterwards they may be deleted.
    pub fn drop_packs_from_index(&self, excluding: &HashSet<PackId>) -> Result<(), BlobError> {
        self.inner.index.drop_packs(excluding)
    }

    /// Copies the live blobs of some packs into new ones, their sealed bytes unchanged, after checking each. Fails
    /// if one is damaged: its pack must not be deleted. Returns what was written.
    pub fn repack_blobs(&self, packs: &[(PackId, HashSet<BlobId>)]) -> Result<WriteStats, BlobError> {
        let writer = self.create_writer();
        for (pack, live) in packs {
            // From the table of the pack: of a blob that is in two packs, the index may name the other one.
            let entries = self.read_pack_entries(pack)?;
            let live: Vec<_> = entries
                .iter()
                .filter(|entry| live.contains(&entry.id))
                .map(|entry| (entry.id, BlobLocation::from_pack_entry(*pack, entry)))
                .collect();
            self.copy_blobs_to(&writer, pack, &live)?;
        }
        // Only now the index knows the copies. Until then the old packs are the ones that count, so that a crash
        // loses nothing.
        writer.finish()
    }

    /// Tells readers of a published store that packs are about to be deleted; see [`unlist_objects`].
    pub fn unlist_packs(&self, packs: &HashSet<PackId>) -> Result<(), BlobError> {
        let keys: HashSet<_> = packs.iter().map(pack_key).collect();
        Ok(unlist_objects(&*self.inner.objects, &|key| keys.contains(key))?)
    }

    /// Deletes a pack. The index must have forgotten it, or it must be condemned: on a full disk there is no room for an
    /// index without it yet.
    pub fn delete_pack(&self, pack: &PackId) -> Result<(), BlobError> {
        Ok(self.inner.objects.delete_object(&pack_key(pack))?)
    }
}

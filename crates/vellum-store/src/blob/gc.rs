//! Operations for garbage collection: listing packs and their content, condemning and repacking.
//!
//! Invariant: a condemned pack is never relied on by a writer that knows of it, and stays readable until it is
//! deleted. Deliberately absent: what is alive; the volume decides that, waits for the grace period, marks again
//! and only then replaces the index and deletes.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use vellum_types::{BlobId, BlobKind, PackId};

use super::body::{BlobBodyFault, OpenedBody};
use super::{BlobError, BlobStore, BlobWriter, WriteStats, body};
use crate::index::{BlobLocation, CondemnedPack, IndexAddition, current_seconds};
use crate::object::{map_requests, unlist_objects};
use crate::pack::{PACK_MAX, PACKS_FOLDER, PackEntry, pack_key, parse_pack, parse_pack_key, read_pack_toc};

/// Packs that are read at once to copy what is in them, a count: each is in memory.
const PACKS_AT_ONCE: usize = 4;

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

    /// The packs that the index knows, and what is in them: a pack holds blobs of one kind.
    #[must_use]
    pub fn indexed_packs(&self) -> HashMap<PackId, BlobKind> {
        let view = self.inner.index.current_view();
        view.runs().iter().flat_map(|run| run.used_packs()).collect()
    }

    /// Visits the places that the index knows in some packs. Each pack is asked about once for each run of the index that
    /// speaks of it, however many blobs it has.
    pub fn for_each_entry_in(
        &self,
        is_wanted: impl Fn(&PackId) -> bool,
        mut visit: impl FnMut(&BlobId, &BlobLocation),
    ) {
        for run in self.inner.index.current_view().runs() {
            run.entries_in(&is_wanted).for_each(|(id, place)| visit(&id, &place));
        }
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
        // Each pack comes in one request, several at once: there may be hundreds of small ones.
        let at_once = self.inner.objects.parallel_get_count().clamp(1, PACKS_AT_ONCE);
        for batch in packs.chunks(at_once) {
            let read = map_requests(&*self.inner.objects, batch, |(pack, _)| {
                self.inner.objects.get_object(&pack_key(pack), PACK_MAX)
            });
            for ((pack, live), bytes) in batch.iter().zip(read) {
                self.copy_live_blobs(&writer, pack, &bytes?, live)?;
            }
        }
        // Only now the index knows the copies. Until then the old packs are the ones that count, so that a crash
        // loses nothing.
        writer.finish()
    }

    /// Copies the live blobs of a pack that is in memory.
    fn copy_live_blobs(
        &self,
        writer: &BlobWriter,
        pack: &PackId,
        bytes: &[u8],
        live: &HashSet<BlobId>,
    ) -> Result<(), BlobError> {
        // From the table of the pack: of a blob that is in two packs, the index may name the other one.
        let entries =
            parse_pack(&self.inner.keys, bytes).map_err(|fault| BlobError::Pack { pack: *pack, fault })?;
        for entry in entries.iter().filter(|entry| live.contains(&entry.id)) {
            let PackEntry { id, kind, offset, len } = *entry;
            let damaged = |fault| BlobError::Damaged { kind, id, pack: *pack, fault };
            // The table was checked against the length of the pack.
            let sealed = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
            let opened = body::open_blob(&self.inner.keys, kind, &id, sealed).map_err(damaged)?;
            if let OpenedBody::Content(plaintext) = &opened {
                writer.copy_blob(kind, &id, plaintext, sealed)?;
                continue;
            }
            // Its base is not copied, unless another blob needs it.
            let plaintext = opened
                .resolve_plaintext(&self.inner.keys, kind, &id, |base| {
                    base.slice_base(bytes).map(<[u8]>::to_vec).ok_or(BlobBodyFault::Base)
                })
                .map_err(damaged)?;
            writer.store_blob_again(kind, &id, &plaintext)?;
        }
        Ok(())
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

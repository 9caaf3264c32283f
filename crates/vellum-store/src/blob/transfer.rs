//! Blobs that go from one store of a volume to another, sealed as they are, unless the key of one of the stores was changed.
//!
//! Invariant: nothing is put that was not checked: a pack has the hash that it is named by, and a blob that is copied
//! alone authenticates. What is put into a store is sealed with its newest key; only what comes from the same store, or
//! from one that has the first key only, as that one has, is copied unchanged. No name of a pack is used twice: in the target it may be condemned, or about to be deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vellum_crypto::KeyEpoch;
use vellum_types::{BlobId, BlobKind, ErrorKind, PackId};

use super::body::OpenedBody;
use super::fetch::coalesce_spans;
use super::reliance::StoredCopy;
use super::{BlobError, BlobStore, BlobWriter, body};
use crate::index::{BlobLocation, IndexAddition};
use crate::pack::{PACK_MAX, PackBuilder, PackFault, pack_key};

/// Whether a pack was copied as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackCopyOutcome {
    /// It was.
    Copied,
    /// The key of one of the stores was changed: its blobs must be sealed anew.
    OtherKeys,
}

impl BlobStore {
    /// How many sealed bytes of blobs each of these packs has, as far as the index knows.
    #[must_use]
    pub fn measure_packs(&self, packs: &HashSet<PackId>) -> HashMap<PackId, u64> {
        let mut measured = HashMap::with_capacity(packs.len());
        self.for_each_entry(|_, place| {
            if packs.contains(&place.pack) {
                *measured.entry(place.pack).or_default() += u64::from(place.len);
            }
        });
        measured
    }

    /// Copies all blobs of a pack to the store of `writer`, sealed as they are, if both stores have the first key only.
    /// Fails with [`ErrorKind::Corrupt`] if it is not the pack that it is named by: then blobs of it may still
    /// be copied one by one.
    pub fn copy_pack_to(&self, writer: &BlobWriter, pack: &PackId) -> Result<PackCopyOutcome, BlobError> {
        let fault = |fault: PackFault| BlobError::Pack { pack: *pack, fault };
        // Before the pack is fetched, which then is of no use.
        if self.needs_other_keys(writer) {
            return Ok(PackCopyOutcome::OtherKeys);
        }
        let bytes = self.inner.objects.get_object(&pack_key(pack), PACK_MAX)?;
        // The name of a pack is the hash of its bytes, so this check covers every blob in it.
        if blake3::hash(&bytes).as_bytes() != pack.as_bytes() {
            return Err(fault(vellum_types::DecodeError::Invalid("hash").into()));
        }
        let builder = PackBuilder::from_pack(&self.inner.keys, bytes).map_err(fault)?;
        // The table is sealed after the blobs: if its key is the first one, so are theirs. Reading it finds newer keys.
        if self.needs_other_keys(writer) {
            return Ok(PackCopyOutcome::OtherKeys);
        }
        // The new table has a new salt, so the pack gets a name of its own.
        writer.copy_pack(builder)?;
        Ok(PackCopyOutcome::Copied)
    }

    /// Whether blobs must be sealed anew for the store of `writer`.
    fn needs_other_keys(&self, writer: &BlobWriter) -> bool {
        let target = writer.store();
        let is_first = |store: &Self| store.inner.keys.newest_epoch() == KeyEpoch::FIRST;
        let is_same_store = Arc::ptr_eq(&self.inner.keys, &target.inner.keys);
        !(is_same_store || is_first(self) && is_first(target))
    }

    /// Copies some blobs of a pack into new packs of `writer`, their sealed bytes unchanged where that is possible,
    /// after checking each. Returns their sealed bytes.
    pub fn copy_blobs_to(
        &self,
        writer: &BlobWriter,
        pack: &PackId,
        blobs: &[(BlobId, BlobLocation)],
    ) -> Result<u64, BlobError> {
        let mut located: Vec<_> = blobs.iter().map(|(_, place)| *place).enumerate().collect();
        // In the order of the pack, so that neighbours come in one request.
        located.sort_by_key(|(_, place)| place.offset);
        let mut copied = 0;
        for span in coalesce_spans(&located) {
            let len = u64::from(span.end - span.start);
            let bytes = self.inner.objects.get_range(&pack_key(pack), span.start.into(), len)?;
            for (position, place) in &span.blobs {
                let Some((id, _)) = blobs.get(*position) else { continue };
                let start = (place.offset - span.start) as usize;
                // A place outside of what came gives no bytes, which do not authenticate: it is reported as damage.
                let sealed = bytes.get(start..start + place.len as usize).unwrap_or_default();
                let kind = place.kind;
                let damaged = |fault| BlobError::Damaged { kind, id: *id, pack: *pack, fault };
                match body::open_blob(&self.inner.keys, kind, id, sealed).map_err(damaged)? {
                    OpenedBody::Content(plaintext) if self.needs_other_keys(writer) => {
                        writer.store_blob_again(kind, id, &plaintext)?;
                    }
                    OpenedBody::Content(plaintext) => writer.copy_blob(kind, id, &plaintext, sealed)?,
                    // Its base is not copied, unless another blob needs it.
                    OpenedBody::Difference(_) => {
                        writer.store_blob_again(kind, id, &self.read_blob_at(kind, id, place)?)?
                    }
                }
                copied += u64::from(place.len);
            }
        }
        Ok(copied)
    }

    /// Adds to the index what is in packs that it does not know: those of a writer that was killed. Returns how many
    /// packs there were. The caller has the session of the collector: no other process may be about to delete them.
    pub fn adopt_unindexed_packs(&self) -> Result<u64, BlobError> {
        let known: HashSet<PackId> = {
            let view = self.inner.index.current_view();
            let indexed = view.runs().iter().flat_map(|run| run.packs()).map(|(pack, _)| pack);
            indexed.chain(view.condemned_packs().keys().copied()).collect()
        };
        let mut adopted = 0;
        let mut blobs = Vec::new();
        for pack in self.list_packs()?.into_iter().filter(|pack| !known.contains(&pack.id)) {
            match self.read_pack_entries(&pack.id) {
                Ok(entries) => {
                    adopted += 1;
                    let places = entries.iter();
                    blobs.extend(
                        places.map(|entry| (entry.id, BlobLocation::from_pack_entry(pack.id, entry))),
                    );
                }
                // Cut off, or gone since: nothing relies on it.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        if adopted > 0 {
            self.inner.index.commit_addition(IndexAddition { blobs, ..IndexAddition::default() })?;
        }
        Ok(adopted)
    }
}

impl BlobWriter {
    fn store(&self) -> &BlobStore {
        &self.shared.store
    }

    /// Whether a blob has to be stored: there is no copy on which a writer may rely.
    pub fn needs_blob(&self, kind: BlobKind, id: &BlobId) -> Result<bool, BlobError> {
        match self.shared.store.find_reliable_copy(kind, id, &self.packs)? {
            StoredCopy::Reliable => Ok(false),
            StoredCopy::Lost(_) => Ok(true),
        }
    }
}

//! Which pieces of packs hold the bytes of blobs: what must be on this machine for them to be read without the store.
//!
//! A blob that is stored as a difference needs another blob of its pack. Which one stands in its sealed bytes, so that is
//! known only once these are here. Invariant: if all pieces of a blob are here, with those of its base, it is read without
//! a request. Deliberately absent: files.

use vellum_types::{BlobId, BlobKind};

use super::body::{DecodedBody, unseal_body};
use super::{BlobError, BlobStore, HeldBlob};
use crate::index::BlobLocation;
use crate::object::{BlockStore, PieceSet};

/// A blob that has more sealed bytes than this part of its content, a divisor, is no difference: those have at most a
/// fifth, and some framing.
const DIFFERENCE_PART: u64 = 4;
/// Sealed bytes that every blob has beside its content, and a difference to name its base.
const FRAMING_MAX: u64 = 256;

impl BlobStore {
    /// The local copies of packs of the store, or else of its source; none if all is on this machine.
    #[must_use]
    pub fn local_copies(&self) -> Option<&BlockStore> {
        self.inner.objects.as_block_store().or_else(|| self.source_objects()?.as_block_store())
    }

    /// Whether packs of this very store are fetched from elsewhere.
    fn is_fetched(&self) -> bool {
        self.inner.objects.as_block_store().is_some()
    }

    /// Adds the pieces that hold a blob's own bytes; none if it is in a store on this machine.
    pub fn add_blob_pieces(
        &self,
        kind: BlobKind,
        id: &BlobId,
        pieces: &mut PieceSet,
    ) -> Result<(), BlobError> {
        self.add_own_pieces(kind, id, pieces).map(drop)
    }

    /// As [`Self::add_blob_pieces`]; gives the blob if it is not on this machine.
    fn add_own_pieces(
        &self,
        kind: BlobKind,
        id: &BlobId,
        pieces: &mut PieceSet,
    ) -> Result<Option<HeldBlob<'_>>, BlobError> {
        let held = self.require_holder(kind, id)?;
        if !held.holder.is_fetched() {
            return Ok(None);
        }
        pieces.add_range(&held.place.pack, held.place.offset, held.place.len);
        Ok(Some(held))
    }

    /// All pieces of the pack that a blob is in; none if no index knows it, or it is in a store on this machine.
    #[must_use]
    pub fn list_pack_pieces(&self, id: &BlobId) -> PieceSet {
        let mut pieces = PieceSet::default();
        if let Ok(Some(HeldBlob { holder, place: BlobLocation { pack, .. } })) = self.find_holder(id)
            && holder.is_fetched()
        {
            holder.for_each_entry(|_, place| {
                if place.pack == pack {
                    pieces.add_range(&pack, place.offset, place.len);
                }
            });
        }
        pieces
    }

    /// Tells the store that all nodes are going to be read: each of their packs is fetched in two requests then, as soon as
    /// something of it is read.
    pub fn announce_all_nodes(&self) {
        let Some(copies) = self.local_copies() else { return };
        let mut pieces = PieceSet::default();
        self.for_each_entry(|_, place| {
            if place.kind == BlobKind::Node {
                pieces.add_range(&place.pack, place.offset, place.len);
            }
        });
        copies.announce_reads(&pieces);
    }

    /// Adds the pieces that must be here to read a blob that has so many bytes: its own and, as soon as these are here,
    /// those of the blob that it is a difference to.
    pub fn add_readable_pieces(
        &self,
        kind: BlobKind,
        id: &BlobId,
        content_len: u64,
        pieces: &mut PieceSet,
    ) -> Result<(), BlobError> {
        let Some(HeldBlob { holder, place }) = self.add_own_pieces(kind, id, pieces)? else { return Ok(()) };
        if u64::from(place.len) > content_len / DIFFERENCE_PART + FRAMING_MAX {
            return Ok(());
        }
        let sealed = holder
            .local_copies()
            .and_then(|copies| copies.read_local_range(&place.pack, place.offset, place.len));
        // What the blob is a difference to stands in bytes that are not here yet. The caller asks again after it has
        // fetched them.
        let Some(sealed) = sealed else { return Ok(()) };
        // Damage is found and repaired when the blob is read.
        if let Ok(DecodedBody::Difference(difference)) = unseal_body(&holder.inner.keys, kind, id, &sealed) {
            pieces.add_range(&place.pack, difference.base.offset, difference.base.len);
        }
        Ok(())
    }
}

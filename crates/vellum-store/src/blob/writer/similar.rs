//! Finds blobs of an open pack that are similar to a new one.
//!
//! Invariant: every result is in the pack and is not a difference itself. Two blobs count as similar if they begin or
//! end alike: chunks end where the content determines it, so an edit inside a chunk leaves both ends unchanged.

use std::collections::HashMap;

use vellum_types::BlobId;

use crate::blob::body::BasePlace;
use crate::pack::PackEntry;

/// Bytes that are compared at each end.
const END_LEN: usize = 64;
/// Blobs below this many bytes have no base: what is to be saved is less than what naming a base takes.
const SIMILAR_MIN: usize = 1 << 10;

type EndHash = [u8; 16];

/// Both ends of a blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobEnds {
    first: EndHash,
    last: EndHash,
}

impl BlobEnds {
    /// `None` for blobs that are too short to be compared.
    pub(super) fn from_plaintext(plaintext: &[u8]) -> Option<Self> {
        if plaintext.len() < SIMILAR_MIN {
            return None;
        }
        let first = plaintext.first_chunk::<END_LEN>()?;
        let last = plaintext.last_chunk::<END_LEN>()?;
        // The number keeps both ends apart, so that the end of one blob does not match the beginning of another.
        Some(Self { first: hash_end(0, first), last: hash_end(1, last) })
    }
}

fn hash_end(end: u8, bytes: &[u8]) -> EndHash {
    let hash = blake3::Hasher::new().update(&[end]).update(bytes).finalize();
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// The possible bases in one pack.
#[derive(Default)]
pub(super) struct SimilarBlobs {
    by_end: HashMap<EndHash, BasePlace>,
}

impl SimilarBlobs {
    pub(super) fn add_blob(&mut self, ends: &BlobEnds, entry: &PackEntry) {
        let place = BasePlace { id: entry.id, offset: entry.offset, len: entry.len };
        // A later blob replaces an earlier one: of several versions of a file the last one is mostly the most
        // similar.
        self.by_end.insert(ends.first, place);
        self.by_end.insert(ends.last, place);
    }

    /// The latest blob that begins like this one, else one that ends like it.
    pub(super) fn find_base(&self, ends: &BlobEnds, id: &BlobId) -> Option<BasePlace> {
        let found = self.by_end.get(&ends.first).or_else(|| self.by_end.get(&ends.last))?;
        // A blob that was put into this pack before would be a difference to itself.
        (found.id != *id).then_some(*found)
    }
}

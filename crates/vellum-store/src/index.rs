//! Which blob is in which pack, and where: sorted runs in the store, and a local copy of each to look things up in.
//!
//! Invariant: the index is a hint that costs nothing to distrust. A blob's id is checked after every read; what the
//! index contains about a condemned pack serves reading but never deduplication. Deliberately absent: blobs' contents.

mod active;
mod commit;
mod filter;
mod layout;
mod merge;
mod record;
mod run;

use std::fmt;

use vellum_types::{BlobId, BlobKind, PackId};

pub(crate) use self::active::BlobIndex;
pub use self::active::is_index_key;
pub(crate) use self::commit::{CommitFailure, IndexAddition, current_seconds};
pub(crate) use self::layout::encode_run as build_run;
pub(crate) use self::record::{CondemnedPack, IndexRecord};
pub(crate) use self::run::IndexRun;
use crate::object::ObjectKey;
use crate::pack::PackEntry;

/// The folder of index objects.
pub const INDEX_FOLDER: &str = "index";

/// Most blobs in one run, a count: an index object of 85 MB, and 250 MB of memory while it is rewritten. 1 TiB of
/// 64 KiB chunks then makes nine full runs.
pub(crate) const RUN_ENTRIES_MAX: usize = 2 << 20;

/// Where a blob's sealed bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobLocation {
    /// The pack.
    pub pack: PackId,
    /// Where they begin in it.
    pub offset: u32,
    /// How many there are.
    pub len: u32,
    /// What the blob holds.
    pub kind: BlobKind,
}

impl BlobLocation {
    pub(crate) fn from_pack_entry(pack: PackId, entry: &PackEntry) -> Self {
        Self { pack, offset: entry.offset, len: entry.len, kind: entry.kind }
    }
}

/// Name of an index object: BLAKE3 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct IndexRunId(pub(crate) [u8; 32]);

impl IndexRunId {
    pub(crate) fn from_object_bytes(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes).into())
    }

    pub(crate) fn object_key(&self) -> ObjectKey {
        ObjectKey::from_trusted(format!("{INDEX_FOLDER}/{self}"))
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        // Index names and blob ids have the same shape.
        name.parse::<BlobId>().ok().map(|id| Self(id.0))
    }
}

impl fmt::Display for IndexRunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BlobId(self.0).fmt(f)
    }
}

impl fmt::Debug for IndexRunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

#[cfg(test)]
mod tests;

//! Puts a pack together in memory.
//!
//! Invariant: entries are in the order of their bytes and leave no gap.

use vellum_crypto::{RecordDomain, VolumeKeys, fill_random};
use vellum_types::{BlobId, BlobKind, PackId};

use super::check::parse_pack;
use super::{
    FOOTER_LEN, HEADER_LEN, PACK_ENTRIES_MAX, PackEntry, PackFault, TableSalt, decode_header, encode_footer,
    encode_header, encode_table,
};

/// A pack that is being filled.
pub(crate) struct PackBuilder {
    kind: BlobKind,
    bytes: Vec<u8>,
    entries: Vec<PackEntry>,
}

/// A complete pack.
pub(crate) struct BuiltPack {
    pub(crate) id: PackId,
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<PackEntry>,
}

impl PackBuilder {
    pub(crate) fn new(kind: BlobKind) -> Self {
        Self { kind, bytes: encode_header(kind).to_vec(), entries: Vec::new() }
    }

    /// A pack that is to hold what another holds, under a name of its own: a name that was used before may be
    /// condemned, or about to be deleted.
    pub(crate) fn from_pack(keys: &VolumeKeys, mut bytes: Vec<u8>) -> Result<Self, PackFault> {
        let kind = decode_header(&bytes)?;
        let entries = parse_pack(keys, &bytes)?;
        // The old table follows the last blob. It is made anew.
        bytes.truncate(entries.last().map_or(HEADER_LEN, |last| (last.offset + last.len) as usize));
        Ok(Self { kind, bytes, entries })
    }

    /// Adds a sealed blob. Returns its place.
    pub(crate) fn append_blob(&mut self, id: BlobId, sealed: &[u8]) -> PackEntry {
        // Packs are closed far below 4 GiB: see `is_full`.
        let entry =
            PackEntry { id, kind: self.kind, offset: self.bytes.len() as u32, len: sealed.len() as u32 };
        self.bytes.extend_from_slice(sealed);
        self.entries.push(entry);
        entry
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it has reached the size at which packs are closed.
    pub(crate) fn is_full(&self, size: usize) -> bool {
        self.bytes.len() >= size || self.entries.len() >= PACK_ENTRIES_MAX
    }

    /// The bytes so far, header included: offsets of entries count from their start.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds the table and the footer, and names the pack.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    pub(crate) fn build_pack(self, keys: &VolumeKeys) -> BuiltPack {
        let Self { kind, mut bytes, entries } = self;
        let table = encode_table(&generate_salt(), &entries);
        // The exact size, since a doubled buffer of a full pack would take megabytes that are not used.
        bytes.reserve_exact(table.len() + keys.seal_overhead() + FOOTER_LEN);
        let start = bytes.len();
        keys.seal_record(RecordDomain::PackToc, &encode_header(kind), &table, &mut bytes);
        let table_len = (bytes.len() - start) as u32;
        bytes.extend_from_slice(&encode_footer(table_len));
        debug_assert!(start >= HEADER_LEN);
        BuiltPack { id: PackId(blake3::hash(&bytes).into()), bytes, entries }
    }
}

fn generate_salt() -> TableSalt {
    let mut salt = TableSalt::default();
    fill_random(&mut salt);
    salt
}

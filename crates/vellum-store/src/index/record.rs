//! An index object: the stored form of a run.
//!
//! Layout: magic (8) ‖ version (u32) ‖ zero (u32) ‖ sealed body. Body: superseded runs, condemned packs, packs,
//! entries; each a varint count and its items. Invariant: entries are sorted strictly by id and name packs of the
//! record, so that equal contents have one encoding.

use std::collections::HashMap;

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::{BlobId, BlobKind, DecodeError, FieldReader, FieldWriter, PackId};

use super::{BlobLocation, IndexRunId, RUN_ENTRIES_MAX};
use crate::pack::{PACK_MAX, PackFault, SEALED_MAX};

const MAGIC: [u8; 8] = *b"vlm-indx";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 16;

/// Most runs that one can supersede, a count: far above what a store ever has at once.
const SUPERSEDES_MAX: usize = 1 << 20;
/// Most condemned packs in a run, a count: a collection of 16 TiB.
const CONDEMNED_MAX: usize = 1 << 20;

/// Longest index object, bytes (256 MiB): a run with as many of everything as it may have takes 242 million.
pub(super) const OBJECT_MAX: u64 = 128 * RUN_ENTRIES_MAX as u64;

/// A pack that the collector is about to delete, or has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CondemnedPack {
    pub(crate) pack: PackId,
    /// When it was condemned, seconds since 1970.
    pub(crate) since: u64,
}

/// Where a blob is, with its pack given by position in [`IndexRecord::packs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexEntry {
    pub(crate) id: BlobId,
    pub(crate) pack: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// The content of an index object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct IndexRecord {
    pub(crate) supersedes: Vec<IndexRunId>,
    pub(crate) condemned: Vec<CondemnedPack>,
    pub(crate) packs: Vec<(PackId, BlobKind)>,
    pub(crate) entries: Vec<IndexEntry>,
}

impl IndexRecord {
    /// A record of these blobs, which may come in any order; of several places for one blob the first stays.
    pub(crate) fn from_blobs(blobs: impl IntoIterator<Item = (BlobId, BlobLocation)>) -> Self {
        let mut record = Self::default();
        let mut positions = HashMap::new();
        let mut last = None;
        for (id, location) in blobs {
            let pack = match last {
                // Neighbours are mostly in one pack, so the map is consulted only when the pack changes.
                Some((pack, position)) if pack == location.pack => position,
                _ => record.pack_position(&mut positions, &location),
            };
            last = Some((location.pack, pack));
            record.entries.push(IndexEntry { id, pack, offset: location.offset, len: location.len });
        }
        // Merges deliver sorted entries, and skip the sort. The sort is stable, so of several places for one blob the
        // first remains.
        if !record.entries.is_sorted_by(|a, b| a.id < b.id) {
            record.entries.sort_by_key(|entry| entry.id);
            record.entries.dedup_by_key(|entry| entry.id);
        }
        record
    }

    fn pack_position(&mut self, positions: &mut HashMap<PackId, u32>, location: &BlobLocation) -> u32 {
        *positions.entry(location.pack).or_insert_with(|| {
            self.packs.push((location.pack, location.kind));
            // Fewer packs than entries, whose number is bounded.
            (self.packs.len() - 1) as u32
        })
    }

    /// The blobs, in the order of their ids.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = (BlobId, BlobLocation)> + '_ {
        self.entries.iter().filter_map(|entry| {
            let (pack, kind) = *self.packs.get(entry.pack as usize)?;
            Some((entry.id, BlobLocation { pack, offset: entry.offset, len: entry.len, kind }))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.supersedes.is_empty() && self.condemned.is_empty() && self.entries.is_empty()
    }

    /// The object's bytes.
    pub(crate) fn seal(&self, keys: &VolumeKeys) -> Vec<u8> {
        let header = encode_header();
        let body = self.encode();
        let mut out = Vec::with_capacity(HEADER_LEN + body.len() + keys.seal_overhead());
        out.extend_from_slice(&header);
        keys.seal_record(RecordDomain::Index, &header, &body, &mut out);
        out
    }

    /// Reads an object.
    pub(crate) fn open(keys: &VolumeKeys, object: &[u8]) -> Result<Self, PackFault> {
        let (head, sealed) = object.split_first_chunk::<HEADER_LEN>().ok_or(DecodeError::Truncated)?;
        let mut reader = FieldReader::new(head);
        if reader.read_array::<8>()? != MAGIC {
            return Err(DecodeError::Magic.into());
        }
        let version = reader.read_u32()?;
        // Before the body is opened, so that an object of a later version is reported as that and not as damaged.
        if version != VERSION {
            return Err(DecodeError::Version(version).into());
        }
        let mut body = Vec::new();
        // What is left of the header is covered by the associated data.
        keys.open_record(RecordDomain::Index, head, sealed, &mut body)?;
        Ok(Self::decode(&body)?)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer =
            FieldWriter::from_vec(Vec::with_capacity(64 + 33 * self.packs.len() + 41 * self.entries.len()));
        writer.write_varint(self.supersedes.len() as u64);
        for run in &self.supersedes {
            writer.write_raw(&run.0);
        }
        writer.write_varint(self.condemned.len() as u64);
        for condemned in &self.condemned {
            writer.write_raw(condemned.pack.as_bytes()).write_varint(condemned.since);
        }
        writer.write_varint(self.packs.len() as u64);
        for (pack, kind) in &self.packs {
            writer.write_raw(pack.as_bytes()).write_u8(kind.as_byte());
        }
        writer.write_varint(self.entries.len() as u64);
        for entry in &self.entries {
            writer.write_raw(entry.id.as_bytes()).write_varint(u64::from(entry.pack));
            writer.write_varint(u64::from(entry.offset)).write_varint(u64::from(entry.len));
        }
        writer.into_vec()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(body);
        // The last number is the least that an item takes: its id, and one byte for a varint or a kind.
        let supersedes = read_list(&mut reader, SUPERSEDES_MAX, 32, |r| Ok(IndexRunId(r.read_array()?)))?;
        let condemned = read_list(&mut reader, CONDEMNED_MAX, 33, |r| {
            Ok(CondemnedPack { pack: PackId(r.read_array()?), since: r.read_varint()? })
        })?;
        let packs = read_list(&mut reader, RUN_ENTRIES_MAX, 33, |r| {
            let pack = PackId(r.read_array()?);
            Ok((pack, BlobKind::from_byte(r.read_u8()?).ok_or(DecodeError::Invalid("pack kind"))?))
        })?;
        let entries = read_list(&mut reader, RUN_ENTRIES_MAX, 35, |r| decode_entry(r, packs.len()))?;
        reader.expect_end()?;
        // Searches are binary, and merges rely on the order too.
        if !entries.is_sorted_by(|a, b| a.id < b.id) {
            return Err(DecodeError::Invalid("order of entries"));
        }
        Ok(Self { supersedes, condemned, packs, entries })
    }
}

fn encode_header() -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// A varint count and that many items of at least `item_min` bytes each.
fn read_list<T>(
    reader: &mut FieldReader<'_>,
    max: usize,
    item_min: usize,
    mut item: impl FnMut(&mut FieldReader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = reader.read_count(max)?;
    // Memory is reserved for what the bytes can hold, whatever the count claims.
    let mut items = Vec::with_capacity(count.min(reader.remaining() / item_min));
    for _ in 0..count {
        items.push(item(reader)?);
    }
    Ok(items)
}

fn decode_entry(reader: &mut FieldReader<'_>, packs: usize) -> Result<IndexEntry, DecodeError> {
    let id = BlobId(reader.read_array()?);
    let pack = reader.read_varint_u32()?;
    let offset = reader.read_varint_u32()?;
    let len = reader.read_varint_u32()?;
    if pack as usize >= packs {
        return Err(DecodeError::Invalid("pack number"));
    }
    // Those who use a place rely on this: they add offset and length, and reserve memory for the length.
    if len as usize > SEALED_MAX || u64::from(offset) + u64::from(len) > PACK_MAX {
        return Err(DecodeError::Invalid("place in a pack"));
    }
    Ok(IndexEntry { id, pack, offset, len })
}

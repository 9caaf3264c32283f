//! The file of a local run: one index object in a form that can be searched in place.
//!
//! Layout: header (192) ‖ filter ‖ fan-out table ‖ records ‖ packs ‖ superseded runs ‖ condemned packs. Invariant:
//! a file whose header checks out has exactly the length that the header's counts add up to.

use std::ops::Range;

use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter, VolumeId};

use super::filter::{self, BLOCK_LEN};
use super::record::IndexRecord;
use super::{IndexRunId, RUN_ENTRIES_MAX};

const MAGIC: [u8; 8] = *b"vlm-lrun";
const VERSION: u32 = 1;
/// Three cache lines, so that the filter's blocks are aligned.
pub(super) const HEADER_LEN: usize = 192;
/// The header without its own checksum and padding.
const HEADER_FIELDS: usize = 120;

// All items of a section are equally long, unlike in the index object, so that an item is found by its number.
pub(super) const RECORD_LEN: usize = 44;
pub(super) const PACK_LEN: usize = 33;
pub(super) const RUN_ID_LEN: usize = 32;
pub(super) const CONDEMNED_LEN: usize = 40;
const FAN_LEN: usize = 4;

/// Records per slot of the fan-out table, a count: a slot's records then span a few cache lines.
const RECORDS_PER_SLOT: usize = 16;

/// Counts of a run's sections and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunHeader {
    pub(super) volume: VolumeId,
    pub(super) id: IndexRunId,
    pub(super) fan_bits: u32,
    pub(super) entries: u32,
    pub(super) packs: u32,
    pub(super) supersedes: u32,
    pub(super) condemned: u32,
    pub(super) blocks: u32,
    pub(super) body_hash: [u8; 32],
}

/// Where the sections of a run are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunSections {
    pub(super) filter: Range<usize>,
    pub(super) fan: Range<usize>,
    pub(super) records: Range<usize>,
    pub(super) packs: Range<usize>,
    pub(super) supersedes: Range<usize>,
    pub(super) condemned: Range<usize>,
}

impl RunHeader {
    pub(super) fn sections(&self) -> Option<RunSections> {
        let mut end = HEADER_LEN;
        let mut next = |count: usize, item: usize| {
            let start = end;
            // The counts come from a file, and where `usize` has 32 bits their product may be too large for it.
            end = count.checked_mul(item)?.checked_add(start)?;
            Some(start..end)
        };
        Some(RunSections {
            filter: next(self.blocks as usize, BLOCK_LEN)?,
            // `decode` has compared this number with the one that follows from the entries, so the shift is
            // within range.
            fan: next((1_usize << self.fan_bits) + 1, FAN_LEN)?,
            records: next(self.entries as usize, RECORD_LEN)?,
            packs: next(self.packs as usize, PACK_LEN)?,
            supersedes: next(self.supersedes as usize, RUN_ID_LEN)?,
            condemned: next(self.condemned as usize, CONDEMNED_LEN)?,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(HEADER_LEN));
        writer
            .write_raw(&MAGIC)
            .write_u32(VERSION)
            .write_u32(self.fan_bits)
            .write_raw(self.volume.as_bytes())
            .write_raw(&self.id.0);
        writer
            .write_u32(self.entries)
            .write_u32(self.packs)
            .write_u32(self.supersedes)
            .write_u32(self.condemned)
            .write_u32(self.blocks);
        writer.write_u32(0).write_raw(&self.body_hash);
        let checksum = blake3::hash(writer.as_slice());
        writer.write_raw(checksum.as_bytes());
        let mut bytes = writer.into_vec();
        // Zeros up to the next boundary of a cache line, so that the filter's blocks are aligned.
        bytes.resize(HEADER_LEN, 0);
        bytes
    }

    pub(super) fn decode(file: &[u8]) -> Result<Self, DecodeError> {
        let head = file.get(..HEADER_LEN).ok_or(DecodeError::Truncated)?;
        let mut reader = FieldReader::new(head);
        if reader.read_array::<8>()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = reader.read_u32()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let fan_bits = reader.read_u32()?;
        let volume = VolumeId(reader.read_array()?);
        let id = IndexRunId(reader.read_array()?);
        let [entries, packs, supersedes, condemned, blocks, _zero] = read_counts(&mut reader)?;
        let header = Self {
            volume,
            id,
            fan_bits,
            entries,
            packs,
            supersedes,
            condemned,
            blocks,
            body_hash: reader.read_array()?,
        };
        let fields = head.get(..HEADER_FIELDS).unwrap_or_default();
        if blake3::hash(fields).as_bytes() != &reader.read_array::<32>()? {
            return Err(DecodeError::Invalid("header checksum"));
        }
        // The number of slots follows from the number of entries, so a file cannot claim a table of any size.
        if entries as usize > RUN_ENTRIES_MAX || fan_bits != choose_fan_bits(entries as usize) {
            return Err(DecodeError::Invalid("counts"));
        }
        Ok(header)
    }
}

fn read_counts<const N: usize>(reader: &mut FieldReader<'_>) -> Result<[u32; N], DecodeError> {
    let mut counts = [0; N];
    for count in &mut counts {
        *count = reader.read_u32()?;
    }
    Ok(counts)
}

fn choose_fan_bits(entries: usize) -> u32 {
    (entries / RECORDS_PER_SLOT).max(1).ilog2()
}

/// The slot of the fan-out table in which an id's records are: its highest bits.
pub(super) fn compute_fan_slot(id: &BlobId, fan_bits: u32) -> usize {
    let [a, b, c, d, ..] = id.0;
    // Shifting a u64 right by 32 is allowed, unlike a u32: a table of one slot has no bits.
    (u64::from(u32::from_be_bytes([a, b, c, d])) >> (32 - fan_bits)) as usize
}

/// The bytes of the file for a record of the store's index.
pub(crate) fn encode_run(record: &IndexRecord, volume: VolumeId, id: IndexRunId) -> Vec<u8> {
    let blocks = filter::count_blocks(record.entries.len());
    let fan_bits = choose_fan_bits(record.entries.len());
    let mut body = FieldWriter::from_vec(build_filter(record, blocks));
    for start in build_fan_out(record, fan_bits) {
        body.write_u32(start);
    }
    for entry in &record.entries {
        body.write_raw(entry.id.as_bytes())
            .write_u32(entry.pack)
            .write_u32(entry.offset)
            .write_u32(entry.len);
    }
    for (pack, kind) in &record.packs {
        body.write_raw(pack.as_bytes()).write_u8(kind.as_byte());
    }
    for run in &record.supersedes {
        body.write_raw(&run.0);
    }
    for condemned in &record.condemned {
        body.write_raw(condemned.pack.as_bytes()).write_u64(condemned.since);
    }
    let body = body.into_vec();
    let header = RunHeader {
        volume,
        id,
        fan_bits,
        // All counts are bounded far below 2^32 by the record's own limits.
        entries: record.entries.len() as u32,
        packs: record.packs.len() as u32,
        supersedes: record.supersedes.len() as u32,
        condemned: record.condemned.len() as u32,
        blocks: blocks as u32,
        body_hash: blake3::hash(&body).into(),
    };
    let mut file = header.encode();
    file.extend_from_slice(&body);
    file
}

fn build_filter(record: &IndexRecord, blocks: usize) -> Vec<u8> {
    // The whole body is appended to this buffer. It has the room from the start, so that nothing is copied to grow it.
    let rest = record.entries.len() * RECORD_LEN + record.packs.len() * PACK_LEN;
    // The slack of a 64th has room for the fan-out table, which takes at most 4 bytes for 16 records of 44.
    let mut filter = Vec::with_capacity(blocks * BLOCK_LEN + rest + rest / 64);
    filter.resize(blocks * BLOCK_LEN, 0);
    for entry in &record.entries {
        filter::insert_id(&mut filter, &entry.id);
    }
    filter
}

/// For each slot the number of its first record, and at the end the number of all.
fn build_fan_out(record: &IndexRecord, fan_bits: u32) -> Vec<u32> {
    let slots = 1_usize << fan_bits;
    let mut fan = Vec::with_capacity(slots + 1);
    for (number, entry) in record.entries.iter().enumerate() {
        // A slot without records points at the next record.
        while fan.len() <= compute_fan_slot(&entry.id, fan_bits) {
            fan.push(number as u32);
        }
    }
    fan.resize(slots + 1, record.entries.len() as u32);
    fan
}

//! Packs: many sealed blobs of one kind in one object, with a sealed table of contents at its end.
//!
//! Invariant: a pack has a table of its own content, so that the index can be rebuilt; its name is the hash of all
//! its bytes. Layout: header (16) ‖ sealed blobs, one after the other ‖ sealed table ‖ footer (8). The table is a
//! random salt (16), the number of blobs, and the id and length of each.

mod build;
mod check;

use vellum_crypto::{RecordDomain, UnsealError, VolumeKeys};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, DecodeError, FieldReader, FieldWriter, PackId};

pub(crate) use self::build::PackBuilder;
pub use self::check::{
    PackFinding, PackFlaw, PackRange, PackRangeCheck, check_pack, check_pack_range, read_pack_toc,
};
pub(crate) use self::check::{is_pack_whole, parse_pack};

use crate::object::ObjectKey;

/// The folder of packs.
pub const PACKS_FOLDER: &str = "packs";

const MAGIC: [u8; 8] = *b"vlm-pack";
const VERSION: u32 = 1;
/// Magic, version, kind, three zeros.
pub(crate) const HEADER_LEN: usize = 16;
const FOOTER_MAGIC: [u8; 4] = *b"vlmE";
/// Length of the sealed table (u32) and the closing magic.
const FOOTER_LEN: usize = 8;

/// Largest pack that is read whole, bytes: four times the largest that is written, so that a hostile object
/// cannot fill the memory.
pub(crate) const PACK_MAX: u64 = 256 << 20;
/// Most blobs in a pack, a count: keeps the table of a pack of tiny blobs below 5 MiB.
pub(crate) const PACK_ENTRIES_MAX: usize = 128 << 10;
/// Largest sealed blob, bytes: the largest blob with its framing (method, length) and sealing.
pub(crate) const SEALED_MAX: usize = BLOB_MAX + 64;

/// One blob in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackEntry {
    /// The blob.
    pub id: BlobId,
    /// What it holds.
    pub kind: BlobKind,
    /// Where its sealed bytes begin in the pack.
    pub offset: u32,
    /// How many sealed bytes there are.
    pub len: u32,
}

/// Why a pack's own structure cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PackFault {
    /// Header, table or footer break the format.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The table does not authenticate.
    #[error("its table of contents: {0}")]
    Open(#[from] UnsealError),
    /// It is longer than any pack may be.
    #[error("it has {0} bytes or more, which is too long")]
    TooLong(u64),
}

/// The key under which a pack is stored.
#[must_use]
pub fn pack_key(pack: &PackId) -> ObjectKey {
    let name = pack.to_string();
    ObjectKey::from_trusted(format!("{PACKS_FOLDER}/{}/{name}", name.get(..2).unwrap_or_default()))
}

/// The pack that is stored under a key, if it is one.
#[must_use]
pub fn parse_pack_key(key: &ObjectKey) -> Option<PackId> {
    let pack = key.name().parse().ok()?;
    // Under its own key only: a copy in another folder would be a second pack of the same name.
    (pack_key(&pack) == *key).then_some(pack)
}

fn encode_header(kind: BlobKind) -> [u8; HEADER_LEN] {
    let [m0, m1, m2, m3, m4, m5, m6, m7] = MAGIC;
    let [v0, v1, v2, v3] = VERSION.to_le_bytes();
    [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, kind.as_byte(), 0, 0, 0]
}

/// What a pack holds according to its first bytes; none if they are not those of a pack.
pub(crate) fn read_pack_kind(bytes: &[u8]) -> Option<BlobKind> {
    decode_header(bytes.get(..HEADER_LEN)?).ok()
}

fn decode_header(bytes: &[u8]) -> Result<BlobKind, DecodeError> {
    let mut reader = FieldReader::new(bytes);
    if reader.read_array::<8>()? != MAGIC {
        return Err(DecodeError::Magic);
    }
    match reader.read_u32()? {
        VERSION => {}
        other => return Err(DecodeError::Version(other)),
    }
    let kind = BlobKind::from_byte(reader.read_u8()?).ok_or(DecodeError::Invalid("pack kind"))?;
    // Reserved: what gives them a meaning must not be read as this version.
    if reader.read_array::<3>()? != [0; 3] {
        return Err(DecodeError::Invalid("pack header"));
    }
    Ok(kind)
}

fn encode_footer(table_len: u32) -> [u8; FOOTER_LEN] {
    let [l0, l1, l2, l3] = table_len.to_le_bytes();
    let [m0, m1, m2, m3] = FOOTER_MAGIC;
    [l0, l1, l2, l3, m0, m1, m2, m3]
}

/// The length of the sealed table in a pack of `pack_len` bytes.
fn decode_footer(bytes: &[u8], pack_len: u64) -> Result<u32, DecodeError> {
    let mut reader = FieldReader::new(bytes);
    let table_len = reader.read_u32()?;
    if reader.read_array::<4>()? != FOOTER_MAGIC {
        return Err(DecodeError::Magic);
    }
    reader.expect_end()?;
    let room = pack_len.checked_sub((HEADER_LEN + FOOTER_LEN) as u64).ok_or(DecodeError::Truncated)?;
    // Checked here, so that no caller computes the place of the table from a length that lies before the pack.
    if u64::from(table_len) > room {
        return Err(DecodeError::Invalid("length of the table of contents"));
    }
    Ok(table_len)
}

/// Random bytes at the head of a table: no two packs have one name, also where nothing is sealed. Without them, a
/// pack that is written again after it was collected would be taken for the one that the index has condemned,
/// and one that is written while it is being collected would go with it.
type TableSalt = [u8; 16];

fn encode_table(salt: &TableSalt, entries: &[PackEntry]) -> Vec<u8> {
    let mut writer = FieldWriter::from_vec(Vec::with_capacity(24 + entries.len() * (BlobId::LEN + 4)));
    writer.write_raw(salt).write_varint(entries.len() as u64);
    for entry in entries {
        writer.write_raw(entry.id.as_bytes()).write_varint(u64::from(entry.len));
    }
    writer.into_vec()
}

/// Reads a table; its blobs must fill exactly the bytes from the header up to `table_start`.
fn decode_table(bytes: &[u8], kind: BlobKind, table_start: u64) -> Result<Vec<PackEntry>, DecodeError> {
    let mut reader = FieldReader::new(bytes);
    reader.read_array::<{ size_of::<TableSalt>() }>()?;
    let count = reader.read_count(PACK_ENTRIES_MAX)?;
    // A damaged count must not reserve more memory than the bytes could hold. Each entry has at least an id.
    let mut entries = Vec::with_capacity(count.min(reader.remaining() / BlobId::LEN + 1));
    let mut offset = HEADER_LEN as u64;
    for _ in 0..count {
        let id = BlobId(reader.read_array()?);
        let len = reader.read_varint_u32()?;
        if len as usize > SEALED_MAX {
            return Err(DecodeError::Invalid("length of a blob"));
        }
        // Each length is within its limit, and many of them together need not be.
        let start = u32::try_from(offset).map_err(|_| DecodeError::Invalid("offset of a blob"))?;
        entries.push(PackEntry { id, kind, offset: start, len });
        offset += u64::from(len);
    }
    reader.expect_end()?;
    // Blobs fill the pack from the header to the table without gaps, so the lengths add up to the start of the table.
    if offset != table_start {
        return Err(DecodeError::Invalid("lengths of blobs"));
    }
    Ok(entries)
}

/// Opens the sealed table that stands before the footer.
fn open_table(
    keys: &VolumeKeys,
    header_bytes: &[u8],
    sealed: &[u8],
    table_start: u64,
) -> Result<Vec<PackEntry>, PackFault> {
    let kind = decode_header(header_bytes)?;
    let mut table = Vec::new();
    // The header is associated data: a table does not open under a header with another kind.
    keys.open_record(RecordDomain::PackToc, &encode_header(kind), sealed, &mut table)?;
    Ok(decode_table(&table, kind, table_start)?)
}

/// Every decoder of this module on any bytes; see [`crate::fuzzing`].
pub(crate) fn fuzz_decoders(bytes: &[u8]) {
    let len = bytes.len() as u64;
    let _ = decode_header(bytes);
    let _ = decode_footer(bytes, len);
    for end in [HEADER_LEN as u64, len] {
        if let Ok(entries) = decode_table(bytes, BlobKind::Chunk, end) {
            let salt = bytes.first_chunk().expect("a table that was decoded begins with its salt");
            assert_eq!(encode_table(salt, &entries), bytes, "a table has one encoding");
        }
    }
}

#[cfg(test)]
mod tests;

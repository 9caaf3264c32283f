//! Reads packs without the index: their tables, and whether every byte is right.

use std::fmt;

use rayon::prelude::*;
use vellum_crypto::VolumeKeys;
use vellum_host::parallel::run_parallel;
use vellum_types::{BlobId, BlobKind, ErrorKind, PackId};

use super::{
    FOOTER_LEN, HEADER_LEN, PACK_MAX, PackEntry, PackFault, decode_footer, decode_header, open_table,
    pack_key,
};
use crate::blob::body::BasePlace;
use crate::blob::{BlobError, body};
use crate::error::StoreError;
use crate::object::ObjectStore;

/// A defect of a pack or of a blob in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackFinding {
    /// The pack.
    pub pack: PackId,
    /// The blob, if one in particular is hit.
    pub blob: Option<(BlobKind, BlobId)>,
    /// What is wrong.
    pub flaw: PackFlaw,
}

/// The ways in which a pack can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackFlaw {
    /// There is no such object.
    #[error("it is missing")]
    Missing,
    /// Something else stands in its place.
    #[error("it is not a file")]
    NotAFile,
    /// The hash of its bytes is not its name.
    #[error("its bytes are not those that were written")]
    Hash,
    /// Its table of contents cannot be read.
    #[error("{0}")]
    Table(PackFault),
    /// The blob cannot be opened or has another content.
    #[error("{0}")]
    Blob(body::BlobBodyFault),
}

impl fmt::Display for PackFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.blob {
            Some((kind, id)) => write!(f, "{kind} {id} in pack {}: {}", self.pack, self.flaw),
            None => write!(f, "pack {}: {}", self.pack, self.flaw),
        }
    }
}

/// The table of contents of a pack, from three small reads.
pub fn read_pack_toc(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    pack: &PackId,
) -> Result<Vec<PackEntry>, BlobError> {
    let key = pack_key(pack);
    let fault = |fault: PackFault| BlobError::Pack { pack: *pack, fault };
    let size = objects.object_size(&key)?;
    // Checked before anything is read: a foreign object under the name of a pack may have any length.
    if size > PACK_MAX {
        return Err(fault(PackFault::TooLong(size)));
    }
    let least = (HEADER_LEN + FOOTER_LEN) as u64;
    let footer_at = size.checked_sub(FOOTER_LEN as u64).filter(|_| size >= least);
    let footer_at = footer_at.ok_or_else(|| fault(vellum_types::DecodeError::Truncated.into()))?;
    // The header is authenticated with the table, so that a changed kind of blob does not go unnoticed.
    let header = objects.get_range(&key, 0, HEADER_LEN as u64)?;
    let footer = objects.get_range(&key, footer_at, FOOTER_LEN as u64)?;
    let table_len = decode_footer(&footer, size).map_err(|e| fault(e.into()))?;
    let table_at = footer_at - u64::from(table_len);
    let sealed = objects.get_range(&key, table_at, u64::from(table_len))?;
    open_table(keys, &header, &sealed, table_at).map_err(fault)
}

/// Whether a pack is there and ends as it was written: one that was cut off or grew does not. An error means that
/// nothing can be said, because the store did not answer.
pub fn is_pack_whole(objects: &dyn ObjectStore, pack: &PackId) -> Result<bool, StoreError> {
    let key = pack_key(pack);
    let lost = |error: StoreError| match error {
        // The pack was cut off between two requests, or the store does not answer as it should.
        StoreError::NotFound { .. } | StoreError::Length { .. } => Ok(false),
        other if other.kind() == ErrorKind::Corrupt => Ok(false),
        other => Err(other),
    };
    let size = match objects.object_size(&key) {
        Ok(size) if size <= PACK_MAX => size,
        Ok(_) => return Ok(false),
        Err(error) => return lost(error),
    };
    let Some(footer_at) = size.checked_sub(FOOTER_LEN as u64) else { return Ok(false) };
    // The index does not know how long the pack is. Only if it ends where it was closed, the closing magic is
    // at its end.
    match objects.get_range(&key, footer_at, FOOTER_LEN as u64) {
        Ok(footer) => Ok(decode_footer(&footer, size).is_ok()),
        Err(error) => lost(error),
    }
}

/// Reads a whole pack and checks its hash, its table and every blob. An error means that nothing can be said,
/// because the store did not answer.
pub fn check_pack(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    pack: &PackId,
) -> Result<Vec<PackFinding>, BlobError> {
    let key = pack_key(pack);
    let whole = |flaw| PackFinding { pack: *pack, blob: None, flaw };
    let bytes = match objects.get_object(&key, PACK_MAX) {
        Ok(bytes) => bytes,
        Err(StoreError::TooLarge { size, .. }) => {
            return Ok(vec![whole(PackFlaw::Table(PackFault::TooLong(size)))]);
        }
        Err(StoreError::NotAFile { .. }) => return Ok(vec![whole(PackFlaw::NotAFile)]),
        Err(error) if error.is_not_found() => return Ok(vec![whole(PackFlaw::Missing)]),
        Err(error) => return Err(error.into()),
    };
    // A sample reads only a few packs: if each were the work of one processor, the others would wait for the last.
    let (hash, blobs) =
        run_parallel(|| rayon::join(|| blake3::hash(&bytes), || check_blobs(keys, pack, &bytes)));
    let mut findings = Vec::new();
    if hash.as_bytes() != pack.as_bytes() {
        findings.push(whole(PackFlaw::Hash));
    }
    // Also if the hash is wrong: the table shows which blobs are damaged.
    match blobs {
        Ok(damaged) => findings.extend(damaged),
        Err(fault) => findings.push(whole(PackFlaw::Table(fault))),
    }
    Ok(findings)
}

/// Bytes of a pack that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackRange {
    /// Where the first blob begins, or a place between blobs.
    pub from: u64,
    /// How many bytes, at least; one blob at least.
    pub len: u64,
}

/// What a check of a part of a pack found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRangeCheck {
    /// What is wrong.
    pub findings: Vec<PackFinding>,
    /// Where the next part begins; None: this was the last.
    pub next: Option<u64>,
}

/// Reads a pack's table and a part of its blobs, and checks these. If anything is wrong, the whole pack is checked. An error
/// means that nothing can be said, because the store did not answer.
pub fn check_pack_range(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    pack: &PackId,
    range: PackRange,
) -> Result<PackRangeCheck, BlobError> {
    let checked = match read_pack_toc(objects, keys, pack) {
        Ok(entries) => check_entries(objects, keys, pack, RangeEntries::select(entries, range)),
        Err(error) => Err(error),
    };
    match checked {
        Ok(next) => Ok(PackRangeCheck { findings: Vec::new(), next }),
        Err(error)
            if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
                || matches!(error, BlobError::Store(StoreError::Length { .. })) =>
        {
            Ok(PackRangeCheck { findings: check_pack(objects, keys, pack)?, next: None })
        }
        Err(error) => Err(error),
    }
}

/// The blobs of a part of a pack, in their order there.
struct RangeEntries {
    entries: Vec<PackEntry>,
    next: Option<u64>,
}

impl RangeEntries {
    fn select(mut entries: Vec<PackEntry>, range: PackRange) -> Self {
        entries.retain(|entry| u64::from(entry.offset) >= range.from);
        entries.sort_by_key(|entry| entry.offset);
        let end = range.from.saturating_add(range.len);
        let within = entries.iter().filter(|entry| u64::from(entry.offset) < end).count();
        // One blob at least, or a range that is shorter than a blob would never get beyond it.
        let rest = entries.split_off(within.max(1).min(entries.len()));
        Self { entries, next: rest.first().map(|entry| u64::from(entry.offset)) }
    }
}

/// Returns where the next part begins.
fn check_entries(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    pack: &PackId,
    RangeEntries { entries, next }: RangeEntries,
) -> Result<Option<u64>, BlobError> {
    let Some(start) = entries.first().map(|entry| entry.offset) else { return Ok(None) };
    let key = pack_key(pack);
    let end = entries.iter().map(|entry| u64::from(entry.offset) + u64::from(entry.len)).max();
    let bytes = objects.get_range(&key, u64::from(start), end.map_or(0, |end| end - u64::from(start)))?;
    let slice = |offset: u32, len: u32| {
        let start = offset.checked_sub(start)? as usize;
        bytes.get(start..start.checked_add(len as usize)?)
    };
    let check = |entry: &PackEntry| {
        let damaged = |fault| BlobError::Damaged { kind: entry.kind, id: entry.id, pack: *pack, fault };
        let sealed = slice(entry.offset, entry.len).unwrap_or_default();
        let opened = body::open_blob(keys, entry.kind, &entry.id, sealed).map_err(damaged)?;
        let base = match &opened {
            body::OpenedBody::Content(_) => Vec::new(),
            body::OpenedBody::Difference(difference) => {
                let BasePlace { offset, len, .. } = difference.base;
                match slice(offset, len) {
                    Some(sealed) => sealed.to_vec(),
                    // It stands in another part.
                    None => objects.get_range(&key, u64::from(offset), u64::from(len))?,
                }
            }
        };
        let plaintext =
            opened.resolve_plaintext(keys, entry.kind, &entry.id, |_| Ok::<_, body::BlobBodyFault>(base));
        plaintext.map(drop).map_err(damaged)
    };
    run_parallel(|| entries.par_iter().try_for_each(check))?;
    Ok(next)
}

/// The table of contents of a pack that is in memory.
pub(crate) fn parse_pack(keys: &VolumeKeys, bytes: &[u8]) -> Result<Vec<PackEntry>, PackFault> {
    decode_header(bytes)?;
    let truncated = vellum_types::DecodeError::Truncated;
    let (rest, footer) = bytes.split_last_chunk::<FOOTER_LEN>().ok_or(truncated)?;
    let table_len = decode_footer(footer, bytes.len() as u64)? as usize;
    let table_at = rest.len().checked_sub(table_len).ok_or(truncated)?;
    let (blobs, table) = rest.split_at_checked(table_at).ok_or(truncated)?;
    open_table(keys, blobs.get(..HEADER_LEN).ok_or(truncated)?, table, table_at as u64)
}

/// The blobs of a pack that are damaged.
fn check_blobs(keys: &VolumeKeys, pack: &PackId, bytes: &[u8]) -> Result<Vec<PackFinding>, PackFault> {
    let entries = parse_pack(keys, bytes)?;
    Ok(entries.par_iter().filter_map(|entry| check_blob(keys, pack, entry, bytes)).collect())
}

fn check_blob(keys: &VolumeKeys, pack: &PackId, entry: &PackEntry, bytes: &[u8]) -> Option<PackFinding> {
    let start = entry.offset as usize;
    // The table was checked against the pack's length.
    let sealed = bytes.get(start..start + entry.len as usize).unwrap_or_default();
    let plaintext = body::open_blob(keys, entry.kind, &entry.id, sealed).and_then(|opened| {
        opened.resolve_plaintext(keys, entry.kind, &entry.id, |base| {
            base.slice_base(bytes).map(<[u8]>::to_vec).ok_or(body::BlobBodyFault::Base)
        })
    });
    let fault = plaintext.err()?;
    Some(PackFinding { pack: *pack, blob: Some((entry.kind, entry.id)), flaw: PackFlaw::Blob(fault) })
}

//! Listings on the wire: one directory after the other, in the order of their numbers, each entry as its differences
//! from the previous one.
//!
//! Bytes of the first payload: the root's attributes and detail. Of the following ones, repeatedly: a directory's
//! number (varint), the number of entries that follow (varint), and the entries. An empty payload ends them; a payload
//! with unlisted entries and owners in JSON follows.
//!
//! Invariant: both sides assign the same number to an entry. Names are checked as in any listing
//! ([`DirectoryBlock::push`]): none is empty, `.`, `..`, or contains a slash.

use vellum_host::beneath::ExtendedAttribute;
use vellum_types::{DecodeError, FieldReader, FieldWriter, FileKind, UnixTime};

use super::error::WireError;
use crate::model::listing::{
    DirectoryBlock, EntryDetail, EntryFlags, ListingEntry, ListingEntryId, NewListingEntry, TreeListing,
};

/// Most entries of a listing that are accepted.
const ENTRIES_MAX: usize = 1 << 27;
/// Longest target of a symlink, bytes: `PATH_MAX`.
const TARGET_MAX: usize = 4096;
/// Most extended attributes of an entry, and the longest value: the kernel's limits.
const XATTRS_MAX: usize = 4096;
const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 64 << 10;
/// A payload is sent when it is longer than this, bytes.
const PAYLOAD_LEN: usize = 128 << 10;
const NANOS: u32 = 1_000_000_000;

/// Encodes a listing in payloads, in order.
pub fn encode_listing<E>(
    listing: &TreeListing,
    send: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut out = FieldWriter::new();
    let mut last = PreviousEntry::default();
    encode_entry(&mut out, &listing.root(), &mut last);
    send(out.into_vec())?;
    let mut dirs: Vec<(ListingEntryId, ListingEntry<'_>)> =
        listing.iter().filter_map(|dir| dir.children().next().map(|first| (first.id(), dir))).collect();
    // The receiver numbers entries as they arrive. A parallel scan attaches directories in any order, so they
    // are sent by the number of their first entry, which gives both sides the same numbers.
    dirs.sort_unstable_by_key(|(first, _)| *first);
    let mut out = FieldWriter::new();
    for (_, dir) in dirs {
        let children = dir.children();
        out.write_varint(u64::from(dir.id().as_u32())).write_varint(children.len() as u64);
        for child in children {
            encode_entry(&mut out, &child, &mut last);
            if out.as_slice().len() > PAYLOAD_LEN {
                send(std::mem::take(&mut out).into_vec())?;
            }
        }
    }
    if !out.as_slice().is_empty() {
        send(out.into_vec())?;
    }
    send(Vec::new())
}

/// The fields of the previous entry.
#[derive(Debug, Default, Clone)]
struct PreviousEntry {
    name: Vec<u8>,
    mode: u32,
    uid: u32,
    gid: u32,
    secs: i64,
}

const SAME_MODE: u8 = 1;
const SAME_OWNER: u8 = 2;
const SAME_TIME: u8 = 4;
const HAS_DETAIL: u8 = 8;
const HAS_FLAGS: u8 = 16;
/// The file type is stored above these bits.
const KIND_SHIFT: u32 = 5;

fn encode_entry(out: &mut FieldWriter, entry: &ListingEntry<'_>, last: &mut PreviousEntry) {
    let name = entry.name();
    let mtime = entry.mtime();
    let flags = entry.flags();
    let detail = entry.detail();
    let bit = |bit: u8, set: bool| if set { bit } else { 0 };
    let head = bit(SAME_MODE, entry.mode() == last.mode)
        | bit(SAME_OWNER, (entry.uid(), entry.gid()) == (last.uid, last.gid))
        | bit(SAME_TIME, mtime.secs == last.secs)
        | bit(HAS_DETAIL, detail.is_some())
        | bit(HAS_FLAGS, flags != EntryFlags::default())
        | encode_kind(entry.kind()) << KIND_SHIFT;
    // Names of one directory often begin alike. The previous name can be one of another directory, which does
    // no harm.
    let shared = name.iter().zip(&last.name).take_while(|(new, old)| new == old).count();
    out.write_u8(head).write_u8(shared as u8).write_bytes(name.get(shared..).unwrap_or_default());
    if head & SAME_MODE == 0 {
        out.write_varint(u64::from(entry.mode()));
    }
    if head & SAME_OWNER == 0 {
        out.write_varint(u64::from(entry.uid())).write_varint(u64::from(entry.gid()));
    }
    if head & SAME_TIME == 0 {
        out.write_signed_varint(mtime.secs.wrapping_sub(last.secs));
    }
    out.write_varint(u64::from(mtime.nanos));
    if head & HAS_FLAGS != 0 {
        out.write_u8(flags.0);
    }
    if entry.is_file() {
        out.write_varint(entry.size());
    }
    if let Some(detail) = detail {
        encode_detail(out, detail);
    }
    *last = PreviousEntry {
        name: name.to_vec(),
        mode: entry.mode(),
        uid: entry.uid(),
        gid: entry.gid(),
        secs: mtime.secs,
    };
}

fn encode_detail(out: &mut FieldWriter, detail: &EntryDetail) {
    out.write_bytes(&detail.target).write_varint(detail.rdev).write_varint(u64::from(detail.group));
    out.write_varint(detail.xattrs.len() as u64);
    for xattr in &detail.xattrs {
        out.write_bytes(&xattr.name).write_bytes(&xattr.value);
    }
    match detail.atime {
        None => out.write_u8(0),
        Some(time) => out.write_u8(1).write_signed_varint(time.secs).write_varint(u64::from(time.nanos)),
    };
}

fn encode_kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 0,
        FileKind::Dir => 1,
        FileKind::Symlink => 2,
        FileKind::Fifo => 3,
        FileKind::Socket => 4,
        FileKind::CharDevice => 5,
        FileKind::BlockDevice => 6,
    }
}

fn decode_kind(code: u8) -> Result<FileKind, DecodeError> {
    Ok(match code {
        0 => FileKind::File,
        1 => FileKind::Dir,
        2 => FileKind::Symlink,
        3 => FileKind::Fifo,
        4 => FileKind::Socket,
        5 => FileKind::CharDevice,
        6 => FileKind::BlockDevice,
        _ => return Err(DecodeError::Invalid("kind")),
    })
}

/// Decodes a listing as it arrives.
#[derive(Debug, Default)]
pub struct ListingDecoder {
    listing: Option<TreeListing>,
    /// The directory whose entries arrive, and how many are still to come.
    dir: Option<(ListingEntryId, u64)>,
    block: DirectoryBlock,
    last: PreviousEntry,
    entries: usize,
}

impl ListingDecoder {
    /// Decodes a payload; returns the listing after the last one.
    pub fn decode_payload(&mut self, payload: &[u8]) -> Result<Option<TreeListing>, WireError> {
        let mut bytes = FieldReader::new(payload);
        if self.listing.is_none() {
            let (_, fresh, detail) = self.decode_entry(&mut bytes)?;
            bytes.expect_end()?;
            self.listing = Some(TreeListing::new(&fresh, detail));
            return Ok(None);
        }
        if payload.is_empty() {
            return match self.dir {
                None => Ok(self.listing.take()),
                Some(_) => Err(DecodeError::Truncated.into()),
            };
        }
        while bytes.remaining() > 0 {
            let Some((dir, missing)) = self.dir else {
                let dir = ListingEntryId::from_u32(bytes.read_varint_u32()?)
                    .ok_or(DecodeError::Invalid("directory"))?;
                let count = bytes.read_varint()?;
                // An empty directory is not sent. The limit bounds memory: an entry can arrive as a few bytes
                // and takes 48 and its name.
                if count == 0 || count > (ENTRIES_MAX - self.entries) as u64 {
                    return Err(WireError::TooMuch("entries"));
                }
                self.dir = Some((dir, count));
                continue;
            };
            let (name, fresh, detail) = self.decode_entry(&mut bytes)?;
            // Names are checked here, so no entry of a peer can be named `..` or contain a slash.
            self.block.push(&name, &fresh, detail)?;
            self.entries += 1;
            self.dir = Some((dir, missing - 1)).filter(|(_, missing)| *missing > 0);
            if self.dir.is_none()
                && let Some(listing) = &mut self.listing
            {
                // This fails if the directory does not exist, is no directory, or has its entries already.
                listing.attach_block(dir, &mut self.block)?;
                self.block = DirectoryBlock::default();
            }
        }
        Ok(None)
    }

    fn decode_entry(
        &mut self,
        bytes: &mut FieldReader<'_>,
    ) -> Result<(Vec<u8>, NewListingEntry, Option<EntryDetail>), WireError> {
        let last = &mut self.last;
        let head = bytes.read_u8()?;
        let shared = usize::from(bytes.read_u8()?);
        if shared > last.name.len() {
            return Err(DecodeError::Invalid("name").into());
        }
        last.name.truncate(shared);
        last.name.extend_from_slice(bytes.read_bytes(255 - shared)?);
        if head & SAME_MODE == 0 {
            last.mode = bytes.read_varint_u32()?;
        }
        if head & SAME_OWNER == 0 {
            (last.uid, last.gid) = (bytes.read_varint_u32()?, bytes.read_varint_u32()?);
        }
        if head & SAME_TIME == 0 {
            // Differences are added with wrapping in both directions, so every pair of times can be encoded.
            last.secs = last.secs.wrapping_add(bytes.read_signed_varint()?);
        }
        let nanos = bytes.read_varint_u32()?;
        let flags = EntryFlags(if head & HAS_FLAGS == 0 { 0 } else { bytes.read_u8()? });
        let kind = decode_kind(head >> KIND_SHIFT)?;
        let size = if kind == FileKind::File { bytes.read_varint()? } else { 0 };
        // No file can have the all-ones number: `chown` with it leaves the owner unchanged.
        let nobody = last.uid == u32::MAX || last.gid == u32::MAX;
        if nanos >= NANOS || nobody || last.mode > 0o7777 || i64::try_from(size).is_err() {
            return Err(DecodeError::Invalid("attributes").into());
        }
        let detail = if head & HAS_DETAIL == 0 { None } else { Some(decode_detail(bytes)?) };
        let mode = last.mode;
        let uid = last.uid;
        let gid = last.gid;
        let fresh =
            NewListingEntry { kind, mode, uid, gid, size, mtime: UnixTime { secs: last.secs, nanos }, flags };
        Ok((last.name.clone(), fresh, detail))
    }
}

fn decode_detail(bytes: &mut FieldReader<'_>) -> Result<EntryDetail, DecodeError> {
    let target = bytes.read_bytes(TARGET_MAX)?.into();
    let rdev = bytes.read_varint()?;
    let group = bytes.read_varint_u32()?;
    let count = bytes.read_count(XATTRS_MAX)?;
    let mut xattrs = Vec::with_capacity(count);
    for _ in 0..count {
        let name = bytes.read_bytes(XATTR_NAME_MAX)?.to_vec();
        xattrs.push(ExtendedAttribute { name, value: bytes.read_bytes(XATTR_VALUE_MAX)?.to_vec() });
    }
    // Both sides compare lists of attributes by position.
    if !xattrs.is_sorted() {
        return Err(DecodeError::Invalid("extended attributes"));
    }
    let atime = match bytes.read_u8()? {
        0 => None,
        1 => {
            let secs = bytes.read_signed_varint()?;
            let nanos = bytes.read_varint_u32()?;
            if nanos >= NANOS {
                return Err(DecodeError::Invalid("attributes"));
            }
            Some(UnixTime { secs, nanos })
        }
        _ => return Err(DecodeError::Invalid("access time")),
    };
    Ok(EntryDetail { target, rdev, group, xattrs: xattrs.into(), atime })
}

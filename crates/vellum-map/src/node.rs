//! One page of the tree: decoding, validation and search.
//!
//! Invariant: a `MapNode` that exists is valid: entries strictly sorted, within the limits, in their one encoding; an
//! inner node has children, whose counts do not overflow. What a node cannot know of itself (that its children
//! are as it says) is checked by the code that goes from parent to child. Encoding lives in `packer.rs`.
//!
//! ```text
//! offset 0   4 bytes  magic "VmNd"
//!        4   u8       format version, 1
//!        5   u8       level: 0 for a leaf, one more than its children otherwise
//!        6   u32      number of entries, little endian
//!       10            entries: varint key length, varint value length, key, value
//! ```
//!
//! In an inner node a key is the last key under a child, the value its id (32 bytes) and a varint: the number of
//! keys in leaves under it.

use std::ops::Range;
use std::sync::Arc;

use vellum_types::BlobId;
use vellum_types::codec::{DecodeError, FieldReader};
use vellum_types::limits::{KEY_MAX, VALUE_MAX};

use crate::slice::{MapValue, SharedSlice};

mod index;
#[cfg(test)]
mod tests;

use index::EntryIndex;

pub(crate) const MAGIC: [u8; 4] = *b"VmNd";
pub(crate) const VERSION: u8 = 1;
pub(crate) const HEADER_LEN: usize = 10;

/// Highest level of a node: at two children each, more keys than a u64 counts would need 64, and standard nodes
/// hold 13 children at least: 16 levels hold 2^63 keys.
pub const LEVEL_MAX: u8 = 31;
/// Longest node, bytes: one that was a byte short of full before the largest entry came.
pub const NODE_MAX: usize = HEADER_LEN + (64 << 10) + 6 + KEY_MAX + VALUE_MAX;

/// Why bytes are no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The frame or a field of it is wrong.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It is longer than any node.
    #[error("its {0} bytes are more than the limit of {NODE_MAX}")]
    TooLong(usize),
    /// A key is not above the one before.
    #[error("its keys are not in ascending order")]
    Unsorted,
    /// An inner node without children, or counts of keys that overflow.
    #[error("its children are invalid")]
    Children,
}

/// A validated page.
#[derive(Debug)]
pub struct MapNode {
    bytes: Box<[u8]>,
    level: u8,
    /// Keys in leaves under it.
    total: u64,
    index: EntryIndex,
}

/// A parent's description of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildDescription<'a> {
    /// The last key under it.
    pub last_key: &'a [u8],
    /// Its id.
    pub id: BlobId,
    /// Keys in leaves under it.
    pub count: u64,
}

impl MapNode {
    /// Validates bytes, which may be hostile.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, NodeError> {
        // Before anything is read, so that hostile bytes of any length cost nothing.
        if bytes.len() > NODE_MAX {
            return Err(NodeError::TooLong(bytes.len()));
        }
        let mut reader = FieldReader::new(&bytes);
        if reader.read_array()? != MAGIC {
            return Err(DecodeError::Magic.into());
        }
        let version = reader.read_u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(version.into()).into());
        }
        let level = reader.read_u8()?;
        if level > LEVEL_MAX {
            return Err(DecodeError::Invalid("level").into());
        }
        let count = usize::try_from(reader.read_u32()?).map_err(|_| DecodeError::Invalid("count"))?;
        let (starts, total) = check_entries(reader, bytes.len(), count, level)?;
        // An inner node without children would have no last key, and its parent could not describe it.
        if level > 0 && count == 0 {
            return Err(NodeError::Children);
        }
        let index = EntryIndex::new(&starts, |start| parse_key_at(&bytes, start).unwrap_or_default());
        Ok(Self { bytes: bytes.into_boxed_slice(), level, total, index })
    }

    /// 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Whether its entries are the map's own.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Number of its entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it has no entries: the top node of an empty map.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Keys in leaves under it (its own, if it is a leaf).
    #[must_use]
    pub fn total_keys(&self) -> u64 {
        self.total
    }

    /// Its encoded form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that it takes in memory.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + self.index.memory_size()
    }

    /// The key at a position.
    #[must_use]
    pub fn key(&self, index: usize) -> Option<&[u8]> {
        self.entry(index).map(|(key, _)| key)
    }

    /// Its greatest key.
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.key(self.len().checked_sub(1)?)
    }

    /// Key and value at a position. In an inner node the value describes a child.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        self.find_entry_bounds(index).map(|bounds| self.entry_within(&bounds))
    }

    /// All entries in order.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|index| self.entry(index))
    }

    /// The child at a position of an inner node.
    #[must_use]
    pub fn child(&self, index: usize) -> Option<ChildDescription<'_>> {
        if self.is_leaf() {
            return None;
        }
        let (last_key, value) = self.entry(index)?;
        let (id, count) = parse_child(value).ok()?;
        Some(ChildDescription { last_key, id, count })
    }

    /// All children of an inner node in order; none of a leaf.
    pub fn children(&self) -> impl Iterator<Item = ChildDescription<'_>> {
        (0..self.len()).filter_map(|index| self.child(index))
    }

    /// Where a key and its value stand in the bytes.
    pub(crate) fn find_entry_bounds(&self, index: usize) -> Option<EntryBounds> {
        parse_entry_bounds(&self.bytes, self.index.entry_start(index)?)
    }

    /// Key and value that stand where the bounds say.
    pub(crate) fn entry_within(&self, bounds: &EntryBounds) -> (&[u8], &[u8]) {
        (self.byte_slice(bounds.key()), self.byte_slice(bounds.value()))
    }

    pub(crate) fn byte_slice(&self, range: Range<u32>) -> &[u8] {
        let widen = |position| usize::try_from(position).unwrap_or(usize::MAX);
        self.bytes.get(widen(range.start)..widen(range.end)).unwrap_or_default()
    }
}

/// Where an entry stands in the bytes of its node: its value follows its key.
#[derive(Debug)]
pub(crate) struct EntryBounds {
    key: u32,
    value: u32,
    end: u32,
}

impl EntryBounds {
    pub(crate) fn key(&self) -> Range<u32> {
        self.key..self.value
    }

    pub(crate) fn value(&self) -> Range<u32> {
        self.value..self.end
    }
}

/// Where key and value of the entry that starts at `start` stand.
fn parse_entry_bounds(bytes: &[u8], start: u32) -> Option<EntryBounds> {
    let rest = bytes.get(usize::try_from(start).ok()?..)?;
    // Lengths below 128 take a byte each: nearly always.
    let (key_len, value_len, head) = match rest {
        [key, value, ..] if key | value < 0x80 => (u32::from(*key), u32::from(*value), 2),
        _ => parse_long_lengths(rest)?,
    };
    // No sum overflows: `check_entries` has found all of this within the node, which is far below 4 GiB.
    let key = start + head;
    let value = key + key_len;
    Some(EntryBounds { key, value, end: value + value_len })
}

/// Lengths of a key and its value, and of both lengths as they are encoded.
#[cold]
fn parse_long_lengths(entry: &[u8]) -> Option<(u32, u32, u32)> {
    let mut reader = FieldReader::new(entry);
    let key = u32::try_from(reader.read_varint().ok()?).ok()?;
    let value = u32::try_from(reader.read_varint().ok()?).ok()?;
    Some((key, value, u32::try_from(entry.len() - reader.remaining()).ok()?))
}

fn parse_key_at(bytes: &[u8], start: u32) -> Option<&[u8]> {
    let key = parse_entry_bounds(bytes, start)?.key();
    bytes.get(usize::try_from(key.start).ok()?..usize::try_from(key.end).ok()?)
}

/// The value at a position, as a slice that keeps the node alive.
pub(crate) fn slice_value(node: &Arc<MapNode>, index: usize) -> Option<MapValue> {
    let bounds = node.find_entry_bounds(index)?;
    Some(SharedSlice::from_node(Arc::clone(node), bounds.value()))
}

fn parse_child(value: &[u8]) -> Result<(BlobId, u64), DecodeError> {
    let mut reader = FieldReader::new(value);
    let id = BlobId(reader.read_array()?);
    let count = reader.read_varint()?;
    // Each child has one encoding. With bytes behind it, equal maps could have different roots.
    reader.expect_end()?;
    // Below a child without keys there is no last key that the parent could name.
    if count == 0 { Err(DecodeError::Invalid("count of keys")) } else { Ok((id, count)) }
}

/// Checks every entry. Returns where each starts, and the number of keys in leaves.
fn check_entries(
    mut reader: FieldReader<'_>,
    whole: usize,
    count: usize,
    level: u8,
) -> Result<(Vec<u32>, u64), NodeError> {
    // An entry has two bytes at least; a count beyond that must not make us allocate for it.
    if count > reader.remaining() / 2 {
        return Err(DecodeError::Truncated.into());
    }
    let mut starts = Vec::with_capacity(count);
    let mut total = 0_u64;
    let mut previous: Option<&[u8]> = None;
    for _ in 0..count {
        let start = whole - reader.remaining();
        starts.push(u32::try_from(start).map_err(|_| NodeError::TooLong(whole))?);
        let key_len = check_max_len(reader.read_varint()?, KEY_MAX, "key length")?;
        let value_len = check_max_len(reader.read_varint()?, VALUE_MAX, "value length")?;
        let key = reader.read_raw(key_len)?;
        let value = reader.read_raw(value_len)?;
        if previous.is_some_and(|previous| previous >= key) {
            // Equal keys are refused, too: a map has each key once.
            return Err(NodeError::Unsorted);
        }
        previous = Some(key);
        let under = if level == 0 { 1 } else { parse_child(value)?.1 };
        total = total.checked_add(under).ok_or(NodeError::Children)?;
    }
    reader.expect_end()?;
    Ok((starts, total))
}

fn check_max_len(len: u64, max: usize, what: &'static str) -> Result<usize, DecodeError> {
    usize::try_from(len).ok().filter(|len| *len <= max).ok_or(DecodeError::Invalid(what))
}

//! Layers in a live store over a base tree, read as one map.
//!
//! In a layer an extended attribute's value has a byte 0 before it, and the single byte 0xFF is a tombstone: no other
//! value of the map is that byte. A small file's content may stand apart from its attributes (`inline`).

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::ControlFlow;

use vellum_live::{LiveError, LiveStore, StoreTransaction, ValueBytes, VisitScan};
use vellum_map::{KeySpan, MapRange, MapValue, NodeSource, SharedSlice, get_value, read_range};
use vellum_types::{BareInodeAttr, DecodeError, Ino, MapKey, MapKeyTag};

use super::{VisitEntry, inline, wrap_decode_error};
use crate::error::Result;
use crate::tree::head::{LayerId, LayeredState, layer_prefix};

/// Says in a layer that a key is gone.
const TOMBSTONE: &[u8] = &[0xFF];
/// Entries that a cursor takes from a layer at once.
const PORTION: usize = 128;
/// Where the tag stands in a key of the map.
const TAG_AT: usize = 8;

/// What can be read from, be it the store or a transaction.
pub trait LiveRead {
    /// The value under a key.
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError>;
    /// Visits a span.
    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError>;
}

impl LiveRead for &dyn LiveStore {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        LiveStore::get(*self, key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        LiveStore::scan(*self, span, visit)
    }
}

impl LiveRead for &dyn StoreTransaction {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        StoreTransaction::get(*self, key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        StoreTransaction::scan(*self, span, visit)
    }
}

/// Returns whether a layer has no changes.
pub fn is_layer_empty(live: &dyn LiveRead, layer: LayerId) -> Result<bool, LiveError> {
    let mut empty = true;
    live.scan(&KeySpan::from_prefix(layer_prefix(layer)), &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

/// The key in the live store of a layer's key.
pub fn encode_layer_key(layer: LayerId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(9 + key.len());
    full.extend_from_slice(&layer_prefix(layer));
    full.extend_from_slice(key);
    full
}

/// The same for the key of an inode's attributes, which is looked up most of all: without an allocation.
fn encode_layer_attr_key(layer: LayerId, ino: Ino) -> [u8; 18] {
    let mut full = [MapKeyTag::Attr.as_byte(); 18];
    let (prefix, rest) = full.split_at_mut(9);
    prefix.copy_from_slice(&layer_prefix(layer));
    let (number, _tag) = rest.split_at_mut(8);
    number.copy_from_slice(&ino.0.to_be_bytes());
    full
}

/// What a layer keeps for a change.
pub fn encode_change(key: &[u8], value: Option<&[u8]>) -> ValueBytes {
    match value {
        None => TOMBSTONE.into(),
        Some(value) if is_xattr_key(key) => [&[0], value].concat().into(),
        Some(value) => value.into(),
    }
}

/// The change that a layer keeps; None is a tombstone. Attributes may be bare.
pub fn decode_change(key: &[u8], stored: &ValueBytes) -> Option<MapValue> {
    if **stored == *TOMBSTONE {
        return None;
    }
    Some(match stored.split_first() {
        Some((_, value)) if is_xattr_key(key) => SharedSlice::from(ValueBytes::from(value)),
        _ => SharedSlice::from(ValueBytes::clone(stored)),
    })
}

fn is_xattr_key(key: &[u8]) -> bool {
    key.get(TAG_AT) == Some(&MapKeyTag::Xattr.as_byte())
}

/// The value of a key: what the newest layer that speaks of it says, or else the base.
pub fn get_merged_value<N: NodeSource>(
    live: &dyn LiveRead,
    state: &LayeredState,
    nodes: &N,
    key: &MapKey,
) -> Result<Option<MapValue>> {
    let key = key.as_bytes();
    // One buffer for all layers, since only the prefix of their keys differs.
    let mut full = encode_layer_key(LayerId(0), key);
    for layer in &state.layers {
        if let Some(prefix) = full.get_mut(..9) {
            prefix.copy_from_slice(&layer_prefix(*layer));
        }
        if let Some(stored) = live.get(&full)? {
            if !inline::is_bare_value(key, &stored) {
                return Ok(decode_change(key, &stored));
            }
            // Gone in between means that this layer speaks of it no more: a lower one, or the base, does.
            if let Some(whole) = inline::complete_attributes(live, &full, stored)? {
                return Ok(decode_change(key, &whole));
            }
        }
    }
    Ok(get_value(nodes, &state.base, key)?)
}

/// The attributes of an inode without its inline content, which is neither read nor copied.
pub fn get_merged_bare_attr<N: NodeSource>(
    live: &dyn LiveRead,
    state: &LayeredState,
    nodes: &N,
    ino: Ino,
) -> Result<Option<BareInodeAttr>> {
    let decoded =
        |attr: Result<BareInodeAttr, DecodeError>| attr.map(Some).map_err(wrap_decode_error("an inode"));
    for layer in &state.layers {
        match live.get(&encode_layer_attr_key(*layer, ino))? {
            Some(stored) if *stored == *TOMBSTONE => return Ok(None),
            Some(stored) => return decoded(inline::decode_bare_attr(&stored)),
            None => {}
        }
    }
    match get_value(nodes, &state.base, MapKey::for_attr(ino).as_bytes())? {
        Some(value) => decoded(BareInodeAttr::decode(&value)),
        None => Ok(None),
    }
}

/// A key that a layer has changed; None: it is gone.
pub type LiveLayerChange = (Vec<u8>, Option<MapValue>);

/// The changes of one layer within a span, taken in portions.
pub struct LayerCursor<'a> {
    live: &'a dyn LiveRead,
    layer: LayerId,
    /// What is still to be taken; None at the end.
    rest: Option<KeySpan>,
    ready: VecDeque<LiveLayerChange>,
}

impl<'a> LayerCursor<'a> {
    /// The changes of a layer in a span of the map's keys.
    pub fn new(live: &'a dyn LiveRead, layer: LayerId, span: &KeySpan) -> Self {
        let end = match &span.end {
            Some(end) => encode_layer_key(layer, end),
            // Numbers of layers are big endian in keys: the keys of the next layer begin where those of this
            // one end.
            None => layer_prefix(LayerId(layer.0 + 1)).to_vec(),
        };
        let rest = KeySpan::from_bounds(encode_layer_key(layer, &span.start), end);
        Self { live, layer, rest: Some(rest), ready: VecDeque::new() }
    }

    /// The next change, which stays the next.
    pub fn peek_change(&mut self) -> Result<Option<&LiveLayerChange>> {
        while self.ready.is_empty() && self.rest.is_some() {
            self.refill_buffer()?;
        }
        Ok(self.ready.front())
    }

    fn refill_buffer(&mut self) -> Result<()> {
        let Some(span) = self.rest.take() else { return Ok(()) };
        let mut portion: Vec<(Vec<u8>, ValueBytes)> = Vec::new();
        let prefix = layer_prefix(self.layer).len();
        self.live.scan(&span, &mut |full, stored| {
            // Copied in portions, since the store may not be used while it is scanned, and a visitor may want to
            // read.
            portion.push((full.get(prefix..).unwrap_or_default().to_vec(), stored.clone()));
            if portion.len() < PORTION { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        // A portion that is not full has reached the end of the span.
        if let Some((last, _)) = portion.last().filter(|_| portion.len() >= PORTION) {
            self.rest = Some(span.after_key(&encode_layer_key(self.layer, last)));
        }
        let mut portion = portion.into_iter().peekable();
        while let Some((key, stored)) = portion.next() {
            if inline::is_content_key(&key) {
                // Of attributes that an earlier portion had, or of none.
                continue;
            }
            if !inline::is_bare_value(&key, &stored) {
                let change = decode_change(&key, &stored);
                self.ready.push_back((key, change));
                continue;
            }
            let content = portion.next_if(|(next, _)| inline::is_content_key(next));
            if let Some(whole) =
                content.and_then(|(_, content)| inline::join_inline_content(&stored, &content))
            {
                self.ready.push_back((key, Some(whole)));
            } else if let Some(whole) =
                inline::complete_attributes(self.live, &encode_layer_key(self.layer, &key), stored)?
            {
                let change = decode_change(&key, &whole);
                self.ready.push_back((key, change));
            }
        }
        Ok(())
    }
}

/// The changes of several layers, merged: of each key the newest.
pub struct LayerChanges<'a> {
    /// Newest first.
    cursors: Vec<LayerCursor<'a>>,
}

impl<'a> LayerChanges<'a> {
    /// The changes of some layers, newest first, in a span.
    pub fn new(live: &'a dyn LiveRead, layers: &[LayerId], span: &KeySpan) -> Self {
        Self { cursors: layers.iter().map(|layer| LayerCursor::new(live, *layer, span)).collect() }
    }

    /// The next change.
    pub fn next_change(&mut self) -> Result<Option<LiveLayerChange>> {
        Ok(self.find_next()?.and_then(|cursor| self.take_change(cursor)))
    }

    /// The place of the cursor that has the next change; of several with its key, that of the newest layer.
    fn find_next(&mut self) -> Result<Option<usize>> {
        let mut next: Option<(usize, &[u8])> = None;
        for (place, cursor) in self.cursors.iter_mut().enumerate() {
            if let Some((key, _)) = cursor.peek_change()?
                && next.is_none_or(|(_, least)| key.as_slice() < least)
            {
                next = Some((place, key));
            }
        }
        Ok(next.map(|(place, _)| place))
    }

    fn key_at(&self, cursor: usize) -> Option<&[u8]> {
        Some(&self.cursors.get(cursor)?.ready.front()?.0)
    }

    /// Takes the change that [`Self::find_next`] found.
    fn take_change(&mut self, cursor: usize) -> Option<LiveLayerChange> {
        let (newer, older) = self.cursors.split_at_mut_checked(cursor + 1)?;
        let newest = newer.last_mut()?.ready.pop_front()?;
        // What older layers say of the same key is hidden by it. A key has one change in a layer, and all cursors are
        // at their next one.
        for cursor in older {
            if cursor.ready.front().is_some_and(|(key, _)| *key == newest.0) {
                cursor.ready.pop_front();
            }
        }
        Some(newest)
    }
}

/// Base and layers as one sequence of entries.
pub struct MergedEntries<'a, N: NodeSource> {
    changes: LayerChanges<'a>,
    base: Peekable<MapRange<'a, N>>,
}

impl<'a, N: NodeSource> MergedEntries<'a, N> {
    /// The entries of a span as a state has them.
    pub fn new(live: &'a dyn LiveRead, state: &LayeredState, nodes: &'a N, span: KeySpan) -> Result<Self> {
        let changes = LayerChanges::new(live, &state.layers, &span);
        Ok(Self { changes, base: read_range(nodes, &state.base, span)?.peekable() })
    }

    /// Visits the entries in ascending order of their keys, until `visit` breaks off.
    pub fn visit_entries(mut self, visit: &mut VisitEntry<'_>) -> Result<()> {
        loop {
            let next = self.changes.find_next()?;
            let changed = next.and_then(|cursor| self.changes.key_at(cursor));
            let order = match (changed, self.base.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (Some(changed), Some(Ok(entry))) => changed.cmp(entry.key.as_bytes()),
                // An error of the base is treated like an entry that comes next, so that it is reported.
                (None, Some(_)) | (Some(_), Some(Err(_))) => Ordering::Greater,
            };
            if order.is_ge() {
                let entry = self.base.next().transpose()?;
                // The layers have something newer to say of an equal key, if only that it is gone.
                if let Some(entry) = entry.filter(|_| order.is_gt()) {
                    if visit(&entry.key, &entry.value).is_break() {
                        return Ok(());
                    }
                    continue;
                }
            }
            if let Some((key, Some(value))) = next.and_then(|cursor| self.changes.take_change(cursor))
                && visit(&key, &value).is_break()
            {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_attributes_is_that_of_the_map_in_a_layer() {
        let whole = encode_layer_key(LayerId(0x1234), MapKey::for_attr(Ino(0x56_789A)).as_bytes());
        assert_eq!(encode_layer_attr_key(LayerId(0x1234), Ino(0x56_789A)).as_slice(), whole);
    }
}

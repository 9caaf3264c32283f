//! Layers in a live store over a base tree, read as one map.
//!
//! In a layer an extended attribute's value has a byte 0 before it, and the single byte 0xFF is a tombstone: no other
//! value of the map is that byte. A small file's content may stand apart from its attributes (`inline`).

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::ControlFlow;

use vellum_live::{LiveError, LiveStore, StoreTransaction, ValueBytes, VisitScan};
use vellum_map::{KeySpan, MapRange, MapValue, NodeSource, SharedSlice, get_value, read_range};
use vellum_types::{BareInodeAttr, DecodeError, Ino, MapKey, MapKeyTag};

use super::{inline, wrap_decode_error};
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
    fn get(&self, key: &[u8]) -> std::result::Result<Option<ValueBytes>, LiveError>;
    /// Visits a span.
    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> std::result::Result<(), LiveError>;
}

impl LiveRead for &dyn LiveStore {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<ValueBytes>, LiveError> {
        LiveStore::get(*self, key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> std::result::Result<(), LiveError> {
        LiveStore::scan(*self, span, visit)
    }
}

impl LiveRead for &dyn StoreTransaction {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<ValueBytes>, LiveError> {
        StoreTransaction::get(*self, key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> std::result::Result<(), LiveError> {
        StoreTransaction::scan(*self, span, visit)
    }
}

/// The key in the live store of a layer's key.
pub fn encode_layer_key(layer: LayerId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(9 + key.len());
    full.extend_from_slice(&layer_prefix(layer));
    full.extend_from_slice(key);
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
    let key = MapKey::for_attr(ino);
    let decoded = |attr: std::result::Result<BareInodeAttr, DecodeError>| {
        attr.map(Some).map_err(wrap_decode_error("an inode"))
    };
    let mut full = encode_layer_key(LayerId(0), key.as_bytes());
    for layer in &state.layers {
        if let Some(prefix) = full.get_mut(..9) {
            prefix.copy_from_slice(&layer_prefix(*layer));
        }
        match live.get(&full)? {
            Some(stored) if *stored == *TOMBSTONE => return Ok(None),
            Some(stored) => return decoded(inline::decode_bare_attr(&stored)),
            None => {}
        }
    }
    match get_value(nodes, &state.base, key.as_bytes())? {
        Some(value) => decoded(BareInodeAttr::decode(&value)),
        None => Ok(None),
    }
}

/// The changes of one layer within a span, taken in portions.
pub struct LayerCursor<'a> {
    live: &'a dyn LiveRead,
    layer: LayerId,
    /// What is still to be taken; None at the end.
    rest: Option<KeySpan>,
    ready: VecDeque<(Vec<u8>, Option<MapValue>)>,
}

impl<'a> LayerCursor<'a> {
    /// The changes of a layer in a span of the map's keys.
    pub fn new(live: &'a dyn LiveRead, layer: LayerId, span: &KeySpan) -> Self {
        let end = match &span.end {
            Some(end) => encode_layer_key(layer, end),
            None => layer_prefix(LayerId(layer.0 + 1)).to_vec(),
        };
        let rest = KeySpan::from_bounds(encode_layer_key(layer, &span.start), end);
        Self { live, layer, rest: Some(rest), ready: VecDeque::new() }
    }

    /// The next change, which stays the next.
    pub fn peek_change(&mut self) -> Result<Option<&(Vec<u8>, Option<MapValue>)>> {
        while self.ready.is_empty() && self.rest.is_some() {
            self.refill_buffer()?;
        }
        Ok(self.ready.front())
    }

    /// Takes the next change.
    pub fn take_change(&mut self) -> Result<Option<(Vec<u8>, Option<MapValue>)>> {
        self.peek_change()?;
        Ok(self.ready.pop_front())
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

    /// The key of the next change.
    pub fn peek_key(&mut self) -> Result<Option<Vec<u8>>> {
        let mut least: Option<Vec<u8>> = None;
        for cursor in &mut self.cursors {
            if let Some((key, _)) = cursor.peek_change()?
                && least.as_ref().is_none_or(|least| key < least)
            {
                least = Some(key.clone());
            }
        }
        Ok(least)
    }

    /// The next change.
    pub fn next_change(&mut self) -> Result<Option<(Vec<u8>, Option<MapValue>)>> {
        let Some(key) = self.peek_key()? else { return Ok(None) };
        let mut newest = None;
        for cursor in &mut self.cursors {
            if cursor.peek_change()?.is_some_and(|(other, _)| *other == key) {
                let change = cursor.take_change()?;
                // Cursors are in the order of the layers, newest first. The older changes of the same key are taken,
                // too, and dropped.
                newest = newest.or(change);
            }
        }
        Ok(newest)
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

    /// The next entry.
    pub fn next_entry(&mut self) -> Result<Option<(SharedSlice, MapValue)>> {
        loop {
            let changed = self.changes.peek_key()?;
            let base_key = match self.base.peek() {
                Some(Ok(entry)) => Some(entry.key.clone()),
                Some(Err(_)) => {
                    return Ok(self.base.next().transpose()?.map(|entry| (entry.key, entry.value)));
                }
                None => None,
            };
            let from_base = match (&changed, &base_key) {
                (None, None) => return Ok(None),
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (Some(changed), Some(base)) => base.as_bytes() < changed.as_slice(),
            };
            if from_base {
                return Ok(self.base.next().transpose()?.map(|entry| (entry.key, entry.value)));
            }
            // The layers have something newer to say of the same key, if only that it is gone.
            if base_key.as_deref() == changed.as_deref() {
                self.base.next();
            }
            if let Some((key, Some(value))) = self.changes.next_change()? {
                return Ok(Some((SharedSlice::from(ValueBytes::from(key)), value)));
            }
        }
    }
}

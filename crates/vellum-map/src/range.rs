//! Entries in order, between two keys.

use std::sync::Arc;

use crate::error::MapError;
use crate::node::{EntryBounds, MapNode};
use crate::path::NodePath;
use crate::slice::{MapValue, SharedSlice};
use crate::source::{MapRoot, NodeSource};

/// Which keys: from `start` on, and below `end` if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySpan {
    /// The least key that belongs to it.
    pub start: Vec<u8>,
    /// The least key that is beyond it; None: it goes to the end.
    pub end: Option<Vec<u8>>,
}

impl KeySpan {
    /// Every key.
    #[must_use]
    pub fn all_keys() -> Self {
        Self::default()
    }

    /// From `start` on, below `end`.
    #[must_use]
    pub fn from_bounds(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Self {
        Self { start: start.as_ref().to_vec(), end: Some(end.as_ref().to_vec()) }
    }

    /// From `start` to the end of the map.
    #[must_use]
    pub fn from_start(start: impl AsRef<[u8]>) -> Self {
        Self { start: start.as_ref().to_vec(), end: None }
    }

    /// The keys that start with these bytes.
    #[must_use]
    pub fn from_prefix(prefix: impl AsRef<[u8]>) -> Self {
        let start = prefix.as_ref().to_vec();
        // The least key beyond: the prefix with its last byte that can grow grown.
        let mut end = start.clone();
        while end.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let end = end.pop().map(|byte| {
            end.push(byte + 1);
            end
        });
        Self { start, end }
    }

    /// All keys in at most `most` spans, in order, each with about as many children of the map's root: for threads that
    /// share a walk.
    pub fn split_map<S: NodeSource + ?Sized>(
        source: &S,
        root: &MapRoot,
        most: usize,
    ) -> Result<Vec<Self>, MapError> {
        let top = source.load_node(&root.0)?;
        let each = top.len().div_ceil(most.max(1)).max(1);
        // The least key beyond a child is its last key with a zero byte. The last span goes on to the end: what a map is
        // compared with may have keys there.
        let last_keys = top.children().skip(each - 1).step_by(each).map(|child| child.last_key);
        let ends: Vec<_> = last_keys.map(|key| [key, &[0]].concat()).collect();
        let inner = ends.len().saturating_sub(usize::from(top.len().is_multiple_of(each)));
        let mut spans = Vec::with_capacity(inner + 1);
        let mut start = Vec::new();
        for end in ends.into_iter().take(inner) {
            spans.push(Self { start, end: Some(end.clone()) });
            start = end;
        }
        spans.push(Self { start, end: None });
        Ok(spans)
    }

    /// Restricts the range to keys after `key`: to continue a listing.
    #[must_use]
    pub fn after_key(mut self, key: &[u8]) -> Self {
        // The least key after `key` is the same key with a zero byte.
        if key >= self.start.as_slice() {
            self.start = [key, &[0]].concat();
        }
        self
    }

    /// Whether a key belongs to it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.is_before_end(key)
    }

    pub(crate) fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }
}

/// A key and its value, borrowed.
pub type MapEntryRef<'a> = (&'a [u8], &'a [u8]);

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapEntry {
    /// The key.
    pub key: SharedSlice,
    /// Its value in the map.
    pub value: MapValue,
}

impl MapEntry {
    /// The entry that stands there, with slices that keep the node alive.
    pub(crate) fn in_node(node: &Arc<MapNode>, bounds: &EntryBounds) -> Self {
        let key = SharedSlice::from_node(Arc::clone(node), bounds.key());
        let value = SharedSlice::from_node(Arc::clone(node), bounds.value());
        Self { key, value }
    }
}

/// Walks over the entries of a span. Ends after an error.
#[derive(Debug)]
pub struct MapRange<'a, S: ?Sized> {
    source: &'a S,
    path: NodePath,
    span: KeySpan,
    /// The leaf it is in and the position of the next entry.
    leaf: Option<(Arc<MapNode>, usize)>,
    started: bool,
    ended: bool,
}

/// The entries of a span in ascending order of their keys.
pub fn read_range<'a, S: NodeSource + ?Sized>(
    source: &'a S,
    root: &MapRoot,
    span: KeySpan,
) -> Result<MapRange<'a, S>, MapError> {
    let top = source.load_node(&root.0)?;
    // As in a lookup: what lies beyond the last key is known without another node.
    let ended = top.last_key().is_none_or(|last| last < span.start.as_slice());
    Ok(MapRange { source, path: NodePath::new(top, 0), span, leaf: None, started: false, ended })
}

impl<S: NodeSource + ?Sized> MapRange<'_, S> {
    /// The next entry, borrowed: for scans that copy nothing.
    pub fn next_entry(&mut self) -> Result<Option<MapEntryRef<'_>>, MapError> {
        let Some(bounds) = self.find_next_entry()? else { return Ok(None) };
        Ok(self.leaf.as_ref().map(|(leaf, _)| leaf.entry_within(&bounds)))
    }

    /// Brings the leaf with the next entry, and moves past that entry. Returns where it stands in the leaf.
    fn find_next_entry(&mut self) -> Result<Option<EntryBounds>, MapError> {
        while !self.ended {
            if let Some((leaf, next)) = &mut self.leaf
                && let Some(bounds) = leaf.find_entry_bounds(*next)
            {
                *next += 1;
                let (key, _) = leaf.entry_within(&bounds);
                self.ended = !self.span.is_before_end(key);
                return Ok((!self.ended).then_some(bounds));
            }
            // An error ends the range, so that a caller who goes on does not get entries from another place.
            self.load_next_leaf().inspect_err(|_| self.ended = true)?;
        }
        Ok(None)
    }

    fn load_next_leaf(&mut self) -> Result<(), MapError> {
        let leaf = if self.started {
            self.path.current_node(self.source)?
        } else {
            // Only the first leaf has to be sought, since the path goes on from there.
            self.started = true;
            self.path.seek_key(self.source, &self.span.start)?
        };
        match leaf {
            Some(leaf) => {
                // The path moves on at once, so that the next call loads the leaf behind this one.
                self.path.skip_current();
                // Of the first leaf, entries before the span are skipped. In later leaves all keys are above its
                // start.
                let first = leaf.lower_bound(&self.span.start);
                self.leaf = Some((leaf, first));
            }
            None => self.ended = true,
        }
        Ok(())
    }
}

impl<S: NodeSource + ?Sized> Iterator for MapRange<'_, S> {
    type Item = Result<MapEntry, MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.find_next_entry() {
            Ok(bounds) => {
                let (leaf, _) = self.leaf.as_ref()?;
                Some(Ok(MapEntry::in_node(leaf, &bounds?)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

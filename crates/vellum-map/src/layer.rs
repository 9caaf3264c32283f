//! Change layers: changes in memory, put on top of a map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::range::KeySpan;

/// An ordered set of changed keys, each with its value or a tombstone.
#[derive(Debug, Default, Clone)]
pub struct ChangeLayer {
    changes: BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>,
    bytes: usize,
}

/// Bytes of memory that a change takes beside its key and value: two counted allocations and its share of a tree
/// node, as measured; an estimate that bounds memory.
const CHANGE_OVERHEAD: usize = 96;

impl ChangeLayer {
    /// No changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    pub fn set_key(&mut self, key: impl AsRef<[u8]>, value: impl Into<Arc<[u8]>>) {
        self.record_change(key.as_ref(), Some(value.into()));
    }

    /// Removes a key: leaves a tombstone, which hides lower values.
    pub fn delete_key(&mut self, key: impl AsRef<[u8]>) {
        self.record_change(key.as_ref(), None);
    }

    fn record_change(&mut self, key: &[u8], value: Option<Arc<[u8]>>) {
        self.bytes += value.as_ref().map_or(0, |value| value.len());
        if let Some(held) = self.changes.get_mut(key) {
            let old = std::mem::replace(held, value);
            self.bytes -= old.map_or(0, |old| old.len());
        } else {
            self.bytes += key.len() + CHANGE_OVERHEAD;
            self.changes.insert(key.into(), value);
        }
    }

    /// Returns the change of a key in this layer. `None`: no change; `Some(None)`: it is removed.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<&Arc<[u8]>>> {
        self.changes.get(key).map(Option::as_ref)
    }

    /// Number of changed keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        self.bytes
    }

    /// All changes in ascending order of their keys, as [`crate::apply_changes()`] takes them.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<[u8]>, Option<&Arc<[u8]>>)> {
        self.changes.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// The changes within a span.
    pub fn changes_in_span<'a>(
        &'a self,
        span: &KeySpan,
    ) -> impl Iterator<Item = (&'a Arc<[u8]>, Option<&'a Arc<[u8]>>)> + use<'a> {
        let end = match &span.end {
            // A range that ends before it starts is empty; the tree would panic.
            Some(end) if *end <= span.start => Bound::Excluded(span.start.as_slice()),
            Some(end) => Bound::Excluded(end.as_slice()),
            None => Bound::Unbounded,
        };
        self.changes
            .range::<[u8], _>((Bound::Included(span.start.as_slice()), end))
            .map(|(key, value)| (key, value.as_ref()))
    }
}

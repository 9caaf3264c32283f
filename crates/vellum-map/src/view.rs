//! Map views: layers over a root, read as one map.
//!
//! Invariant: if several layers have a key, the newest one counts; a tombstone hides lower values.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::iter::Peekable;
use std::sync::Arc;

use crate::error::MapError;
use crate::layer::{ChangeLayer, LayerChange};
use crate::range::{KeySpan, MapEntry, MapRange, read_range};
use crate::read::get_value;
use crate::slice::{MapValue, SharedSlice};
use crate::source::{MapRoot, NodeSource};

/// A state of a worktree: a base and the changes since. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MapView {
    /// Newest first.
    pub layers: Vec<Arc<ChangeLayer>>,
    /// The base.
    pub base: MapRoot,
}

impl MapView {
    /// A root with nothing on it.
    #[must_use]
    pub fn new(base: MapRoot) -> Self {
        Self { layers: Vec::new(), base }
    }

    /// Returns the value of a key.
    pub fn get_value<S: NodeSource + ?Sized>(
        &self,
        source: &S,
        key: &[u8],
    ) -> Result<Option<MapValue>, MapError> {
        match self.layers.iter().find_map(|layer| layer.get(key)) {
            Some(change) => Ok(change.map(|value| MapValue::from(Arc::clone(value)))),
            None => get_value(source, &self.base, key),
        }
    }

    /// The entries of a span in ascending order of their keys.
    pub fn read_range<'a, S: NodeSource + ?Sized>(
        &'a self,
        source: &'a S,
        span: KeySpan,
    ) -> Result<impl Iterator<Item = Result<MapEntry, MapError>> + use<'a, S>, MapError> {
        let changes = self.changes_in_span(&span);
        Ok(MergedRange {
            changes: changes.peekable(),
            base: read_range(source, &self.base, span)?.peekable(),
        })
    }

    /// The changes of all layers in a span, merged: of each key the newest, in ascending order.
    pub fn changes_in_span<'a>(&'a self, span: &KeySpan) -> impl Iterator<Item = LayerChange<'a>> + use<'a> {
        let mut layers: Vec<_> = self.layers.iter().map(|layer| layer.changes_in_span(span)).collect();
        let firsts = layers.iter_mut().map(Iterator::next).enumerate();
        let heads = firsts.filter_map(|(age, change)| Some(LayerHead { change: change?, age })).collect();
        LayerMerge { layers, heads }
    }
}

/// Merges the changes of layers, newest first. Each takes a few comparisons, however many layers there are.
struct LayerMerge<'a, I> {
    layers: Vec<I>,
    /// The next change of each layer that has one.
    heads: BinaryHeap<LayerHead<'a>>,
}

impl<'a, I: Iterator<Item = LayerChange<'a>>> LayerMerge<'a, I> {
    /// Takes the change of the smallest key, of the newest layer that has it.
    fn take_first(&mut self) -> Option<LayerChange<'a>> {
        let mut head = self.heads.peek_mut()?;
        Some(match self.layers.get_mut(head.age).and_then(Iterator::next) {
            Some(next) => std::mem::replace(&mut head.change, next),
            None => PeekMut::pop(head).change,
        })
    }
}

impl<'a, I: Iterator<Item = LayerChange<'a>>> Iterator for LayerMerge<'a, I> {
    type Item = LayerChange<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let newest = self.take_first()?;
        // Every older layer that has the key moves past it.
        while self.heads.peek().is_some_and(|older| older.change.0.bytes == newest.0.bytes) {
            self.take_first();
        }
        Some(newest)
    }
}

/// The next change of a layer. The greatest one has the smallest key, and of equal keys that of the newest layer.
struct LayerHead<'a> {
    change: LayerChange<'a>,
    /// How many layers are newer.
    age: usize,
}

impl Ord for LayerHead<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.change.0.bytes.cmp(self.change.0.bytes).then_with(|| other.age.cmp(&self.age))
    }
}

impl PartialOrd for LayerHead<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for LayerHead<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for LayerHead<'_> {}

/// Entries of a base with changes merged in.
struct MergedRange<'a, C: Iterator, S: NodeSource + ?Sized> {
    changes: Peekable<C>,
    base: Peekable<MapRange<'a, S>>,
}

impl<'a, C: Iterator<Item = LayerChange<'a>>, S: NodeSource + ?Sized> Iterator for MergedRange<'_, C, S> {
    type Item = Result<MapEntry, MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((key, _)) = self.changes.peek() else { return self.base.next() };
            match self.base.peek() {
                // An error of the base comes before a change, since the order of the keys behind it is not known.
                Some(Err(_)) => return self.base.next(),
                Some(Ok(entry)) => match entry.key.as_bytes().cmp(key.bytes) {
                    Ordering::Less => return self.base.next(),
                    // The change replaces or removes this entry, so it is dropped.
                    Ordering::Equal => drop(self.base.next()),
                    Ordering::Greater => {}
                },
                None => {}
            }
            let (key, value) = self.changes.next()?;
            if let Some(value) = value {
                let key = SharedSlice::from(key.to_shared());
                let value = MapValue::from(Arc::clone(value));
                return Some(Ok(MapEntry { key, value }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vellum_types::BlobId;

    use super::*;

    #[test]
    fn of_several_layers_with_a_key_the_newest_counts() {
        let keys = || (0..200u64).map(u64::to_be_bytes);
        let mut oldest = ChangeLayer::new();
        keys().step_by(2).for_each(|key| oldest.set_key(key, *b"old"));
        // So many removals in order are in a run.
        let mut removed = ChangeLayer::new();
        keys().for_each(|key| removed.delete_key(key));
        let mut newest = ChangeLayer::new();
        keys().step_by(3).for_each(|key| newest.set_key(key, *b"new"));
        let layers = [newest, removed, oldest].map(Arc::new).to_vec();
        let view = MapView { layers, base: MapRoot(BlobId([0; 32])) };
        let changes: Vec<_> = view
            .changes_in_span(&KeySpan::from_start(10u64.to_be_bytes()))
            .map(|(key, value)| (key.bytes.to_vec(), value.map(|value| value.to_vec())))
            .collect();
        let change_of = |number: u64| number.is_multiple_of(3).then(|| b"new".to_vec());
        let expected: Vec<_> =
            (10..200u64).map(|number| (number.to_be_bytes().to_vec(), change_of(number))).collect();
        assert_eq!(changes, expected);
    }
}

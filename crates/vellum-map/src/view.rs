//! Map views: layers over a root, read as one map.
//!
//! Invariant: if several layers have a key, the newest one counts; a tombstone hides lower values.

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
        let mut layers: Vec<_> =
            self.layers.iter().map(|layer| layer.changes_in_span(span).peekable()).collect();
        std::iter::from_fn(move || {
            let key = layers.iter_mut().filter_map(|layer| layer.peek()).map(|(key, _)| key.bytes).min()?;
            let mut newest = None;
            for layer in &mut layers {
                let change = layer.next_if(|(other, _)| other.bytes == key);
                // Every layer that has the key moves past it. Layers are ordered newest first, so the first change
                // counts.
                newest = newest.or(change);
            }
            newest
        })
    }
}

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
                Some(Ok(entry)) if entry.key.as_bytes() < key.bytes => return self.base.next(),
                Some(Ok(entry)) if entry.key.as_bytes() == key.bytes => {
                    // The change replaces or removes this entry, so it is dropped.
                    self.base.next();
                }
                // The base has ended, or its next key is above that of the change.
                _ => {}
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

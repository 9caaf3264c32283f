//! Change layers: changes in memory, put on top of a map.
//!
//! A million deleted files are millions of removed keys, which come in ascending order from a scan: those are kept in
//! a [`KeyRun`], with a tenth of the memory that an entry of a tree takes. A key may be in both; then the tree counts.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::key_run::KeyRun;
use crate::range::KeySpan;

/// A changed key and its value; no value removes it.
pub type LayerChange<'a> = (LayerKey<'a>, Option<&'a Arc<[u8]>>);

/// A key of a layer. Compared by its bytes.
#[derive(Debug, Clone, Copy)]
pub struct LayerKey<'a> {
    /// The key.
    pub bytes: &'a [u8],
    /// The same in memory that can be shared; None: it is in a [`KeyRun`].
    shared: Option<&'a Arc<[u8]>>,
}

impl<'a> LayerKey<'a> {
    fn of_tree(key: &'a Arc<[u8]>) -> Self {
        Self { bytes: key, shared: Some(key) }
    }

    fn of_run(bytes: &'a [u8]) -> Self {
        Self { bytes, shared: None }
    }

    /// The key in memory that is shared with the layer, if that is possible: every key that has a value.
    #[must_use]
    pub fn to_shared(self) -> Arc<[u8]> {
        self.shared.map_or_else(|| Arc::from(self.bytes), Arc::clone)
    }
}

impl AsRef<[u8]> for LayerKey<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// An ordered set of changed keys, each with its value or a tombstone.
#[derive(Debug, Default, Clone)]
pub struct ChangeLayer {
    changes: BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>,
    /// Removed keys, of which those that were set later are in `changes` too.
    removed: KeyRun,
    /// How many keys are in both.
    overridden: usize,
    deletions: DeletionStreak,
    /// Bytes that `changes` takes, about.
    bytes: usize,
}

/// Bytes of memory that a change takes beside its key and value: two counted allocations and its share of a tree
/// node, as measured; an estimate that bounds memory.
const CHANGE_OVERHEAD: usize = 96;

/// Deletions in ascending order after which further ones go into the run, a count. Few that happen to ascend stay in the tree:
/// a run that has any key is searched by each look-up of a key that the tree does not have.
const STREAK_MIN: usize = 64;

/// Deletions that came in ascending order, up to the last one.
#[derive(Debug, Default, Clone)]
struct DeletionStreak {
    last: Vec<u8>,
    count: usize,
}

impl DeletionStreak {
    fn record_deletion(&mut self, key: &[u8]) {
        self.count = if self.last.as_slice() < key { self.count + 1 } else { 0 };
        self.last.clear();
        self.last.extend_from_slice(key);
    }
}

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
        let key = key.as_ref();
        self.deletions.record_deletion(key);
        let is_streak = self.deletions.count >= STREAK_MIN;
        // If the key is in the run already, a further removal changes nothing.
        let is_in_run = |removed: &mut KeyRun| removed.contains(key) || is_streak && removed.try_push(key);
        // Without a run, and without a streak that begins one, the tree need not be searched first.
        let may_be_in_run = is_streak || !self.removed.is_empty();
        // A removal that is already in the tree, or does not follow the last one, goes into the tree.
        if !may_be_in_run || self.changes.contains_key(key) || !is_in_run(&mut self.removed) {
            self.record_change(key, None);
        }
    }

    fn record_change(&mut self, key: &[u8], value: Option<Arc<[u8]>>) {
        self.bytes += value.as_ref().map_or(0, |value| value.len());
        if let Some(held) = self.changes.get_mut(key) {
            let old = std::mem::replace(held, value);
            self.bytes -= old.map_or(0, |old| old.len());
        } else {
            self.bytes += key.len() + CHANGE_OVERHEAD;
            // Such a key is in both, and counts once; see `len`.
            self.overridden += usize::from(self.removed.contains(key));
            self.changes.insert(key.into(), value);
        }
    }

    /// Returns the change of a key in this layer. `None`: no change; `Some(None)`: it is removed.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<&Arc<[u8]>>> {
        // Most layers have no run, and each look-up of a key asks every layer until one has it.
        if self.removed.is_empty() { self.get_in_tree(key) } else { self.get_in_both(key) }
    }

    fn get_in_tree(&self, key: &[u8]) -> Option<Option<&Arc<[u8]>>> {
        self.changes.get(key).map(Option::as_ref)
    }

    // Apart from the search of the tree alone, which it would slow down.
    #[inline(never)]
    fn get_in_both(&self, key: &[u8]) -> Option<Option<&Arc<[u8]>>> {
        self.get_in_tree(key).or_else(|| self.removed.contains(key).then_some(None))
    }

    /// Number of changed keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len() + self.removed.len() - self.overridden
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        self.bytes + self.removed.memory_size()
    }

    /// All changes in ascending order of their keys, as [`crate::apply_changes()`] takes them.
    pub fn iter(&self) -> impl Iterator<Item = LayerChange<'_>> {
        self.changes_in_span(&KeySpan::all_keys())
    }

    /// The changes within a span, in ascending order of their keys.
    pub fn changes_in_span<'a>(&'a self, span: &KeySpan) -> impl Iterator<Item = LayerChange<'a>> + use<'a> {
        let start = span.start.as_slice();
        let end = span.end.as_deref();
        let bound = match end {
            // A range that ends before it starts is empty; the tree would panic.
            Some(end) if end <= start => Bound::Excluded(start),
            Some(end) => Bound::Excluded(end),
            None => Bound::Unbounded,
        };
        let changes = self.changes.range::<[u8], _>((Bound::Included(start), bound));
        let removed = self.removed.keys_in_range(start, end);
        if removed.len() == 0 {
            LayerRange::Tree(changes)
        } else {
            LayerRange::Merged { changes: changes.peekable(), removed: removed.peekable() }
        }
    }
}

/// The changes of a layer in a span.
enum LayerRange<'a, R: Iterator<Item = &'a [u8]>> {
    /// The run has no key there, which is usual: nothing is compared.
    Tree(TreeRange<'a>),
    /// Both have keys. Both are sorted, and the smaller key comes first.
    Merged { changes: Peekable<TreeRange<'a>>, removed: Peekable<R> },
}

type TreeRange<'a> = btree_map::Range<'a, Arc<[u8]>, Option<Arc<[u8]>>>;

impl<'a, R: Iterator<Item = &'a [u8]>> Iterator for LayerRange<'a, R> {
    type Item = LayerChange<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = match self {
            Self::Tree(changes) => changes.next()?,
            Self::Merged { changes, removed } => {
                if let Some(key) = removed.next_if(|key| changes.peek().is_none_or(|(set, _)| *key < &***set))
                {
                    return Some((LayerKey::of_run(key), None));
                }
                let change = changes.next()?;
                // What was set after it was removed counts.
                removed.next_if(|key| *key == &**change.0);
                change
            }
        };
        Some((LayerKey::of_tree(key), value.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes_of(layer: &ChangeLayer) -> Vec<(&str, Option<&str>)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("keys and values are text");
        layer.iter().map(|(key, value)| (text(key.bytes), value.map(|value| text(value)))).collect()
    }

    #[test]
    fn the_last_change_of_a_key_counts() {
        let mut layer = ChangeLayer::new();
        ["b", "d", "c", "a"].iter().for_each(|key| layer.delete_key(key));
        layer.set_key("b", *b"new");
        layer.set_key("e", *b"five");
        layer.delete_key("e");
        layer.delete_key("d");
        let expected = [("a", None), ("b", Some("new")), ("c", None), ("d", None), ("e", None)];
        assert_eq!(changes_of(&layer), expected);
        assert_eq!(layer.len(), 5);
        layer.delete_key("b");
        assert_eq!(layer.get(b"b"), Some(None));
        assert_eq!((layer.len(), changes_of(&layer).len()), (5, 5));
    }

    #[test]
    fn scattered_removals_leave_no_run() {
        let mut layer = ChangeLayer::new();
        (0..1000u64).for_each(|number| layer.delete_key((number * 7919 % 1000).to_be_bytes()));
        assert_eq!((layer.removed.len(), layer.len()), (0, 1000));
    }

    #[test]
    fn what_is_set_and_removed_in_a_run_counts_once() {
        let mut layer = ChangeLayer::new();
        let keys = || (0..200u64).map(u64::to_be_bytes);
        keys().for_each(|key| layer.delete_key(key));
        assert!(layer.removed.len() > 100);
        layer.set_key(150u64.to_be_bytes(), *b"new");
        layer.delete_key(160u64.to_be_bytes());
        assert_eq!(layer.get(&150u64.to_be_bytes()).flatten().map(|value| &**value), Some(&b"new"[..]));
        assert_eq!((layer.len(), layer.iter().count()), (200, 200));
        layer.delete_key(150u64.to_be_bytes());
        assert_eq!(layer.get(&150u64.to_be_bytes()), Some(None));
        assert!(layer.iter().map(|(key, _)| key.bytes.to_vec()).eq(keys().map(Vec::from)));
    }

    #[test]
    fn a_million_removed_keys_take_little_memory() {
        let mut layer = ChangeLayer::new();
        (0..1_000_000u64).for_each(|number| layer.delete_key(number.to_be_bytes()));
        assert_eq!(layer.len(), 1_000_000);
        assert!(layer.memory_size() <= 12_010_000, "{} bytes", layer.memory_size());
        assert_eq!(layer.get(&77u64.to_be_bytes()), Some(None));
        let from_end = KeySpan::from_start(999_999u64.to_be_bytes());
        assert_eq!(layer.changes_in_span(&from_end).count(), 1);
    }
}

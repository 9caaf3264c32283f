//! The differences between two maps.
//!
//! Invariant: no node is read below two equal nodes, even if boundaries are shifted or heights differ: both sides are
//! always at the same position in the order of keys, each on the highest node that starts there; of two unequal nodes
//! the higher one is opened.

use std::cmp::Ordering;
use std::sync::Arc;

use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::MapNode;
use crate::path::{check_follows, load_child};
use crate::range::{KeySpan, MapEntry};
use crate::slice::{MapValue, SharedSlice};
use crate::source::{MapRoot, NodeSource};

/// A key under which two maps hold different values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapChange {
    /// The key.
    pub key: SharedSlice,
    /// The value in the first map.
    pub before: Option<MapValue>,
    /// The value in the second map.
    pub after: Option<MapValue>,
}

/// The changes from one map to another in ascending order of their keys. Ends after an error.
pub struct MapDiff<'a, S: ?Sized> {
    source: &'a S,
    before: DiffSide,
    after: DiffSide,
    span: KeySpan,
    ended: bool,
}

/// The changes that lead from map `a` to map `b`.
pub fn diff_maps<'a, S: NodeSource + ?Sized>(source: &'a S, a: &MapRoot, b: &MapRoot) -> MapDiff<'a, S> {
    diff_maps_in_span(source, a, b, KeySpan::all_keys())
}

/// Those of them in a span of keys. Nodes that hold nothing of it are not read.
pub fn diff_maps_in_span<'a, S: NodeSource + ?Sized>(
    source: &'a S,
    a: &MapRoot,
    b: &MapRoot,
    span: KeySpan,
) -> MapDiff<'a, S> {
    // Equal roots are equal maps: then nothing is read at all.
    MapDiff { source, before: DiffSide::new(*a), after: DiffSide::new(*b), span, ended: a == b }
}

impl<S: NodeSource + ?Sized> MapDiff<'_, S> {
    fn find_next_change(&mut self) -> Result<Option<MapChange>, MapError> {
        loop {
            self.before.skip_outside_span(&self.span);
            self.after.skip_outside_span(&self.span);
            match (self.before.position(), self.after.position()) {
                // Equal nodes have equal entries below them, so neither side is read.
                (DiffPosition::Node(_, a), DiffPosition::Node(_, b)) if a == b => {
                    self.before.skip_current();
                    self.after.skip_current();
                }
                // Both sides must come to nodes of the same level that begin at the same place. The higher one is
                // opened; two of the same level are both opened.
                (DiffPosition::Node(level, _), DiffPosition::Node(other, _)) => {
                    if level >= other {
                        self.before.open_node(self.source)?;
                    }
                    if level <= other {
                        self.after.open_node(self.source)?;
                    }
                }
                // A node beside an entry, or beside the end, must be opened: its entries may all be changes.
                (DiffPosition::Node(..), _) => self.before.open_node(self.source)?,
                (_, DiffPosition::Node(..)) => self.after.open_node(self.source)?,
                (DiffPosition::End, DiffPosition::End) => return Ok(None),
                (DiffPosition::Entry, DiffPosition::End) => {
                    return Ok(self.before.take_removal());
                }
                (DiffPosition::End, DiffPosition::Entry) => {
                    return Ok(self.after.take_addition());
                }
                (DiffPosition::Entry, DiffPosition::Entry) => {
                    if let Some(change) = self.compare_entries() {
                        return Ok(Some(change));
                    }
                }
            }
        }
    }

    /// Goes over one entry, or one on each side; a change if they differ.
    fn compare_entries(&mut self) -> Option<MapChange> {
        let (a_key, a_value) = self.before.current_entry()?;
        let (b_key, b_value) = self.after.current_entry()?;
        match a_key.cmp(b_key) {
            Ordering::Less => self.before.take_removal(),
            Ordering::Greater => self.after.take_addition(),
            Ordering::Equal if a_value == b_value => {
                self.before.skip_current();
                self.after.skip_current();
                None
            }
            Ordering::Equal => {
                let before = self.before.take_entry()?;
                let after = self.after.take_entry()?;
                Some(MapChange { key: before.key, before: Some(before.value), after: Some(after.value) })
            }
        }
    }
}

impl<S: NodeSource + ?Sized> Iterator for MapDiff<'_, S> {
    type Item = Result<MapChange, MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let found = self.find_next_change();
        // After an error the position of the sides is not defined, so nothing follows.
        self.ended = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}

/// What a side stands before.
enum DiffPosition {
    Node(u8, BlobId),
    Entry,
    End,
}

/// A place in one of the trees.
struct DiffSide {
    /// The root, until it is opened or skipped.
    root: Option<MapRoot>,
    frames: Vec<(Arc<MapNode>, usize)>,
}

impl DiffSide {
    fn new(root: MapRoot) -> Self {
        Self { root: Some(root), frames: Vec::new() }
    }

    fn position(&self) -> DiffPosition {
        if let Some(root) = self.root {
            // The level of a root is unknown before it is read: both sides open theirs, if they differ.
            return DiffPosition::Node(u8::MAX, root.0);
        }
        match self.frames.last() {
            None => DiffPosition::End,
            Some((node, index)) => match node.child(*index) {
                // Only nodes above the leaves have children, so that this does not go below zero.
                Some(child) => DiffPosition::Node(node.level() - 1, child.id),
                None => DiffPosition::Entry,
            },
        }
    }

    /// Goes past nodes and entries before a span, and to the end if what comes next is beyond it.
    fn skip_outside_span(&mut self, span: &KeySpan) {
        // Most comparisons are of whole maps, and skip this check.
        if *span == KeySpan::default() {
            return;
        }
        while let Some((node, index)) = self.frames.last() {
            // In an inner node a key is the last one under a child.
            let is_before = node.key(*index).is_some_and(|key| key < span.start.as_slice());
            let least = if node.is_leaf() { node.key(*index) } else { self.preceding_key() };
            // Everything from here on is beyond the span.
            if least.is_some_and(|key| !span.is_before_end(key)) {
                self.frames.clear();
            } else if is_before {
                self.skip_current();
            } else {
                return;
            }
        }
    }

    /// The last key before the place where it stands, as far as its frames contain it.
    fn preceding_key(&self) -> Option<&[u8]> {
        let (node, index) = self.frames.iter().rev().find(|(_, index)| *index > 0)?;
        node.key(*index - 1)
    }

    /// Goes past the node or entry that it stands before.
    fn skip_current(&mut self) {
        self.root = None;
        while let Some((node, index)) = self.frames.last_mut() {
            *index += 1;
            if *index < node.len() {
                return;
            }
            self.frames.pop();
        }
    }

    /// Goes into the node that it stands before.
    fn open_node<S: NodeSource + ?Sized>(&mut self, source: &S) -> Result<(), MapError> {
        if let Some(root) = self.root.take() {
            let node = source.load_node(&root.0)?;
            // Only the root of an empty map has no entries, and so no position in it.
            if !node.is_empty() {
                self.frames.push((node, 0));
            }
            return Ok(());
        }
        let Some((node, index)) = self.frames.last() else { return Ok(()) };
        let Some((id, child)) = load_child(source, node, *index)? else { return Ok(()) };
        // Keys must ascend across nodes as well. Otherwise a hostile tree could show an entry twice.
        if let Some(key) = self.preceding_key() {
            check_follows(id, &child, key)?;
        }
        self.frames.push((child, 0));
        Ok(())
    }

    fn current_entry(&self) -> Option<(&[u8], &[u8])> {
        let (node, index) = self.frames.last()?;
        node.entry(*index)
    }

    /// The next entry, which the other side does not have: of the side before.
    fn take_removal(&mut self) -> Option<MapChange> {
        self.take_entry().map(|entry| MapChange { key: entry.key, before: Some(entry.value), after: None })
    }

    /// The same of the side after.
    fn take_addition(&mut self) -> Option<MapChange> {
        self.take_entry().map(|entry| MapChange { key: entry.key, before: None, after: Some(entry.value) })
    }

    fn take_entry(&mut self) -> Option<MapEntry> {
        let (node, index) = self.frames.last()?;
        let entry = MapEntry::in_node(node, &node.find_entry_bounds(*index)?);
        self.skip_current();
        Some(entry)
    }
}

//! The levels of a tree that is being changed, from the leaves up. See `apply.rs` for the idea.

use std::sync::Arc;

use vellum_types::BlobId;

use super::OpenNode;
use crate::error::MapError;
use crate::node::MapNode;
use crate::packer::{NodePacker, encode_child};
use crate::path::NodePath;
use crate::shape::MapShape;
use crate::source::{MapRoot, NodeSink, NodeSource};

/// A tree that is made from nothing reads no nodes.
#[derive(Debug, Clone, Copy)]
pub struct NoSource;

impl NodeSource for NoSource {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        Err(MapError::Misplaced { id: *id, what: "a new map has no nodes to read" })
    }
}

/// A finished node, as its parent will describe it.
#[derive(Debug)]
struct FinishedNode {
    last_key: Vec<u8>,
    id: BlobId,
    count: u64,
}

#[derive(Debug)]
struct TowerLevel {
    /// The old nodes of this level that are still ahead; None above the old top.
    old: Option<NodePath>,
    open: Option<OpenNode>,
    packer: NodePacker,
    /// Keys in leaves under the old nodes that were opened.
    dropped: u64,
    /// A node was finished.
    emitted: bool,
    /// At or above the old top: the only node so far, held back since it may be the root.
    first: Option<FinishedNode>,
}

impl TowerLevel {
    fn new(shape: MapShape, number: u8, old: Option<NodePath>) -> Self {
        Self {
            old,
            open: None,
            packer: NodePacker::new(shape, number),
            dropped: 0,
            emitted: false,
            first: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct NodeTower<'a, S: ?Sized, K: ?Sized> {
    source: &'a S,
    sink: &'a K,
    shape: MapShape,
    old: Option<OldTree>,
    levels: Vec<TowerLevel>,
    /// A change failed halfway: the levels are not a valid state of the map.
    broken: bool,
}

#[derive(Debug, Clone, Copy)]
struct OldTree {
    root: MapRoot,
    level: usize,
    total: u64,
}

impl<'a, K: ?Sized> NodeTower<'a, NoSource, K> {
    pub(super) fn new_empty(sink: &'a K, shape: MapShape) -> Self {
        Self {
            source: &NoSource,
            sink,
            shape,
            old: None,
            levels: vec![TowerLevel::new(shape, 0, None)],
            broken: false,
        }
    }
}

impl<'a, S: NodeSource + ?Sized, K: ?Sized> NodeTower<'a, S, K> {
    pub(super) fn from_root(
        source: &'a S,
        sink: &'a K,
        shape: MapShape,
        root: MapRoot,
        top: Arc<MapNode>,
    ) -> Self {
        // Each level has a path of its own: after a change, the levels come into step with the old tree at different places.
        let levels = (0..=top.level())
            .map(|level| TowerLevel::new(shape, level, Some(NodePath::new(Arc::clone(&top), level))))
            .collect();
        let old = OldTree { root, level: usize::from(top.level()), total: top.total_keys() };
        Self { source, sink, shape, old: Some(old), levels, broken: false }
    }
}

impl<S: NodeSource + ?Sized, K: NodeSink + ?Sized> NodeTower<'_, S, K> {
    /// Makes one change to the leaves.
    pub(super) fn apply_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), MapError> {
        // After an error, a level may have lost entries of an open node. A root made from that would be wrong.
        if self.broken {
            return Err(MapError::Broken);
        }
        self.try_apply_change(key, value).inspect_err(|_| self.broken = true)
    }

    fn try_apply_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), MapError> {
        if self.is_noop_change(key, value)? {
            return Ok(());
        }
        // With all before the key copied, its old entry, if there is one, is the next one of the open node.
        self.advance_level(0, key)?;
        self.skip_entry(0, key);
        match value {
            Some(value) => self.push_entry(0, key, value, 1),
            None => Ok(()),
        }
    }

    /// Whether a change changes nothing. Asked only in step: then the answer saves opening a node.
    fn is_noop_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool, MapError> {
        // Not in step, entries are copied anyway, and the question would cost a search.
        let level = &mut self.levels[0];
        let Some(path) = &mut level.old else { return Ok(false) };
        if level.open.is_some() || !level.packer.is_empty() {
            return Ok(false);
        }
        // Without an old leaf ahead, the old map does not hold the key: its keys up to here were all passed.
        let Some(leaf) = path.seek_key(self.source, key)? else { return Ok(value.is_none()) };
        let held = leaf.find_key(key).and_then(|index| leaf.entry(index)).map(|(_, held)| held);
        Ok(held == value)
    }

    /// Brings a level to where `key` belongs: all that is below it is copied, or kept unread.
    fn advance_level(&mut self, level: usize, key: &[u8]) -> Result<(), MapError> {
        loop {
            if self.levels[level].open.is_none() && !self.open_next_node(level, Some(key))? {
                return Ok(());
            }
            if self.copy_entries(level, Some(key))? {
                return Ok(());
            }
        }
    }

    /// Opens the next old node: in step the one where `key` belongs, else the one that follows. False at the end.
    fn open_next_node(&mut self, number: usize, key: Option<&[u8]>) -> Result<bool, MapError> {
        let level = &mut self.levels[number];
        let Some(path) = &mut level.old else { return Ok(false) };
        // In step, all nodes before the key are kept unread. Otherwise the node that follows must be copied, whatever
        // the key.
        let node = match key {
            Some(key) if level.packer.is_empty() => path.seek_key(self.source, key)?,
            _ => path.current_node(self.source)?,
        };
        let Some(node) = node else { return Ok(false) };
        path.skip_current();
        level.dropped += node.total_keys();
        level.open = Some(OpenNode { node: Arc::clone(&node), next: 0 });
        // The parent has an entry for this node, which is left out there: the packer makes new ones. At the old top
        // there is no parent.
        if self.old.is_some_and(|old| number < old.level)
            && let Some(last_key) = node.last_key()
        {
            self.advance_level(number + 1, last_key)?;
            self.skip_entry(number + 1, last_key);
        }
        Ok(true)
    }

    /// Copies entries of the open node below `limit` (all, without one). True if some are left in it.
    fn copy_entries(&mut self, number: usize, limit: Option<&[u8]>) -> Result<bool, MapError> {
        // Taken out of the level, because to push an entry may change this level and all above. An error loses it, which `broken`
        // remembers.
        let Some(OpenNode { node, mut next }) = self.levels[number].open.take() else { return Ok(false) };
        let end = limit.map_or(node.len(), |limit| node.lower_bound(limit).max(next));
        while next < end {
            let Some((key, value)) = node.entry(next) else { break };
            // In an inner node an entry stands for all keys under its child.
            let keys = node.child(next).map_or(1, |child| child.count);
            self.push_entry(number, key, value, keys)?;
            next += 1;
        }
        let left = next < node.len();
        if left {
            self.levels[number].open = Some(OpenNode { node, next });
        }
        Ok(left)
    }

    /// Leaves out the entry at the place of a level, if it has this key.
    fn skip_entry(&mut self, number: usize, key: &[u8]) {
        let open = &mut self.levels[number].open;
        if let Some(OpenNode { node, next }) = open
            && node.key(*next) == Some(key)
        {
            *next += 1;
            if *next == node.len() {
                *open = None;
            }
        }
    }

    /// Appends an entry to a level's packer, and passes the node on if it ends there.
    fn push_entry(&mut self, number: usize, key: &[u8], value: &[u8], keys: u64) -> Result<(), MapError> {
        if self.levels[number].packer.push_entry(key, value, keys) { self.emit_node(number) } else { Ok(()) }
    }

    /// Stores the node in a level's packer and enters it in the level above.
    fn emit_node(&mut self, number: usize) -> Result<(), MapError> {
        let level = &mut self.levels[number];
        let id = self.sink.store_node(level.packer.finish_node())?;
        let sealed =
            FinishedNode { last_key: level.packer.last_key().to_vec(), id, count: level.packer.total_keys() };
        // Key and count were taken before: the packer forgets them here.
        level.packer.start_next_node();
        let only = !level.emitted;
        level.emitted = true;
        // A level at or above the old top may turn out to be the last. Its first node is then the root, and gets no
        // parent.
        let may_be_root = self.old.is_none_or(|old| number >= old.level);
        if may_be_root && only {
            self.levels[number].first = Some(sealed);
            return Ok(());
        }
        // A second node at the top: the tree gets a level more.
        if self.levels.len() == number + 1 {
            self.add_level();
        }
        if let Some(first) = self.levels[number].first.take() {
            self.insert_child(number + 1, first)?;
        }
        self.insert_child(number + 1, sealed)
    }

    fn insert_child(&mut self, number: usize, sealed: FinishedNode) -> Result<(), MapError> {
        let value = encode_child(&sealed.id, sealed.count);
        self.push_entry(number, &sealed.last_key, &value, sealed.count)
    }

    fn add_level(&mut self) {
        // Levels stay below 64: each has at most half as many nodes as the one below.
        let number = self.levels.len() as u8;
        self.levels.push(TowerLevel::new(self.shape, number, None));
    }

    pub(super) fn finish_tree(mut self) -> Result<MapRoot, MapError> {
        if self.broken {
            return Err(MapError::Broken);
        }
        if let Some(old) = self.old
            // Without a change, the old tree is the result. Packing would give the same root and write nodes that
            // exist.
            && !self.has_changes()
        {
            return Ok(old.root);
        }
        let mut only_child = None;
        // Levels are added while this runs: finishing a node may need a parent.
        let mut number = 0;
        while number < self.levels.len() {
            self.complete_level(number)?;
            if let Some(child) = self.find_only_child(number) {
                // A top node with a single child: the child is the root.
                only_child = Some(child);
            } else if !self.levels[number].packer.is_empty() {
                self.emit_node(number)?;
            }
            number += 1;
        }
        let top = self.levels.iter().rev().find_map(|level| level.first.as_ref());
        // The highest node that was held back is the root.
        match top.map(|sealed| sealed.id).or(only_child) {
            Some(id) => Ok(MapRoot(id)),
            // All entries were removed. The empty map has a node of its own.
            None => Ok(MapRoot(self.sink.store_node(NodePacker::new(self.shape, 0).finish_node())?)),
        }
    }

    /// Whether any change was made.
    fn has_changes(&self) -> bool {
        let leaves = &self.levels[0];
        leaves.dropped > 0 || leaves.open.is_some() || leaves.emitted || !leaves.packer.is_empty()
    }

    /// Copies what follows the last change, until in step or at the end.
    fn complete_level(&mut self, number: usize) -> Result<(), MapError> {
        self.copy_entries(number, None)?;
        while !self.levels[number].packer.is_empty() && self.open_next_node(number, None)? {
            // Stops as soon as the level is in step: all nodes from there on are shared with the old tree.
            self.copy_entries(number, None)?;
        }
        Ok(())
    }

    /// The child in a level's packer, if it is all that the level holds.
    fn find_only_child(&self, number: usize) -> Option<BlobId> {
        let level = &self.levels[number];
        // Nodes of the old tree that were not opened are part of the level, too.
        let kept = self.old.is_some_and(|old| level.old.is_some() && level.dropped < old.total);
        if number == 0 || kept || level.emitted || level.packer.entry_count() != 1 {
            return None;
        }
        BlobId::from_slice(level.packer.last_value().get(..BlobId::LEN)?)
    }
}

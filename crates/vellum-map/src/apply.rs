//! Sorted changes to a stored tree, and trees from nothing: the only writer of nodes.
//!
//! Invariant: the result is the same as packing all entries from the first on. But only these nodes are read and
//! written: nodes that a change falls into, those after them up to the next boundary that old and new tree share, and
//! their ancestors. Memory: one node per level, whatever the number of changes.
//!
//! Every level works in the same way on its sequence of entries. It is *in step* when its packer is empty and its
//! position is the start of an old node: then old nodes are skipped, unread, up to the node of the next change. That
//! node is opened (its entry in the parent is dropped) and its entries are copied to the packer, merged with the
//! changes; this continues with the following old nodes until the level is in step again. Each node that the packer
//! finishes is inserted into the level above, in place of the dropped ones. So changes to a level become changes to
//! the level above, in the order of the sequence.

use std::sync::Arc;

use vellum_types::limits::{KEY_MAX, VALUE_MAX};

use crate::error::MapError;
use crate::node::MapNode;
use crate::shape::MapShape;
use crate::source::{MapRoot, NodeSink, NodeSource};

mod tower;

pub use tower::NoSource;
use tower::NodeTower;

/// Takes changes in ascending order of their keys, and makes the root of the changed map.
#[derive(Debug)]
pub struct MapApplier<'a, S: ?Sized, K: ?Sized> {
    tower: NodeTower<'a, S, K>,
    order: KeyOrderCheck,
}

impl<'a, S: NodeSource + ?Sized, K: NodeSink + ?Sized> MapApplier<'a, S, K> {
    /// Changes the map at `root`, which stays as it is.
    pub fn new(source: &'a S, sink: &'a K, shape: MapShape, root: &MapRoot) -> Result<Self, MapError> {
        // The level of the top node says how many levels the tree has.
        let top = source.load_node(&root.0)?;
        Ok(Self {
            tower: NodeTower::from_root(source, sink, shape, *root, top),
            order: KeyOrderCheck::default(),
        })
    }

    /// Sets a key, which must be above those before.
    pub fn set_key(&mut self, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        self.order.check_key_order(key)?;
        check_value_len(value)?;
        self.tower.apply_change(key, Some(value))
    }

    /// Removes a key (which need not be there); it must be above those before.
    pub fn delete_key(&mut self, key: &[u8]) -> Result<(), MapError> {
        self.order.check_key_order(key)?;
        self.tower.apply_change(key, None)
    }

    /// Completes the tree. Its nodes are with the sink then.
    pub fn finish_tree(self) -> Result<MapRoot, MapError> {
        self.tower.finish_tree()
    }
}

/// The root of the map at `root` with `changes` made: a value sets a key, None removes it.
pub fn apply_changes<S, K, C, B, V>(
    source: &S,
    sink: &K,
    shape: MapShape,
    root: &MapRoot,
    changes: C,
) -> Result<MapRoot, MapError>
where
    S: NodeSource + ?Sized,
    K: NodeSink + ?Sized,
    C: IntoIterator<Item = (B, Option<V>)>,
    B: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    let mut applier = MapApplier::new(source, sink, shape, root)?;
    for (key, value) in changes {
        match value {
            Some(value) => applier.set_key(key.as_ref(), value.as_ref())?,
            None => applier.delete_key(key.as_ref())?,
        }
    }
    applier.finish_tree()
}

/// Makes a whole map from its entries in ascending order.
#[derive(Debug)]
pub struct MapBuilder<'a, K: ?Sized> {
    tower: NodeTower<'a, NoSource, K>,
    order: KeyOrderCheck,
}

impl<'a, K: NodeSink + ?Sized> MapBuilder<'a, K> {
    /// Starts with the empty map.
    pub fn new(shape: MapShape, sink: &'a K) -> Self {
        Self { tower: NodeTower::new_empty(sink, shape), order: KeyOrderCheck::default() }
    }

    /// Adds an entry, whose key must be above those before.
    pub fn push_entry(&mut self, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        self.order.check_key_order(key)?;
        check_value_len(value)?;
        self.tower.apply_change(key, Some(value))
    }

    /// Completes the tree. Its nodes are with the sink then.
    pub fn finish_tree(self) -> Result<MapRoot, MapError> {
        self.tower.finish_tree()
    }
}

fn check_value_len(value: &[u8]) -> Result<(), MapError> {
    if value.len() > VALUE_MAX { Err(MapError::ValueTooLong(value.len())) } else { Ok(()) }
}

/// Remembers the last key, to refuse one that is not above it.
#[derive(Debug, Default)]
struct KeyOrderCheck {
    last: Option<Vec<u8>>,
}

impl KeyOrderCheck {
    fn check_key_order(&mut self, key: &[u8]) -> Result<(), MapError> {
        // Checked here once, because nodes with longer keys could not be read again.
        if key.len() > KEY_MAX {
            return Err(MapError::KeyTooLong(key.len()));
        }
        match &mut self.last {
            // Equal keys are refused as well: of two changes of one key, the order would decide which one
            // counts.
            Some(last) if last.as_slice() >= key => return Err(MapError::Unsorted),
            Some(last) => {
                // The buffer is kept, so that the keys after the first one rarely need an allocation.
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last = Some(key.to_vec()),
        }
        Ok(())
    }
}

/// An old node whose entries are being copied, and the position of the next.
#[derive(Debug)]
struct OpenNode {
    node: Arc<MapNode>,
    next: usize,
}

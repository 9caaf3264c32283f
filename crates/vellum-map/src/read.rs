//! Single lookups.

use crate::error::MapError;
use crate::node::slice_value;
use crate::path::check_level;
use crate::slice::MapValue;
use crate::source::{MapRoot, NodeSource};

/// Returns the value of a key.
pub fn get_value<S: NodeSource + ?Sized>(
    source: &S,
    root: &MapRoot,
    key: &[u8],
) -> Result<Option<MapValue>, MapError> {
    let mut node = source.load_node(&root.0)?;
    while !node.is_leaf() {
        // A key that is above the last one of the node is above all keys of the map.
        let Some(child) = node.child(node.lower_bound(key)) else { return Ok(None) };
        let below = source.load_node(&child.id)?;
        // Levels fall by one from parent to child, so that this ends. The parent's other claims are left to scans
        // and to `walk`: checking them here would cost a third of a lookup.
        check_level(&node, child.id, &below)?;
        node = below;
    }
    Ok(node.find_key(key).and_then(|index| slice_value(&node, index)))
}

/// Number of keys in the map.
pub fn count_keys<S: NodeSource + ?Sized>(source: &S, root: &MapRoot) -> Result<u64, MapError> {
    Ok(source.load_node(&root.0)?.total_keys())
}

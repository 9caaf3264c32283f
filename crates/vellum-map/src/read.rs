//! Single lookups.

use crate::error::MapError;
use crate::node::value_slice;
use crate::path::check_level;
use crate::slice::MapValue;
use crate::source::{MapRoot, NodeSource};

/// What the map holds under a key.
pub fn get<S: NodeSource + ?Sized>(
    source: &S,
    root: &MapRoot,
    key: &[u8],
) -> Result<Option<MapValue>, MapError> {
    let mut node = source.node(&root.0)?;
    while !node.is_leaf() {
        let Some(child) = node.child(node.lower_bound(key)) else { return Ok(None) };
        let below = source.node(&child.id)?;
        // Levels fall by one from parent to child, so that this ends. The parent's other claims are left to scans
        // and to `walk`: checking them here would cost a third of a lookup.
        check_level(&node, child.id, &below)?;
        node = below;
    }
    Ok(node.find(key).and_then(|index| value_slice(&node, index)))
}

/// Number of keys in the map.
pub fn len<S: NodeSource + ?Sized>(source: &S, root: &MapRoot) -> Result<u64, MapError> {
    Ok(source.node(&root.0)?.total())
}

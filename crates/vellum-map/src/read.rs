//! Single lookups.

use crate::error::MapError;
use crate::node::value_slice;
use crate::path::load_child;
use crate::slice::Value;
use crate::source::{NodeSource, Root};

/// What the map holds under a key.
pub fn get<S: NodeSource + ?Sized>(source: &S, root: &Root, key: &[u8]) -> Result<Option<Value>, MapError> {
    let mut node = source.node(&root.0)?;
    while !node.is_leaf() {
        // Levels fall by one from parent to child, so that this ends.
        let Some((_, child)) = load_child(source, &node, node.lower_bound(key))? else { return Ok(None) };
        node = child;
    }
    Ok(node.find(key).and_then(|index| value_slice(&node, index)))
}

/// Number of keys in the map.
pub fn len<S: NodeSource + ?Sized>(source: &S, root: &Root) -> Result<u64, MapError> {
    Ok(source.node(&root.0)?.total())
}

//! A page of the map: every entry can be reached, and each key is found where it stands.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_map::MapNode;

fuzz_target!(|bytes: &[u8]| {
    let Ok(node) = MapNode::decode(bytes.to_vec()) else { return };
    assert_eq!(node.entries().count(), node.len());
    assert!(node.entries().map(|(key, _)| key).is_sorted_by(|a, b| a < b));
    assert_eq!(node.children().count(), if node.is_leaf() { 0 } else { node.len() });
    assert_eq!(node.as_bytes(), bytes);
    let _ = (node.last_key(), node.total_keys(), node.memory_size(), node.entry(node.len()));
});

//! Nodes of released versions stay readable, and are still made the same. `VELLUM_BLESS=1` writes the files.

use std::path::PathBuf;

use vellum_map::{ChildDescription, LoadBytes, MapNode, MapShape, MemoryNodeStore, NodeSource};

use crate::support::{Model, build, numbered};

/// Root of 10,000 numbered keys with seed 1: pins the boundary rule, the encoding and the shape of trees.
const ROOT_10_000: &str = "990355b3be7f740278b448904bee90503b1f7f3ea4dc9ca9c5b61034ca69a7b5";

fn check(name: &str, bytes: &[u8]) -> MapNode {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("VELLUM_BLESS").is_some() {
        std::fs::write(&path, bytes).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert_eq!(golden, bytes, "{name}");
    MapNode::decode(golden).unwrap()
}

#[test]
fn version_1_nodes() {
    let nodes = MemoryNodeStore::new();
    let mut model: Model = numbered(0..6);
    model.insert(Vec::new(), b"under the empty key".to_vec());
    model.insert(b"long".to_vec(), vec![0xaa; 300]);
    let shape = MapShape::with_sizes(1, 150, 300, 2_000);
    let root = build(shape, &nodes, &model);
    let inner = check("node-v1-inner.bin", &nodes.load_bytes(&root.0).unwrap());
    assert_eq!((inner.level(), inner.total_keys()), (1, 8));
    let ChildDescription { id, count, last_key } = inner.child(0).unwrap();
    let leaf = check("node-v1-leaf.bin", &nodes.load_bytes(&id).unwrap());
    assert_eq!((leaf.level(), leaf.total_keys()), (0, count));
    assert_eq!(leaf.last_key(), Some(last_key));
    assert_eq!(leaf.entry(0), Some((&b""[..], &b"under the empty key"[..])));
}

#[test]
fn version_1_trees() {
    let nodes = MemoryNodeStore::new();
    let root = build(MapShape::new(1), &nodes, &numbered(0..10_000));
    assert_eq!(nodes.load_node(&root.0).unwrap().level(), 1);
    assert_eq!(root.0.to_string(), ROOT_10_000);
}

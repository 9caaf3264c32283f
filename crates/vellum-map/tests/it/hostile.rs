//! Damaged and malicious trees: errors that name the node, no panic, no endless loop.

use std::collections::HashSet;

use vellum_map::{
    KeySpan, MapError, MapNode, MapRoot, MemoryNodeStore, NodeSink, apply_changes, diff_maps, get_value,
    read_range, walk_nodes,
};
use vellum_types::codec::FieldWriter;
use vellum_types::limits::KEY_MAX;
use vellum_types::{BlobId, ErrorKind};

use crate::support::{Random, TINY, build, key_of, numbered};

fn node(level: u8, entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_raw(b"VmNd").write_u8(1).write_u8(level).write_u32(entries.len() as u32);
    for (key, value) in entries {
        writer
            .write_varint(key.len() as u64)
            .write_varint(value.len() as u64)
            .write_raw(key)
            .write_raw(value);
    }
    writer.into_vec()
}

fn child(id: BlobId, count: u64) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_raw(id.as_bytes()).write_varint(count);
    writer.into_vec()
}

/// Does everything that can be done with a tree; the first error, if there is one.
fn exercise(nodes: &MemoryNodeStore, root: MapRoot) -> Result<(), MapError> {
    let other = build(TINY, nodes, &numbered((0..300).step_by(7)));
    let mut results = vec![
        get_value(nodes, &root, b"b").map(drop),
        get_value(nodes, &root, &key_of(150)).map(drop),
        read_range(nodes, &root, KeySpan::all_keys())
            .and_then(|mut range| range.try_for_each(|entry| entry.map(drop))),
        read_range(nodes, &root, KeySpan::from_start(b"b"))
            .and_then(|mut range| range.try_for_each(|entry| entry.map(drop))),
        diff_maps(nodes, &root, &other).try_for_each(|change| change.map(drop)),
        diff_maps(nodes, &other, &root).try_for_each(|change| change.map(drop)),
        walk_nodes(nodes, &root, |_, _| true, |_, _| Ok(())),
    ];
    for key in [&b""[..], b"a", b"b", b"c", &key_of(150), b"z"] {
        results.push(apply_changes(nodes, nodes, TINY, &root, [(key, Some(b"x"))]).map(drop));
        results.push(apply_changes(nodes, nodes, TINY, &root, [(key, None::<&[u8]>)]).map(drop));
    }
    results.into_iter().collect()
}

fn assert_refused(nodes: &MemoryNodeStore, root: BlobId) {
    let error = exercise(nodes, MapRoot(root)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_node_that_is_its_own_child() {
    let nodes = MemoryNodeStore::new();
    let id = BlobId([7; 32]);
    nodes.insert(id, &node(1, &[(b"b", &child(id, 1))]));
    assert_refused(&nodes, id);
    // At every level, in case one is special.
    for level in [0, 2, 31, 32, 255] {
        nodes.insert(id, &node(level, &[(b"b", &child(id, 1))]));
        let _ = exercise(&nodes, MapRoot(id));
    }
}

#[test]
fn children_that_are_not_what_their_parent_says() {
    let nodes = MemoryNodeStore::new();
    let leaf = nodes.store_node(&node(0, &[(b"a", b"1"), (b"b", b"2")])).unwrap();
    let parent = |entries: &[(&[u8], &[u8])]| nodes.store_node(&node(1, entries)).unwrap();
    let good = parent(&[(b"b", &child(leaf, 2))]);
    exercise(&nodes, MapRoot(good)).unwrap();
    assert_refused(&nodes, parent(&[(b"c", &child(leaf, 2))]));
    assert_refused(&nodes, parent(&[(b"b", &child(leaf, 3))]));
    assert_refused(&nodes, parent(&[(b"b", &child(leaf, 0))]));
    assert_refused(&nodes, nodes.store_node(&node(2, &[(b"b", &child(leaf, 2))])).unwrap());
    let empty = nodes.store_node(&node(0, &[])).unwrap();
    assert_refused(&nodes, parent(&[(b"", &child(empty, 1))]));
}

/// Keys that overlap those of the sibling before, and of a cousin: order breaks between nodes only.
#[test]
fn subtrees_that_overlap() {
    let nodes = MemoryNodeStore::new();
    let put = |level, entries: &[(&[u8], &[u8])]| nodes.store_node(&node(level, entries)).unwrap();
    let low = put(0, &[(b"a", b""), (b"c", b"")]);
    let overlapping = put(0, &[(b"b", b""), (b"d", b"")]);
    assert_refused(&nodes, put(1, &[(b"c", &child(low, 2)), (b"d", &child(overlapping, 2))]));

    let left = put(1, &[(b"c", &child(low, 2))]);
    let right = put(1, &[(b"d", &child(overlapping, 2))]);
    assert_refused(&nodes, put(2, &[(b"c", &child(left, 2)), (b"d", &child(right, 2))]));
}

/// One node under many parents would make a small store an endless tree.
#[test]
fn a_shared_child_is_refused() {
    let nodes = MemoryNodeStore::new();
    let mut below = nodes.store_node(&node(0, &[(b"a", b"")])).unwrap();
    for level in 1..=31 {
        below = nodes
            .store_node(&node(level, &[(b"a", &child(below, 1 << (level - 1))), (b"b", &child(below, 1))]))
            .unwrap();
        assert_refused(&nodes, below);
    }
}

#[test]
fn fields_out_of_range() {
    let decode = |bytes: Vec<u8>| MapNode::decode(bytes).map(drop);
    decode(node(0, &[])).unwrap();
    decode(node(0, &[(b"", b"")])).unwrap();
    let id = BlobId([1; 32]);
    let bad = [
        node(1, &[]),
        node(32, &[(b"a", &child(id, 1))]),
        node(1, &[(b"a", b"short")]),
        node(1, &[(b"a", &[child(id, 1), vec![0]].concat())]),
        node(1, &[(b"a", &child(id, u64::MAX)), (b"b", &child(id, 1))]),
        node(0, &[(b"b", b""), (b"a", b"")]),
        node(0, &[(b"a", b""), (b"a", b"")]),
        node(0, &[(&[0; KEY_MAX + 1], b"")]),
        node(0, &[(b"a", &vec![0; 70_000])]),
        [node(0, &[(b"a", b"")]), vec![0]].concat(),
        [b"VmNd\x01\x00".to_vec(), vec![0xff; 4]].concat(),
        [b"VmNd\x01\x00".to_vec(), vec![1, 0, 0, 0], vec![0xff; 12]].concat(),
        // A length that is written longer than it must be.
        [b"VmNd\x01\x00".to_vec(), vec![1, 0, 0, 0, 0x81, 0, 0, b'a']].concat(),
        [b"VmNd\x02\x00".to_vec(), vec![0; 4]].concat(),
        [b"XmNd\x01\x00".to_vec(), vec![0; 4]].concat(),
        vec![0; 1 << 20],
    ];
    for (index, bytes) in bad.into_iter().enumerate() {
        assert!(decode(bytes).is_err(), "case {index}");
    }
}

/// Every node of a small tree is damaged in many ways, under its old id: what is not noticed is harmless.
#[test]
fn damaged_nodes_never_panic() {
    let clean = MemoryNodeStore::new();
    let root = build(TINY, &clean, &numbered(0..300));
    let mut ids = HashSet::new();
    let mut pages = Vec::new();
    walk_nodes::<_, _, _, MapError>(
        &clean,
        &root,
        |id, _| ids.insert(*id),
        |id, node| {
            pages.push((*id, node.as_bytes().to_vec()));
            Ok(())
        },
    )
    .unwrap();
    let mut random = Random(11);
    for (id, page) in &pages {
        for _ in 0..20 {
            let damaged = damage(page, &mut random, &pages);
            if let Ok(node) = MapNode::decode(damaged.clone()) {
                assert_eq!(node.as_bytes(), damaged);
            }
            clean.insert(*id, &damaged);
            let _ = exercise(&clean, root);
        }
        clean.insert(*id, page);
    }
    exercise(&clean, root).unwrap();
}

fn damage(page: &[u8], random: &mut Random, pages: &[(BlobId, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = page.to_vec();
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.push(random.next() as u8),
        4 => bytes.insert(at, random.next() as u8),
        _ => bytes.clone_from(&pages[random.below(pages.len() as u64) as usize].1),
    }
    bytes
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_node_decodes_or_errs() {
    let id = BlobId([9; 32]);
    let value = child(id, 300);
    for page in [node(0, &[(b"a", b"1"), (b"ab", &[5; 200])]), node(1, &[(b"a", &value), (b"b", &value)])] {
        for len in 0..page.len() {
            assert!(MapNode::decode(page[..len].to_vec()).is_err());
        }
        for bit in 0..page.len() * 8 {
            let mut bytes = page.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(node) = MapNode::decode(bytes.clone()) {
                // What it accepts, it has in one encoding only.
                let entries: Vec<_> = node.entries().collect();
                assert_eq!(self::node(node.level(), &entries), bytes);
            }
        }
    }
}

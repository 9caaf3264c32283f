//! Tests of search within a node.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::packer::NodePacker;
use crate::shape::MapShape;

fn leaf(keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> MapNode {
    let mut packer = NodePacker::new(MapShape::new(0), 0);
    for key in keys {
        packer.push_entry(key.as_ref(), b"v", 1);
    }
    MapNode::decode(packer.finish_node().to_vec()).unwrap()
}

/// Few letters and a frequent common start, so that heads and prefixes tie.
fn key() -> impl Strategy<Value = Vec<u8>> {
    (
        prop_oneof![Just(&b""[..]), Just(&b"commonstart"[..]), Just(&b"commonstarttoo"[..])],
        vec(0_u8..3, 0..12),
    )
        .prop_map(|(start, end)| [start, &end].concat())
}

proptest! {
    #[test]
    fn search_agrees_with_a_sorted_list(
        keys in btree_set(key(), 0..60),
        lookups in vec(key(), 0..40),
    ) {
        let node = leaf(&keys);
        let keys: Vec<_> = keys.into_iter().collect();
        for key in lookups.iter().chain(&keys) {
            prop_assert_eq!(node.lower_bound(key), keys.partition_point(|held| held < key));
            prop_assert_eq!(node.find_key(key), keys.binary_search(key).ok());
        }
    }

    #[test]
    fn any_bytes_decode_or_err(bytes in vec(any::<u8>(), 0..200)) {
        let framed = [MAGIC.as_slice(), &[VERSION, 0], &bytes].concat();
        let _ = MapNode::decode(bytes);
        let _ = MapNode::decode(framed);
    }
}

#[test]
fn the_longest_node_is_within_the_limit() {
    let mut packer = NodePacker::new(MapShape::new(0), 0);
    let mut number = 0_u64;
    // Fills it to the last byte below the maximum, whatever the rule says on the way.
    while packer.finish_node().len() < HEADER_LEN + (64 << 10) - 1 - 20 {
        packer.push_entry(&number.to_be_bytes(), &[0; 8], 1);
        number += 1;
    }
    let rest = HEADER_LEN + (64 << 10) - 1 - packer.finish_node().len() - 10;
    packer.push_entry(&number.to_be_bytes(), &vec![0; rest], 1);
    packer.push_entry(&[0xff; KEY_MAX], &vec![0; VALUE_MAX], 1);
    let bytes = packer.finish_node().to_vec();
    assert!(bytes.len() <= NODE_MAX && bytes.len() + 8 > NODE_MAX, "{}", bytes.len());
    assert!(MapNode::decode(bytes).is_ok());
}

//! Content and nodes, each within its own limit.

use super::*;

const MIB: u64 = 1 << 20;

/// Tells a cache that some packs hold nodes.
fn set_node_packs(cache: &PackCache, packs: &[u8]) {
    cache.set_node_packs(packs.iter().map(|pack| real_pack(*pack).0).collect());
}

/// Fetches so many pieces of a pack into a cache, but for the first one.
fn store_pack(cache: &PackCache, pack: u8, pieces: u64) {
    let bytes: Vec<u8> = (0..pieces).flat_map(|number| content(pack.into(), number, PIECE)).collect();
    cache.store_pieces(&real_pack(pack).1, 1, &bytes);
}

fn is_here(cache: &PackCache, pack: u8) -> bool {
    cache.read_piece(&real_pack(pack).1, 1).is_some()
}

#[test]
fn much_content_pushes_no_nodes_out() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 4 * MIB).unwrap();
    set_node_packs(&cache, &[1, 2, 3]);
    (1..=3).for_each(|pack| store_pack(&cache, pack, 4));
    for pack in 10..100 {
        store_pack(&cache, pack, 4);
        assert!(blocks_below(&cache.folder().join("packs")) <= 4 * MIB);
    }
    // Whoever does not know the index finds them, too.
    let other = PackCache::new(cache.folder());
    assert!((1..=3).all(|pack| is_here(&other, pack)));
    assert!(other.missing_pieces(&pieces_of(&[(1, 1), (3, 4)])).is_empty());
    let summary = other.summarize().unwrap();
    assert_eq!(summary.nodes.packs, 3);
    assert!(summary.nodes.bytes > 3 * MIB && summary.content.bytes <= 4 * MIB, "{summary:?}");
}

#[test]
fn too_many_nodes_push_only_nodes_out() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Nodes, 4 * MIB).unwrap();
    (1..=8).for_each(|pack| store_pack(&cache, pack, 2));
    let before = cache.summarize().unwrap().content;
    let nodes: Vec<u8> = (50..90).collect();
    set_node_packs(&cache, &nodes);
    for pack in nodes {
        store_pack(&cache, pack, 4);
        assert!(blocks_below(&cache.folder().join("nodes")) <= 4 * MIB);
    }
    assert!(is_here(&cache, 89) && !is_here(&cache, 50));
    assert!((1..=8).all(|pack| is_here(&cache, pack)));
    assert_eq!(cache.summarize().unwrap().content, before);
}

#[test]
fn the_smaller_of_two_limits_counts_whoever_set_it() {
    let (_dir, cache) = cache();
    let other = PackCache::new(cache.folder());
    set_node_packs(&cache, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for part in CachePart::ALL {
        cache.set_limit(part, 64 * MIB).unwrap();
        other.set_limit(part, 2 * MIB).unwrap();
    }
    (1..=8).chain(11..=18).for_each(|pack| store_pack(&cache, pack, 4));
    for folder in ["nodes", "packs"] {
        let bytes = blocks_below(&cache.folder().join(folder));
        assert!(bytes > MIB && bytes <= 2 * MIB, "{folder}: {bytes}");
    }
    cache.set_limit(CachePart::Nodes, 0).unwrap();
    store_pack(&other, 1, 1);
    let summary = other.summarize().unwrap();
    assert_eq!((summary.nodes.bytes, summary.nodes.limit), (0, 0));
    assert!(summary.content.bytes > MIB && summary.content.limit == 2 * MIB, "{summary:?}");
}

#[test]
fn a_file_from_when_nodes_were_not_apart_is_read() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 3 * MIB).unwrap();
    set_node_packs(&cache, &[1]);
    store_pack(&cache, 1, 2);
    store_pack(&cache, 2, 2);
    let file = cache.folder().join("usage");
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(24);
    fs::write(&file, bytes).unwrap();
    let summary = cache.summarize().unwrap();
    assert_eq!(summary.content.limit, 3 * MIB);
    assert!(summary.nodes.limit > 3 * MIB && summary.nodes.limit <= 2 << 30, "the default: {summary:?}");
    // Nobody counted the nodes, so they are counted.
    store_pack(&cache, 3, 1);
    cache.set_limit(CachePart::Nodes, 4 * MIB).unwrap();
    let used = super::super::usage::CacheUsage::read_used(cache.folder()).unwrap().nodes.unwrap();
    assert_eq!(used, cache.summarize().unwrap().nodes.bytes);
}

#[test]
fn what_was_written_here_is_known_by_its_first_bytes() {
    let (_dir, cache) = cache();
    for kind in [vellum_types::BlobKind::Node, vellum_types::BlobKind::Chunk] {
        let mut bytes = crate::pack::PackBuilder::new(kind).as_bytes().to_vec();
        bytes.resize(3000, 7);
        cache.store_pieces(&real_pack(kind.as_byte()).1, 0, &bytes);
    }
    let summary = cache.summarize().unwrap();
    assert_eq!((summary.content.packs, summary.nodes.packs), (1, 1));
    // What comes later goes where the first piece is, though this process does not know the index.
    store_pack(&cache, vellum_types::BlobKind::Node.as_byte(), 3);
    assert_eq!(cache.summarize().unwrap().content, summary.content);
    cache.forget_pack(&real_pack(vellum_types::BlobKind::Node.as_byte()).1);
    assert_eq!(cache.summarize().unwrap().nodes.packs, 0);
}

#[test]
fn pins_of_nodes_and_of_content_count_apart() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, MIB).unwrap();
    cache.set_limit(CachePart::Nodes, MIB).unwrap();
    set_node_packs(&cache, &[1]);
    let three = |pack| pieces_of(&[(pack, 0), (pack, 1), (pack, 2)]);
    let mut both = three(1);
    both.add_all(&three(2));
    assert!(cache.add_pin(&pin("both", both)).unwrap().is_enough());
    let content = cache.add_pin(&pin("content", three(3))).unwrap();
    assert!(!content.is_enough() && content.part == CachePart::Content, "{content:?}");
    set_node_packs(&cache, &[1, 4]);
    let nodes = cache.find_room(&three(4)).unwrap();
    assert!(!nodes.is_enough() && nodes.part == CachePart::Nodes, "{nodes:?}");
    assert!(nodes.pinned > 3 * PIECE && nodes.pinned < 4 * PIECE, "{nodes:?}");
    let pinned = cache.pinned_bytes().unwrap();
    assert_eq!(pinned.nodes, pinned.content);
}

#[test]
fn an_eviction_by_hand_takes_content_first() {
    let (_dir, cache) = cache();
    set_node_packs(&cache, &[1]);
    store_pack(&cache, 1, 4);
    (2..=5).for_each(|pack| store_pack(&cache, pack, 4));
    let nodes = cache.summarize().unwrap().nodes;
    cache.evict_down_to(nodes.bytes + MIB / 2).unwrap();
    let summary = cache.summarize().unwrap();
    assert_eq!((summary.nodes, summary.content.bytes), (nodes, 0));
    cache.evict_down_to(0).unwrap();
    assert_eq!(cache.summarize().unwrap().nodes.bytes, 0);
}

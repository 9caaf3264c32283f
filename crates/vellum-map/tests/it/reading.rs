//! Reading: spans, walks and the cache.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use vellum_map::{
    KeySpan, LoadBytes, MapError, MapNode, MemoryNodeStore, NodeCache, NodeSource, get_value, read_range,
    walk_nodes,
};
use vellum_types::BlobId;

use crate::support::{Counted, TINY, build, collect, key_of, numbered, read_all};

#[test]
fn spans_say_which_keys_belong_to_them() {
    assert_eq!(KeySpan::from_prefix([1, 0xff]), KeySpan::from_bounds([1, 0xff], [2]));
    assert_eq!(KeySpan::from_prefix([0xff, 0xff]), KeySpan::from_start([0xff, 0xff]));
    assert_eq!(KeySpan::from_prefix([]), KeySpan::all_keys());
    let span = KeySpan::from_prefix(b"a").after_key(b"ab");
    assert!(span.contains(b"ab\0") && !span.contains(b"ab") && !span.contains(b"b"));
    assert_eq!(KeySpan::from_prefix(b"b").after_key(b"a"), KeySpan::from_prefix(b"b"));
}

#[test]
fn a_map_is_split_into_spans_that_hold_each_key_once() {
    let nodes = MemoryNodeStore::new();
    for keys in [0, 1, 30, 2_000, 20_000] {
        let model = numbered(0..keys);
        let root = build(TINY, &nodes, &model);
        let children = nodes.load_node(&root.0).unwrap().children().count();
        for most in [1, 2, 3, 5, 16, 1_000] {
            let spans = KeySpan::split_map(&nodes, &root, most).unwrap();
            assert!(spans.len() <= most.min(children.max(1)), "{} spans of at most {most}", spans.len());
            // As evenly as whole children allow.
            assert!(spans.len() == 1 || children.div_ceil(spans.len()) <= 2 * children.div_ceil(most));
            // Also what this map does not hold belongs to one of them.
            assert_eq!((&spans[0].start[..], &spans[spans.len() - 1].end), (&[][..], &None));
            assert!(spans.is_sorted_by(|one, next| one.end.as_ref() == Some(&next.start)));
            let parts = spans.into_iter().map(|span| collect(read_range(&nodes, &root, span).unwrap()));
            let parts: Vec<_> = parts.flatten().collect();
            assert_eq!(parts, model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn borrowed_and_shared_scans_agree() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..2_000);
    let root = build(TINY, &nodes, &model);
    let span = KeySpan::from_bounds(key_of(500), key_of(1_500));
    let mut scan = read_range(&nodes, &root, span.clone()).unwrap();
    let mut borrowed = Vec::new();
    while let Some((key, value)) = scan.next_entry().unwrap() {
        borrowed.push((key.to_vec(), value.to_vec()));
    }
    assert_eq!(borrowed.len(), 1_000);
    assert_eq!(collect(read_range(&nodes, &root, span).unwrap()), borrowed.into_iter().collect());
}

#[test]
fn a_scan_of_few_keys_reads_few_nodes() {
    let nodes = MemoryNodeStore::new();
    let root = build(TINY, &nodes, &numbered(0..20_000));
    let source = Counted::new(&nodes);
    let height = usize::from(nodes.load_node(&root.0).unwrap().level()) + 1;
    assert_eq!(
        read_range(&source, &root, KeySpan::from_bounds(key_of(8_000), key_of(8_002))).unwrap().count(),
        2
    );
    assert!(source.reads.load(Ordering::Relaxed) <= height + 2);
}

#[test]
fn a_span_beyond_the_last_key_reads_no_node_but_the_root() {
    let nodes = MemoryNodeStore::new();
    let root = build(TINY, &nodes, &numbered(0..20_000));
    let source = Counted::new(&nodes);
    let read = |from: u64| {
        read_range(&source, &root, KeySpan::from_bounds(key_of(from), key_of(30_000))).unwrap().count()
    };
    assert_eq!(read(20_000), 0);
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
    assert_eq!(read(19_999), 1);
    let empty = build(TINY, &nodes, &numbered(0..0));
    assert_eq!(read_range(&source, &empty, KeySpan::all_keys()).unwrap().count(), 0);
}

#[test]
fn a_walk_visits_each_node_once_and_can_be_pruned() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..5_000);
    let root = build(TINY, &nodes, &model);
    let mut seen = HashSet::new();
    let mut keys = 0;
    walk_nodes::<_, _, _, MapError>(
        &nodes,
        &root,
        |_, _| true,
        |id, node| {
            assert!(seen.insert(*id));
            keys += if node.is_leaf() { node.len() } else { 0 };
            Ok(())
        },
    )
    .unwrap();
    assert_eq!((keys, seen.len()), (model.len(), nodes.len()));

    // A second map that shares most nodes: only the others are visited.
    let mut other = model.clone();
    other.remove(&key_of(2_500));
    let other = build(TINY, &nodes, &other);
    let before = seen.len();
    let source = Counted::new(&nodes);
    walk_nodes::<_, _, _, MapError>(&source, &other, |id, _| seen.insert(*id), |_, _| Ok(())).unwrap();
    assert_eq!(seen.len(), nodes.len());
    assert_eq!(source.reads(), nodes.len() - before);

    // Without leaves, by their level.
    let mut levels = HashSet::new();
    let above = |_: &BlobId, level: Option<u8>| level != Some(0);
    walk_nodes::<_, _, _, MapError>(&nodes, &root, above, |_, node| {
        levels.insert(node.level());
        Ok(())
    })
    .unwrap();
    assert!(!levels.contains(&0) && levels.contains(&1));
}

#[test]
fn a_cache_loads_once_and_stays_in_its_bounds() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..20_000);
    let root = build(TINY, &nodes, &model);
    let cache = NodeCache::new(&nodes, 1 << 30);
    assert_eq!(read_all(&cache, &root), model);
    // All is cached: the loader may now be empty.
    assert!(cache.memory_size() > 0);
    let first = cache.load_node(&root.0).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &cache.load_node(&root.0).unwrap()));

    let small = NodeCache::new(&nodes, 100_000);
    assert_eq!(read_all(&small, &root), model);
    assert!(small.memory_size() <= 100_000, "{}", small.memory_size());
    assert_eq!(*get_value(&small, &root, &key_of(5)).unwrap().unwrap(), *model[&key_of(5)]);
}

#[test]
fn a_cache_passes_hints_on_for_what_it_lacks() {
    struct Hinted<'a>(&'a MemoryNodeStore, parking_lot::Mutex<Vec<BlobId>>);
    impl LoadBytes for Hinted<'_> {
        fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
            self.0.load_bytes(id)
        }
        fn prefetch_bytes(&self, ids: &[BlobId]) {
            self.1.lock().extend_from_slice(ids);
        }
    }
    let nodes = MemoryNodeStore::new();
    let root = build(TINY, &nodes, &numbered(0..1_000));
    let cache = NodeCache::new(Hinted(&nodes, parking_lot::Mutex::default()), 1 << 30);
    let walk_all = || walk_nodes::<_, _, _, MapError>(&cache, &root, |_, _| true, |_, _| Ok(())).unwrap();
    walk_all();
    walk_all();
    assert_eq!(cache.loader().1.lock().len(), nodes.len() - 1);
}

#[test]
fn a_missing_node_is_named() {
    let nodes = MemoryNodeStore::new();
    let root = build(TINY, &nodes, &numbered(0..10));
    let error = get_value(&MemoryNodeStore::new(), &root, b"x").unwrap_err();
    assert_eq!(error.kind(), vellum_types::ErrorKind::NotFound);
    assert!(error.to_string().contains(&root.0.to_string()));
    assert!(MapNode::decode(Vec::new()).is_err());
}

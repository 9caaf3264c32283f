//! Small changes cost little: how many nodes are read and written, counted.

use vellum_map::{
    KeySpan, MapRoot, MemoryNodeStore, NodeSource, apply_changes, diff_maps, diff_maps_in_span, walk_nodes,
};

use crate::support::{Counted, Model, SMALL, STANDARD, build, key_of, numbered, value_of};

fn height(nodes: &MemoryNodeStore, root: &MapRoot) -> usize {
    usize::from(nodes.load_node(&root.0).unwrap().level()) + 1
}

#[test]
fn one_change_reads_and_writes_a_path() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..30_000);
    let root = build(SMALL, &nodes, &model);
    let height = height(&nodes, &root);
    assert!(height >= 4, "{height}");
    let mut reads = 0;
    let mut writes = 0;
    for number in (0..30_000).step_by(300) {
        let count = nodes.len();
        let source = Counted::new(&nodes);
        let change = [(key_of(number), Some(b"new".as_slice()))];
        apply_changes(&source, &nodes, SMALL, &root, change).unwrap();
        reads += source.reads();
        writes += nodes.len() - count;
    }
    // A level's path is a path of its own, hence the square; a value of another size moves a boundary now and
    // then. The averages are over 100 changes.
    assert!(reads < 100 * height * height, "{reads}");
    assert!(writes < 100 * (2 * height), "{writes}");
}

#[test]
fn a_value_of_equal_size_moves_no_boundary() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..50_000);
    let root = build(STANDARD, &nodes, &model);
    let count = nodes.len();
    apply_changes(&nodes, &nodes, STANDARD, &root, [(key_of(777), Some(value_of(1)))]).unwrap();
    assert_eq!(nodes.len() - count, height(&nodes, &root));
}

#[test]
fn a_diff_reads_only_what_differs() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..30_000);
    let a = build(SMALL, &nodes, &model);
    let height = height(&nodes, &a);
    let mut reads = 0;
    for number in (0..30_000).step_by(300) {
        // Removing a key that ends a node shifts boundaries: all keys get their turn as good as any.
        let b = apply_changes(&nodes, &nodes, SMALL, &a, [(key_of(number), None::<&[u8]>)]).unwrap();
        let source = Counted::new(&nodes);
        let changes: Vec<_> = diff_maps(&source, &a, &b).map(|change| change.unwrap()).collect();
        assert_eq!(changes.len(), 1);
        assert_eq!(*changes[0].key, *key_of(number));
        reads += source.reads();
    }
    assert!(reads < 100 * 4 * height, "{reads} reads for 100 diffs of height {height}");
}

#[test]
fn a_diff_of_a_span_reads_nothing_beyond_it() {
    let nodes = MemoryNodeStore::new();
    let a = build(SMALL, &nodes, &numbered(0..30_000));
    let height = height(&nodes, &a);
    let everything: Vec<_> = (0..30_000).map(key_of).collect();
    let changes = everything.iter().map(|key| (key, Some(b"changed".as_slice())));
    let b = apply_changes(&nodes, &nodes, SMALL, &a, changes).unwrap();
    let source = Counted::new(&nodes);
    let span = KeySpan::from_bounds(key_of(14_000), key_of(14_001));
    assert_eq!(diff_maps_in_span(&source, &a, &b, span).count(), 1);
    assert!(source.reads() <= 4 * height, "{} reads at height {height}", source.reads());
}

/// Every node's last key in turn is removed: boundaries shift at each level.
#[test]
fn a_diff_skips_equal_nodes_where_boundaries_shifted() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..3_000);
    let a = build(SMALL, &nodes, &model);
    let height = height(&nodes, &a);
    let mut last_keys = Vec::new();
    walk_nodes::<_, _, _, vellum_map::MapError>(
        &nodes,
        &a,
        |_, _| true,
        |_, node| {
            last_keys.push(node.last_key().unwrap().to_vec());
            Ok(())
        },
    )
    .unwrap();
    for key in last_keys {
        let b = apply_changes(&nodes, &nodes, SMALL, &a, [(&key, None::<&[u8]>)]).unwrap();
        let source = Counted::new(&nodes);
        assert_eq!(diff_maps(&source, &a, &b).count(), 1);
        assert!(source.reads() < 12 * height, "{} reads at height {height}", source.reads());
    }
}

/// One map is a small part of the other, so that one tree is taller: the common part is still not read.
#[test]
fn a_diff_skips_equal_nodes_of_trees_of_different_heights() {
    let nodes = MemoryNodeStore::new();
    let whole = build(SMALL, &nodes, &numbered(0..20_000));
    for part in [10_000, 3_000, 1_000] {
        let start = build(SMALL, &nodes, &numbered(0..part));
        let end = build(SMALL, &nodes, &numbered(20_000 - part..20_000));
        for other in [start, end] {
            let source = Counted::new(&nodes);
            assert_eq!(diff_maps(&source, &whole, &other).count() as u64, 20_000 - part);
            let outside = walk_count(&nodes, &whole) - walk_count(&nodes, &other);
            let allowed = outside + 16 * height(&nodes, &whole);
            assert!(source.reads() <= allowed, "{} reads, {allowed} allowed", source.reads());
        }
    }
}

fn walk_count(nodes: &MemoryNodeStore, root: &MapRoot) -> usize {
    let mut count = 0;
    walk_nodes::<_, _, _, vellum_map::MapError>(
        nodes,
        root,
        |_, _| true,
        |_, _| {
            count += 1;
            Ok(())
        },
    )
    .unwrap();
    count
}

#[test]
fn equal_roots_are_compared_unread() {
    let nodes = MemoryNodeStore::new();
    let root = build(SMALL, &nodes, &numbered(0..100));
    let nothing = MemoryNodeStore::new();
    assert_eq!(diff_maps(&nothing, &root, &root).count(), 0);
}

/// The mean size is what the rule says, for small entries and for large ones.
#[test]
fn nodes_have_the_size_that_the_shape_says() {
    for value_len in [10, 40, 400] {
        let nodes = MemoryNodeStore::new();
        let model: Model =
            (0..2_000_000 / value_len).map(|number| (key_of(number), vec![1; value_len as usize])).collect();
        let root = build(STANDARD, &nodes, &model);
        let mut bytes = 0;
        let mut leaves = 0;
        walk_nodes::<_, _, _, vellum_map::MapError>(
            &nodes,
            &root,
            |_, _| true,
            |_, node| {
                if node.is_leaf() {
                    leaves += 1;
                    bytes += node.as_bytes().len();
                }
                Ok(())
            },
        )
        .unwrap();
        let mean = bytes / leaves;
        assert!((14_000..19_000).contains(&mean), "{mean} bytes with values of {value_len}");
    }
}

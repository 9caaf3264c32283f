//! Equal maps have equal roots, whatever way led to them.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use vellum_map::{MapBuilder, MapError, MemoryNodeStore, NodeSink, apply_changes};
use vellum_types::{BlobId, ErrorKind};

use crate::support::{Model, STANDARD, TINY, build, numbered, read_all};

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..4), vec(0_u8..2, 0..12), vec(any::<u8>(), 9..30)]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 0..2_000)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn applied_in_any_grouping(
        batches in vec(btree_map(key(), proptest::option::of(value()), 0..60), 0..8),
    ) {
        let nodes = MemoryNodeStore::new();
        let mut model = Model::new();
        let mut root = build(TINY, &nodes, &model);
        for batch in batches {
            root = apply_changes(&nodes, &nodes, TINY, &root, batch_refs(&batch)).unwrap();
            for (key, value) in batch {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
            prop_assert_eq!(root, build(TINY, &nodes, &model));
        }
        prop_assert_eq!(read_all(&nodes, &root), model);
    }

    #[test]
    fn added_one_by_one_in_any_order(entries in btree_map(key(), value(), 1..80).prop_shuffle_keys()) {
        let (model, order) = entries;
        let nodes = MemoryNodeStore::new();
        let mut root = build(TINY, &nodes, &Model::new());
        for key in &order {
            root = apply_changes(&nodes, &nodes, TINY, &root, [(key, Some(&model[key]))]).unwrap();
        }
        prop_assert_eq!(root, build(TINY, &nodes, &model));
        let empty = build(TINY, &nodes, &Model::new());
        for key in &order {
            root = apply_changes(&nodes, &nodes, TINY, &root, [(key, None::<&[u8]>)]).unwrap();
        }
        prop_assert_eq!(root, empty);
    }
}

fn batch_refs(batch: &std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Vec<(&[u8], Option<&[u8]>)> {
    batch.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect()
}

/// Pairs a map with its keys in a random order.
trait ShuffleKeys: Strategy<Value = Model> + Sized {
    fn prop_shuffle_keys(self) -> impl Strategy<Value = (Model, Vec<Vec<u8>>)> {
        self.prop_flat_map(|model| {
            let keys: Vec<_> = model.keys().cloned().collect();
            (Just(model), Just(keys).prop_shuffle())
        })
    }
}

impl<T: Strategy<Value = Model>> ShuffleKeys for T {}

/// Removes all keys but one in one go, and all: the tree loses several levels at once.
#[test]
fn a_tall_tree_falls_to_one_leaf() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..3_000);
    let root = build(TINY, &nodes, &model);
    for left in [0, 1_500, 2_999, 3_000] {
        let removals = model.keys().enumerate().filter(|(index, _)| *index != left);
        let removals = removals.map(|(_, key)| (key, None::<&[u8]>));
        let expected = numbered((left < 3_000).then_some(left as u64).into_iter());
        let shrunk = apply_changes(&nodes, &nodes, TINY, &root, removals).unwrap();
        assert_eq!(shrunk, build(TINY, &nodes, &expected));
    }
}

#[test]
fn changes_that_change_nothing_store_nothing() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..20_000);
    let root = build(STANDARD, &nodes, &model);
    let count = nodes.len();
    let same = model.iter().map(|(key, value)| (key, Some(value)));
    assert_eq!(apply_changes(&nodes, &nodes, STANDARD, &root, same).unwrap(), root);
    let absent = numbered(20_000..21_000);
    let absent = absent.keys().map(|key| (key, None::<&[u8]>));
    assert_eq!(apply_changes(&nodes, &nodes, STANDARD, &root, absent).unwrap(), root);
    assert_eq!(nodes.len(), count);
}

#[test]
fn another_seed_gives_other_boundaries() {
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..5_000);
    let other = vellum_map::MapShape::new(8);
    assert_ne!(build(STANDARD, &nodes, &model), build(other, &nodes, &model));
}

#[test]
fn disorder_and_excess_are_refused() {
    let nodes = MemoryNodeStore::new();
    let mut builder = MapBuilder::new(TINY, &nodes);
    builder.push_entry(b"b", b"").unwrap();
    assert!(matches!(builder.push_entry(b"b", b""), Err(MapError::Unsorted)));
    assert!(matches!(builder.push_entry(b"a", b""), Err(MapError::Unsorted)));
    assert!(matches!(builder.push_entry(&[b'x'; 265], b""), Err(MapError::KeyTooLong(265))));
    assert!(matches!(builder.push_entry(b"c", &vec![0; 70_000]), Err(MapError::ValueTooLong(70_000))));
}

/// The largest entries that the limits allow, in a row and alone.
#[test]
fn the_largest_entries_fit() {
    use vellum_types::limits::{KEY_MAX, VALUE_MAX};
    let nodes = MemoryNodeStore::new();
    let large = |byte: u8| (vec![byte; KEY_MAX], vec![byte; VALUE_MAX]);
    let mut model: Model = (0..40).map(large).collect();
    for (key, value) in numbered(0..3_000) {
        model.insert([&[3], key.as_slice()].concat(), value);
    }
    let root = build(STANDARD, &nodes, &model);
    assert_eq!(read_all(&nodes, &root), model);
}

/// A sink that fails once, at any of its calls: there is no root of half a map, also if the caller goes on.
#[test]
fn a_failed_put_gives_no_root() {
    struct Failing<'a>(&'a MemoryNodeStore, std::sync::atomic::AtomicI32);
    impl NodeSink for Failing<'_> {
        fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
            if self.1.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                return Err(MapError::from_store_failure(ErrorKind::NoSpace, "full"));
            }
            self.0.store_node(bytes)
        }
    }
    let nodes = MemoryNodeStore::new();
    let model = numbered(0..200);
    let whole = build(TINY, &nodes, &model);
    let calls = nodes.len() as i32;
    for fails_at in 0..calls {
        let sink = Failing(&nodes, fails_at.into());
        let mut builder = MapBuilder::new(TINY, &sink);
        let failed = model.iter().filter(|(key, value)| builder.push_entry(key, value).is_err()).count();
        let finished = builder.finish_tree();
        assert!(failed > 0 || finished.is_err());
        assert!(finished.is_err(), "call {fails_at}");
    }
    let sink = Failing(&nodes, calls.into());
    let mut builder = MapBuilder::new(TINY, &sink);
    model.iter().for_each(|(key, value)| builder.push_entry(key, value).unwrap());
    assert_eq!(builder.finish_tree().unwrap(), whole);
}

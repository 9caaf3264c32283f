//! A long random run against a `BTreeMap`: layers, folds, applies, diffs and reads in any order.
//!
//! `VELLUM_MAP_SEED` and `VELLUM_MAP_OPERATIONS` repeat or lengthen it; every failure names its seed.

use std::sync::Arc;

use vellum_map::{
    ChangeLayer, KeySpan, MapRoot, MapShape, MapView, MemoryNodeStore, apply_changes, count_keys, diff_maps,
    diff_maps_in_span,
};

use crate::support::{Model, Random, STANDARD, TINY, build, collect};

/// How many operations each CI run does at least, over all shapes.
const OPERATIONS: u64 = 150_000;

#[test]
fn random_operations_agree_with_a_btree() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let seed = setting("VELLUM_MAP_SEED", 20_260_704);
    let operations = setting("VELLUM_MAP_OPERATIONS", OPERATIONS);
    println!("VELLUM_MAP_SEED={seed}");
    let runs =
        [(TINY, 600, 10), (TINY, 40, 30), (MapShape::with_sizes(1, 1, 2, 3), 200, 4), (STANDARD, 3_000, 60)];
    for (shape, universe, value_max) in runs {
        let share = operations / runs.len() as u64 + 1;
        Run::new(shape, Random(seed), universe, value_max).play(share);
    }
}

struct Run {
    shape: MapShape,
    random: Random,
    /// How many different keys there are.
    universe: u64,
    value_max: u64,
    nodes: MemoryNodeStore,
    view: MapView,
    /// The newest layer, not yet in the view.
    top: ChangeLayer,
    model: Model,
    /// Some earlier states.
    kept: Vec<(MapRoot, Model)>,
}

impl Run {
    fn new(shape: MapShape, random: Random, universe: u64, value_max: u64) -> Self {
        let nodes = MemoryNodeStore::new();
        let root = build(shape, &nodes, &Model::new());
        let kept = vec![(root, Model::new())];
        let model = Model::new();
        let top = ChangeLayer::new();
        Self { shape, random, universe, value_max, nodes, view: MapView::new(root), top, model, kept }
    }

    fn play(&mut self, operations: u64) {
        let mut grow = true;
        for step in 0..operations {
            // Phases of growth and of shrinking, down to nothing, so that heights rise and fall.
            if step % 4_000 == 0 {
                grow = !grow || self.model.is_empty();
            }
            match self.random.below(1_000) {
                0..=699 => self.change(grow),
                700..=899 => self.look(),
                900..=969 => self.scan(),
                970..=984 => self.seal(),
                985..=992 => self.fold(),
                993..=997 => self.apply_batch(grow),
                _ => self.compare(),
            }
        }
        self.fold();
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(self.universe);
        // Lengths differ, keys are prefixes of others, and one is empty.
        let mut key = format!("{:x}", number.wrapping_mul(0x9e37_79b9) % (self.universe * 16)).into_bytes();
        key.truncate(number as usize % 7);
        key.extend_from_slice(&number.to_be_bytes()[6..][..(number % 3) as usize]);
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let rare = self.random.below(200) == 0;
        let max = if rare { 40 * self.value_max } else { self.value_max };
        let len = self.random.below(max + 1);
        self.random.bytes(len)
    }

    fn random_change(&mut self, grow: bool) -> (Vec<u8>, Option<Vec<u8>>) {
        let key = self.key();
        let put = self.random.below(10) < if grow { 8 } else { 2 };
        (key, put.then(|| self.value()))
    }

    fn change(&mut self, grow: bool) {
        let (key, value) = self.random_change(grow);
        match value {
            Some(value) => {
                self.top.set_key(&key, value.as_slice());
                self.model.insert(key, value);
            }
            None => {
                self.top.delete_key(&key);
                self.model.remove(&key);
            }
        }
    }

    /// The state as a view with the newest layer on top.
    fn state(&self) -> MapView {
        let mut view = self.view.clone();
        view.layers.insert(0, Arc::new(self.top.clone()));
        view
    }

    fn look(&mut self) {
        let key = self.key();
        let held = match self.top.get(&key) {
            Some(change) => change.map(|value| value.to_vec()),
            None => self.view.get_value(&self.nodes, &key).unwrap().map(|value| value.to_vec()),
        };
        assert_eq!(held.as_ref(), self.model.get(&key));
    }

    fn random_span(&mut self) -> KeySpan {
        let a = self.key();
        let b = self.key();
        match self.random.below(4) {
            0 => KeySpan::all_keys(),
            1 => KeySpan::from_prefix(&a),
            2 => KeySpan::from_start(&a),
            _ => KeySpan::from_bounds(&a, &b),
        }
    }

    fn scan(&mut self) {
        let span = self.random_span();
        let expected: Model = self
            .model
            .iter()
            .filter(|(key, _)| span.contains(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let state = self.state();
        let found: Vec<_> =
            state.read_range(&self.nodes, span).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(found.is_sorted_by(|a, b| *a.key < *b.key));
        assert_eq!(collect(found.into_iter().map(Ok)), expected);
    }

    fn seal(&mut self) {
        let layer = std::mem::take(&mut self.top);
        self.view.layers.insert(0, Arc::new(layer));
    }

    /// Whatever happened, the folded root is that of a fresh build.
    fn fold(&mut self) {
        self.seal();
        let changes = self.view.changes_in_span(&KeySpan::all_keys());
        let root = apply_changes(&self.nodes, &self.nodes, self.shape, &self.view.base, changes).unwrap();
        self.settle(root);
    }

    fn apply_batch(&mut self, grow: bool) {
        self.fold();
        let count = self.random.below(self.universe);
        let batch: std::collections::BTreeMap<_, _> = (0..count).map(|_| self.random_change(grow)).collect();
        let root =
            apply_changes(&self.nodes, &self.nodes, self.shape, &self.view.base, batch_of(&batch)).unwrap();
        for (key, value) in batch {
            match value {
                Some(value) => self.model.insert(key, value),
                None => self.model.remove(&key),
            };
        }
        self.settle(root);
    }

    fn settle(&mut self, root: MapRoot) {
        assert_eq!(root, build(self.shape, &self.nodes, &self.model));
        assert_eq!(count_keys(&self.nodes, &root).unwrap(), self.model.len() as u64);
        self.view = MapView::new(root);
        if self.kept.len() > 8 {
            let index = self.random.below(8) as usize;
            self.kept.swap_remove(index);
        }
        self.kept.push((root, self.model.clone()));
    }

    fn compare(&mut self) {
        let count = self.kept.len() as u64;
        let a = self.random.below(count) as usize;
        let b = self.random.below(count) as usize;
        let span = self.random_span();
        let (a, before) = &self.kept[a];
        let (b, after) = &self.kept[b];
        let changes: Vec<_> = diff_maps(&self.nodes, a, b).map(|change| as_owned(&change.unwrap())).collect();
        let mut expected = model_diff(before, after);
        assert_eq!(changes, expected);
        let within: Vec<_> = diff_maps_in_span(&self.nodes, a, b, span.clone())
            .map(|change| as_owned(&change.unwrap()))
            .collect();
        expected.retain(|(key, ..)| span.contains(key));
        assert_eq!(within, expected);
    }
}

type OwnedChange = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn batch_of(batch: &std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Vec<(&[u8], Option<&[u8]>)> {
    batch.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect()
}

fn as_owned(change: &vellum_map::MapChange) -> OwnedChange {
    let owned = |value: &Option<vellum_map::MapValue>| value.as_ref().map(|value| value.to_vec());
    (change.key.to_vec(), owned(&change.before), owned(&change.after))
}

fn model_diff(before: &Model, after: &Model) -> Vec<OwnedChange> {
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .map(|key| (key.clone(), before.get(key).cloned(), after.get(key).cloned()))
        .filter(|(_, before, after)| before != after)
        .collect()
}

//! What these tests share: shapes, a seeded generator, a source that counts, conversions to the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vellum_map::{
    KeySpan, MapBuilder, MapError, MapNode, MapRoot, MapShape, MemoryNodeStore, NodeSource, read_range,
};
use vellum_types::BlobId;

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Nodes of a few entries: deep trees of few keys, and boundaries everywhere.
pub const TINY: MapShape = MapShape::with_sizes(7, 40, 120, 400);
/// A tenth of the standard sizes: heights of a few levels, and inner nodes of a dozen children.
pub const SMALL: MapShape = MapShape::with_sizes(7, 200, 800, 3_200);
pub const STANDARD: MapShape = MapShape::new(7);

/// SplitMix64: random enough, and its seed can be printed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

pub fn build(shape: MapShape, nodes: &MemoryNodeStore, model: &Model) -> MapRoot {
    let mut builder = MapBuilder::new(shape, nodes);
    for (key, value) in model {
        builder.push_entry(key, value).unwrap();
    }
    builder.finish_tree().unwrap()
}

pub fn read_all<S: NodeSource>(source: &S, root: &MapRoot) -> Model {
    collect(read_range(source, root, KeySpan::all_keys()).unwrap())
}

pub fn collect(entries: impl Iterator<Item = Result<vellum_map::MapEntry, MapError>>) -> Model {
    entries.map(|entry| entry.unwrap()).map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect()
}

/// Numbered keys of 17 bytes with values that depend on the number.
pub fn numbered(numbers: impl Iterator<Item = u64>) -> Model {
    numbers.map(|number| (key_of(number), value_of(number))).collect()
}

pub fn key_of(number: u64) -> Vec<u8> {
    let mut key = (number / 8).to_be_bytes().to_vec();
    key.push(3);
    key.extend_from_slice(&(number % 8 * 65_536).to_be_bytes());
    key
}

pub fn value_of(number: u64) -> Vec<u8> {
    Random(number).bytes(40)
}

/// Counts the nodes that are read.
pub struct Counted<'a> {
    pub nodes: &'a MemoryNodeStore,
    pub reads: AtomicUsize,
}

impl<'a> Counted<'a> {
    pub fn new(nodes: &'a MemoryNodeStore) -> Self {
        Self { nodes, reads: AtomicUsize::new(0) }
    }

    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl NodeSource for Counted<'_> {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.nodes.load_node(id)
    }
}

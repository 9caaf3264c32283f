//! The map that is measured: entries that look like extents, eight for each file.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_benchkit::random_bytes;
use vellum_map::{
    KeySpan, LoadBytes, MapBuilder, MapError, MapRoot, MapShape, MemoryNodeStore, NodeCache, NodeSink,
    NodeSource, read_range,
};
use vellum_types::BlobId;

pub const SHAPE: MapShape = MapShape::new(0x5eed);
/// Room for every node of ten million keys.
pub const CACHE: u64 = 8 << 30;

/// A base that is built when the first bench that needs it runs.
pub type Lazy<F> = LazyCell<Base, F>;

/// A map of every second key, so that there are absent ones between.
pub struct Base {
    pub keys: u64,
    pub nodes: Arc<Metered>,
    pub cache: NodeCache<Arc<Metered>>,
    pub root: MapRoot,
}

impl Base {
    pub fn build_map(keys: u64) -> Self {
        let nodes = Arc::new(Metered::default());
        let mut builder = MapBuilder::new(SHAPE, &*nodes);
        for number in 0..keys {
            builder
                .push_entry(&new_bench_key(2 * number), &new_bench_value(number))
                .expect("memory takes nodes");
        }
        let root = builder.finish_tree().expect("memory takes nodes");
        let cache = NodeCache::new(Arc::clone(&nodes), CACHE);
        Self { keys, nodes, cache, root }
    }

    /// The same with every node in the cache, whichever benches run before.
    pub fn build_cached(keys: u64) -> Self {
        let base = Self::build_map(keys);
        base.scan_all(&base.cache);
        base
    }

    /// Reads every entry.
    pub fn scan_all(&self, source: &impl NodeSource) {
        let mut scan = read_range(source, &self.root, KeySpan::all_keys()).expect("the root is there");
        let mut count = 0;
        while scan.next_entry().expect("nodes are there").is_some() {
            count += 1;
        }
        assert_eq!(count, self.keys);
    }
}

pub fn new_bench_key(number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.extend_from_slice(&(number / 8).to_be_bytes());
    key.push(3);
    key.extend_from_slice(&(number % 8 * 65_536).to_be_bytes());
    key
}

pub fn new_bench_value(number: u64) -> Vec<u8> {
    random_bytes(number, 40)
}

/// Counts nodes and bytes written.
#[derive(Default)]
pub struct Metered {
    nodes: MemoryNodeStore,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Metered {
    /// What was written since the last call: nodes and bytes.
    pub fn take_counts(&self) -> (u64, u64) {
        (self.count.swap(0, Ordering::Relaxed), self.bytes.swap(0, Ordering::Relaxed))
    }
}

impl NodeSink for Metered {
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.nodes.store_node(bytes)
    }
}

impl LoadBytes for Metered {
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        self.nodes.load_bytes(id)
    }
}

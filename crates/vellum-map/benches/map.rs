//! What the map costs at ten million keys: `cargo bench -p vellum-map`.
//!
//! Keys have 17 bytes, values 40; nodes are in memory and in the cache. `VELLUM_BENCH_KEYS` sets another size.
//! Figures are the best of a few rounds, in processor time of the one thread that works: the machine's other work
//! is not the map's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vellum_map::{
    Builder, LoadBytes, MapError, MemoryNodes, NodeCache, NodeSink, Root, Shape, Span, apply, diff, get,
    range,
};
use vellum_types::BlobId;

const SHAPE: Shape = Shape::new(0x5eed);
const ROUNDS: usize = 5;

type Part = fn(&Bench);

/// A key and its new value, or None to remove it.
type Edit = (Vec<u8>, Option<Vec<u8>>);

fn main() {
    let keys = std::env::var("VELLUM_BENCH_KEYS").map_or(10_000_000, |text| text.parse().expect("a number"));
    let bench = Bench::build(keys);
    measure_memory();
    bench.scan();
    let parts: [(&str, Part); 5] = [
        ("get", Bench::point_gets),
        ("clustered", Bench::apply_clustered),
        ("scattered", Bench::apply_scattered),
        ("diff", Bench::diffs),
        ("btree", Bench::btree_gets),
    ];
    // `cargo bench` passes `--bench`; other arguments name the parts to run.
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part(&bench);
        }
    }
}

struct Bench {
    keys: u64,
    nodes: Arc<Metered>,
    cache: NodeCache<Arc<Metered>>,
    root: Root,
}

impl Bench {
    fn build(keys: u64) -> Self {
        let nodes = Arc::new(Metered::default());
        let start = busy();
        let mut builder = Builder::new(SHAPE, &*nodes);
        for number in 0..keys {
            builder.push(&key(2 * number), &value(number)).expect("memory takes nodes");
        }
        let root = builder.finish().expect("memory takes nodes");
        let took = busy() - start;
        let (count, bytes) = nodes.take();
        println!("build: {keys} keys in {took:.2?}, {count} nodes of {} bytes", bytes / count);
        let cache = NodeCache::new(Arc::clone(&nodes), 8 << 30);
        Self { keys, nodes, cache, root }
    }

    fn scan(&self) {
        for temperature in ["cold", "warm"] {
            let start = busy();
            let mut scan = range(&self.cache, &self.root, Span::all()).expect("the root is there");
            let mut count = 0_u64;
            while scan.step().expect("nodes are there").is_some() {
                count += 1;
            }
            let rate = count as f64 / (busy() - start).as_secs_f64() / 1e6;
            println!("scan, {temperature}: {rate:.1} M keys/s ({} MB cached)", self.cache.weight() >> 20);
        }
    }

    fn point_gets(&self) {
        let count = 1_000_000;
        let mut random = Random(1);
        let everywhere: Vec<_> = (0..count).map(|_| key(2 * random.below(self.keys))).collect();
        let near: Vec<_> = (0..count)
            .map(|index| key(2 * ((index / 100 * 7_919_993 + random.below(1_000)) % self.keys)))
            .collect();
        let absent: Vec<_> = (0..count).map(|_| key(2 * random.below(self.keys) + 1)).collect();
        for (name, keys, found) in
            [("anywhere", everywhere, count), ("100 near each other", near, count), ("absent", absent, 0)]
        {
            let took = best(|| {
                let held =
                    |key: &Vec<u8>| get(&self.cache, &self.root, key).expect("nodes are there").is_some();
                assert_eq!(keys.iter().filter(|key| held(key)).count() as u64, found);
            });
            println!("get, warm, {name}: {:.2} M/s", count as f64 / took.as_secs_f64() / 1e6);
        }
    }

    /// The same gets from the standard library's map of the same entries, all in memory.
    fn btree_gets(&self) {
        let map: BTreeMap<_, _> = (0..self.keys).map(|number| (key(2 * number), value(number))).collect();
        let mut random = Random(1);
        let count = 1_000_000;
        let keys: Vec<_> = (0..count).map(|_| key(2 * random.below(self.keys))).collect();
        let took = best(|| assert!(keys.iter().all(|key| map.contains_key(key))));
        println!("get from a BTreeMap, anywhere: {:.2} M/s", count as f64 / took.as_secs_f64() / 1e6);
    }

    fn apply_clustered(&self) {
        for (clusters, per_cluster) in [(1, 300_000), (1_000, 300), (10_000, 30)] {
            let mut edits = Vec::new();
            for cluster in 0..clusters {
                let start = cluster * (self.keys / clusters);
                edits.extend((start..start + per_cluster).map(|number| self.edit(number, number)));
            }
            self.measure_apply(&format!("{clusters} clusters of {per_cluster}"), &edits);
        }
    }

    fn apply_scattered(&self) {
        for count in [100, 3_000, 30_000, 300_000] {
            let edits = self.scattered(count);
            self.measure_apply(&format!("{} scattered", edits.len()), &edits);
        }
    }

    /// Half are new values of old keys, the others new keys and removals in turns.
    fn edit(&self, number: u64, turn: u64) -> Edit {
        let number = number % self.keys;
        match turn % 4 {
            0 | 1 => (key(2 * number), Some(value(number + 1))),
            2 => (key(2 * number + 1), Some(value(number + 2))),
            _ => (key(2 * number), None),
        }
    }

    fn scattered(&self, count: u64) -> Vec<Edit> {
        let mut random = Random(2);
        let mut edits: Vec<_> = (0..count).map(|turn| self.edit(random.below(self.keys), turn)).collect();
        edits.sort();
        edits.dedup_by(|a, b| a.0 == b.0);
        edits
    }

    fn apply(&self, edits: &[Edit]) -> Root {
        let edits = edits.iter().map(|(key, value)| (key, value.as_ref()));
        apply(&self.cache, &*self.nodes, SHAPE, &self.root, edits).expect("memory takes nodes")
    }

    fn measure_apply(&self, name: &str, edits: &[Edit]) {
        self.nodes.take();
        let took = best(|| {
            self.apply(edits);
        });
        let (count, bytes) = self.nodes.take();
        let (count, bytes) = (count / ROUNDS as u64, bytes / ROUNDS as u64);
        println!(
            "apply, {name}: {took:.2?}, {count} nodes, {} bytes per changed key",
            bytes / edits.len() as u64
        );
    }

    fn diffs(&self) {
        let clustered: Vec<_> = (0..100).map(|number| self.edit(self.keys / 2 + number, number)).collect();
        for (name, edits) in [("scattered", self.scattered(100)), ("together", clustered)] {
            let other = self.apply(&edits);
            let took = best(|| {
                let changes = diff(&self.cache, &self.root, &other);
                assert_eq!(changes.filter(|change| change.is_ok()).count(), edits.len());
            });
            println!("diff, {} keys {name}: {took:.2?}", edits.len());
        }
    }
}

fn best(mut round: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let start = busy();
        round();
        busy() - start
    });
    rounds.min().unwrap_or_default()
}

/// A yardstick: point gets wait for memory, and how long that takes depends on the machine and its neighbours.
fn measure_memory() {
    let mut random = Random(3);
    let len = 64 << 20;
    let mut next: Vec<u64> = (0..len).collect();
    // Sattolo's shuffle: one cycle through all.
    for last in (1..next.len()).rev() {
        next.swap(last, random.below(last as u64) as usize);
    }
    let steps = 2_000_000;
    let took = best(|| {
        let end = (0..steps).fold(0, |at, _| next[at as usize]);
        assert!(end < len);
    });
    println!(
        "memory: {} ns from one load to the next that depends on it, in 512 MiB",
        took.as_nanos() / steps
    );
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Eight extents per file.
fn key(number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.extend_from_slice(&(number / 8).to_be_bytes());
    key.push(3);
    key.extend_from_slice(&(number % 8 * 65_536).to_be_bytes());
    key
}

fn value(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    (0..5).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Counts nodes and bytes written.
#[derive(Default)]
struct Metered {
    nodes: MemoryNodes,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Metered {
    /// What was written since the last call.
    fn take(&self) -> (u64, u64) {
        (self.count.swap(0, Ordering::Relaxed), self.bytes.swap(0, Ordering::Relaxed))
    }
}

impl NodeSink for Metered {
    fn put(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.nodes.put(bytes)
    }
}

impl LoadBytes for Metered {
    fn load(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        self.nodes.load(id)
    }
}

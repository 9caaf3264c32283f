//! Building, scanning and point gets, and the machine's own figures to judge them by.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Arc, Once};

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{BenchClock, RandomData, record_figure, setup_size};
use vellum_map::{NodeCache, NodeSource, get_value};

use crate::entries::{Base, CACHE, Lazy, Metered, new_bench_key, new_bench_value};

/// Keys that are asked for, again and again.
const ASKED: u64 = 200_000;
/// Keys of a map that is built in each iteration.
const BUILT: u64 = 100_000;
/// Numbers of the memory yardstick: 128 MiB, past every cache.
const LOADS: u64 = 16 << 20;

pub fn bench_build(criterion: &mut Criterion<BenchClock>, keys: u64) {
    let keys = keys.min(BUILT);
    let printed = Once::new();
    let mut group = criterion.benchmark_group("map/build");
    group.sample_size(10);
    group.bench_function("100000-keys", |bencher| {
        printed.call_once(|| {
            let (nodes, bytes) = Base::build_map(keys).nodes.take_counts();
            record_figure("map/build/100000-keys", "average node", bytes as f64 / nodes as f64, "bytes");
        });
        bencher.iter(|| Base::build_map(keys).root);
    });
    group.finish();
}

pub fn bench_scans<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    let mut group = criterion.benchmark_group("map/scan");
    group.sample_size(10);
    group.bench_function("cold", |bencher| {
        bencher.iter(|| base.scan_all(&NodeCache::new(Arc::clone(&base.nodes), CACHE)));
    });
    group.bench_function("warm", |bencher| bencher.iter(|| base.scan_all(&base.cache)));
    group.finish();
}

pub fn bench_point_gets<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    let mut group = criterion.benchmark_group("map/get");
    group.bench_function("near", |bencher| {
        let mut random = RandomData(1);
        let near =
            |index| new_bench_key(2 * ((index / 100 * 7_919_993 + random.next_below(1_000)) % base.keys));
        let keys: Vec<_> = (0..ASKED).map(near).collect();
        let mut keys = keys.iter().cycle();
        bencher.iter(|| assert!(contains_key(&base.cache, base, keys.next())));
    });
    for (name, odd) in [("anywhere", 0), ("absent", 1)] {
        group.bench_function(name, |bencher| {
            let keys = generate_keys(base.keys, odd);
            let mut keys = keys.iter().cycle();
            bencher.iter(|| assert_eq!(contains_key(&base.cache, base, keys.next()), odd == 0));
        });
    }
    let none: LazyCell<NodeCache<Arc<Metered>>, _> =
        LazyCell::new(|| NodeCache::new(Arc::clone(&base.nodes), 1));
    group.bench_function("cold", |bencher| {
        let keys = generate_keys(base.keys, 0);
        let mut keys = keys.iter().cycle();
        bencher.iter(|| assert!(contains_key(&*none, base, keys.next())));
    });
    group.finish();
}

fn contains_key(source: &impl NodeSource, base: &Base, key: Option<&Vec<u8>>) -> bool {
    let key = key.expect("a cycle has no end");
    get_value(source, &base.root, black_box(key)).expect("nodes are there").is_some()
}

/// Keys from all over the map, present (0) or absent (1).
fn generate_keys(keys: u64, odd: u64) -> Vec<Vec<u8>> {
    let mut random = RandomData(1);
    (0..ASKED).map(|_| new_bench_key(2 * random.next_below(keys) + odd)).collect()
}

/// Point gets wait for memory, and how long that takes depends on the machine and its neighbours.
pub fn bench_yardsticks(criterion: &mut Criterion<BenchClock>, keys: u64) {
    let mut group = criterion.benchmark_group("yardstick");
    let map: LazyCell<BTreeMap<_, _>, _> = LazyCell::new(|| {
        (0..keys).map(|number| (new_bench_key(2 * number), new_bench_value(number))).collect()
    });
    group.bench_function("btree-get", |bencher| {
        let map = &*map;
        let keys = generate_keys(keys, 0);
        let mut keys = keys.iter().cycle();
        bencher.iter(|| map.contains_key(black_box(keys.next().expect("a cycle has no end"))));
    });
    let next = LazyCell::new(generate_cycle);
    group.bench_function("load-after-load", |bencher| {
        let next = &*next;
        let mut at = 0;
        bencher.iter(|| {
            at = next[black_box(at) as usize];
            at
        });
    });
    group.finish();
}

/// Each number says where the next one is: one cycle through all (Sattolo's shuffle).
fn generate_cycle() -> Vec<u64> {
    let mut random = RandomData(3);
    let mut next: Vec<u64> = (0..setup_size("VELLUM_BENCH_LOADS", LOADS)).collect();
    for last in (1..next.len()).rev() {
        next.swap(last, random.next_below(last as u64) as usize);
    }
    next
}

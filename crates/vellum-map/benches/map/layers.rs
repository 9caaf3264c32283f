//! Views: layers in memory over the base, read as one map.

use std::cell::LazyCell;
use std::hint::black_box;
use std::sync::Arc;

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{BenchClock, RandomData, RenewedFixture};
use vellum_map::{ChangeLayer, KeySpan, MapView};

use crate::entries::{Base, Lazy, new_bench_key, new_bench_value};

/// How many layers lie on the base: one after the other, as snapshots leave them until they are published.
const DEPTHS: [usize; 3] = [1, 4, 16];
/// Base keys among which the changes are.
const REGION: u64 = 100_000;
/// Changes of each layer.
const CHANGES: u64 = 10_000;
/// Entries of one range.
const ENTRIES: usize = 1000;

pub fn bench_puts(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("layer/put");
    let mut layers = RenewedFixture::new(CHANGES, ChangeLayer::new);
    let mut random = RandomData(5);
    let changes: Vec<_> = (0..CHANGES)
        .map(|number| (new_bench_key(random.next_below(REGION)), new_bench_value(number)))
        .collect();
    group.bench_function("10000-keys", |bencher| {
        bencher.iter_custom(|times| {
            layers.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |layer, number| {
                    let (key, value) = &changes[number as usize];
                    layer.set_key(key, value.as_slice());
                },
            )
        });
    });
    group.finish();
}

pub fn bench_gets<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    for depth in DEPTHS {
        let view = LazyCell::new(|| build_view(base, depth));
        let mut group = criterion.benchmark_group("layer/get");
        group.bench_function(format!("changed-{depth}"), |bencher| {
            let view = &*view;
            let mut keys: Vec<_> =
                view.layers.iter().flat_map(|layer| layer.iter().map(|(key, _)| key.to_shared())).collect();
            // Not in their order: neighbours would warm each other's places.
            keys.sort_by_cached_key(|key| xxhash_rust::xxh3::xxh3_64(key));
            let mut keys = keys.iter().cycle();
            bencher.iter(|| {
                view.get_value(&base.cache, black_box(keys.next().expect("a cycle has no end")))
                    .expect("read")
            });
        });
        group.bench_function(format!("unchanged-{depth}"), |bencher| {
            let view = &*view;
            let mut random = RandomData(6);
            // Past the region no layer says anything; of a small map the last key has to do.
            let past = |random: &mut RandomData| REGION.min(base.keys - 1) + random.next_below(REGION);
            let keys: Vec<_> =
                (0..CHANGES).map(|_| new_bench_key(2 * past(&mut random).min(base.keys - 1))).collect();
            let mut keys = keys.iter().cycle();
            bencher.iter(|| {
                view.get_value(&base.cache, black_box(keys.next().expect("a cycle has no end")))
                    .expect("read")
            });
        });
        group.finish();
    }
}

pub fn bench_ranges<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    let mut group = criterion.benchmark_group("layer/range");
    for depth in DEPTHS {
        let view = LazyCell::new(|| build_view(base, depth));
        group.bench_function(format!("1000-entries-{depth}"), |bencher| {
            let view = &*view;
            let mut random = RandomData(7);
            bencher.iter(|| {
                let span = KeySpan::from_start(new_bench_key(random.next_below(REGION.min(base.keys))));
                let entries = view.read_range(&base.cache, span).expect("the root is there");
                entries.take(ENTRIES).filter(Result::is_ok).count()
            });
        });
    }
    group.finish();
}

/// Layers that change a tenth of the region each: most of it new values, some of it new keys and tombstones.
fn build_view(base: &Base, depth: usize) -> MapView {
    let mut random = RandomData(8);
    let mut layer = || {
        let mut layer = ChangeLayer::new();
        for number in 0..CHANGES {
            let at = new_bench_key(random.next_below(2 * REGION));
            if number % 8 == 0 { layer.delete_key(at) } else { layer.set_key(at, new_bench_value(number)) }
        }
        Arc::new(layer)
    };
    MapView { layers: (0..depth).map(|_| layer()).collect(), base: base.root }
}

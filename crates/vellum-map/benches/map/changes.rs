//! Applying changes, together and scattered, and telling two maps apart.

use std::sync::Once;

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{BenchClock, RandomData, record_figure};
use vellum_map::{MapRoot, apply_changes, diff_maps};

use crate::entries::{Base, Lazy, SHAPE, new_bench_key, new_bench_value};

/// A key and its new value, or None to remove it.
type Edit = (Vec<u8>, Option<Vec<u8>>);

pub fn bench_apply_clustered<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    for (clusters, per_cluster) in [(1, 300_000), (1_000, 300), (10_000, 30)] {
        let edits = || {
            let mut edits = Vec::new();
            for cluster in 0..clusters {
                let start = cluster * (base.keys / clusters);
                edits.extend((start..start + per_cluster).map(|number| generate_edit(base, number, number)));
            }
            sort_edits(edits)
        };
        bench_edits(criterion, base, &format!("clusters-{clusters}x{per_cluster}"), edits);
    }
}

pub fn bench_apply_scattered<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    for count in [100, 3_000, 30_000, 300_000] {
        bench_edits(criterion, base, &format!("scattered-{count}"), || generate_scattered_edits(base, count));
    }
}

pub fn bench_diffs<F: FnOnce() -> Base>(criterion: &mut Criterion<BenchClock>, base: &Lazy<F>) {
    let together =
        || sort_edits((0..100).map(|number| generate_edit(base, base.keys / 2 + number, number)).collect());
    let kinds: [(&str, &dyn Fn() -> Vec<Edit>); 2] =
        [("scattered-100", &|| generate_scattered_edits(base, 100)), ("together-100", &together)];
    let mut group = criterion.benchmark_group("map/diff");
    for (name, edits) in kinds {
        group.bench_function(name, |bencher| {
            let edits = edits();
            let other = apply_edits(base, &edits);
            bencher.iter(|| {
                let changes = diff_maps(&base.cache, &base.root, &other);
                assert_eq!(changes.filter(Result::is_ok).count(), edits.len());
            });
        });
    }
    group.finish();
}

fn bench_edits<F: FnOnce() -> Base>(
    criterion: &mut Criterion<BenchClock>,
    base: &Lazy<F>,
    name: &str,
    edits: impl Fn() -> Vec<Edit>,
) {
    let printed = Once::new();
    let mut group = criterion.benchmark_group("map/apply");
    group.sample_size(10);
    group.bench_function(name, |bencher| {
        let edits = edits();
        printed.call_once(|| {
            base.nodes.take_counts();
            apply_edits(base, &edits);
            let (_, bytes) = base.nodes.take_counts();
            let each = bytes as f64 / edits.len() as f64;
            record_figure(&format!("map/apply/{name}"), "rewritten for each changed key", each, "bytes");
        });
        bencher.iter(|| apply_edits(base, &edits));
    });
    group.finish();
}

fn apply_edits(base: &Base, edits: &[Edit]) -> MapRoot {
    let edits = edits.iter().map(|(key, value)| (key, value.as_ref()));
    apply_changes(&base.cache, &*base.nodes, SHAPE, &base.root, edits).expect("memory takes nodes")
}

/// Half are new values of old keys, the others new keys and removals in turns.
fn generate_edit(base: &Base, number: u64, turn: u64) -> Edit {
    let number = number % base.keys;
    match turn % 4 {
        0 | 1 => (new_bench_key(2 * number), Some(new_bench_value(number + 1))),
        2 => (new_bench_key(2 * number + 1), Some(new_bench_value(number + 2))),
        _ => (new_bench_key(2 * number), None),
    }
}

fn generate_scattered_edits(base: &Base, count: u64) -> Vec<Edit> {
    let mut random = RandomData(2);
    sort_edits((0..count).map(|turn| generate_edit(base, random.next_below(base.keys), turn)).collect())
}

/// As a map takes them: ascending, each key once.
fn sort_edits(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort();
    edits.dedup_by(|a, b| a.0 == b.0);
    edits
}

//! What the embedded engine costs.
//!
//! A transaction is what creating a file takes: two gets, three puts of about a hundred bytes. The directory is
//! `VELLUM_BENCH_DIR`, or else one beneath the system's for temporary files: for the durable figures it has to be on a
//! disk. `VELLUM_BENCH_TXNS` sets another number of transactions. Processor time is that of the whole process; waiting
//! is measured by the clock.

use std::cell::{LazyCell, RefCell};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vellum_benchkit::criterion::{BatchSize, Criterion, Throughput};
use vellum_benchkit::{
    BenchClock, RandomData, RenewedFixture, create_scratch_dir, process_time_criterion, record_figure,
    setup_size, wall_time_criterion,
};
use vellum_live::{CommitSequence, EmbeddedStore, LiveStore, NoDurabilityHooks};
use vellum_map::KeySpan;

/// Transactions of a store that is frozen or forked once.
const ONCE: u64 = 20_000;
const LAYER: &[u8] = b"l\0\0\0\0\0\0\0\x01";

fn main() {
    let count = setup_size("VELLUM_BENCH_TXNS", 200_000);
    let mut criterion = process_time_criterion();
    bench_transactions(&mut criterion, count);
    for (place, freeze) in [("in-memory", false), ("frozen", true)] {
        bench_reads(&mut criterion, place, &LazyCell::new(move || Filled::new(count, freeze)));
    }
    let mut criterion = wall_time_criterion();
    bench_reopen(&mut criterion, count);
    bench_freezes(&mut criterion);
    for threads in [1, 8] {
        bench_durable_waits(&mut criterion, threads);
    }
}

fn open_bench_store(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open(path, NoDurabilityHooks).expect("a store")
}

fn encode_layer_key(inode: u64, tag: u8, rest: &[u8]) -> Vec<u8> {
    [LAYER, &inode.to_be_bytes(), &[tag], rest].concat()
}

fn encode_dentry_key(number: u64) -> Vec<u8> {
    encode_layer_key(1 + number / 1000, 1, format!("file-{number:08}.txt").as_bytes())
}

/// Creates a file: attributes of the directory and of the file, and a name.
fn create_bench_file(store: &EmbeddedStore, number: u64) -> CommitSequence {
    let parent = encode_layer_key(1 + number / 1000, 0, b"");
    let name = encode_dentry_key(number);
    let child = encode_layer_key(1_000_000 + number, 0, b"");
    let done = store.run_transaction(&mut |txn| {
        let _ = (txn.get(&parent)?, txn.get(&name)?);
        txn.set_key(&parent, [3; 120].into());
        txn.set_key(&name, [4; 10].into());
        txn.set_key(&child, [5; 120].into());
        Ok(())
    });
    done.expect("a transaction")
}

/// A store in a directory of its own, with some files.
struct Filled {
    store: EmbeddedStore,
    dir: TempDir,
    count: u64,
}

impl Filled {
    fn new(count: u64, freeze: bool) -> Self {
        let dir = create_scratch_dir();
        let store = open_bench_store(&dir.path().join("store"));
        for number in 0..count {
            create_bench_file(&store, number);
        }
        if freeze {
            store.freeze_prefix(LAYER).expect("freezing");
        }
        Self { store, dir, count }
    }
}

fn bench_transactions(criterion: &mut Criterion<BenchClock>, count: u64) {
    let printed = Once::new();
    let mut stores = RenewedFixture::new(count, || Filled::new(0, false));
    let mut group = criterion.benchmark_group("live/transact");
    group.bench_function("create", |bencher| {
        printed.call_once(|| {
            let statistics = Filled::new(ONCE.min(count), false).store.statistics();
            let each = |bytes: u64| bytes as f64 / ONCE.min(count) as f64;
            record_figure("live/transact/create", "memory", each(statistics.memory), "bytes");
            record_figure("live/transact/create", "journal", each(statistics.journalled), "bytes");
        });
        bencher.iter_custom(|times| {
            stores.measure_operations(
                times,
                |work| BenchClock::Process.measure(work),
                |filled, number| {
                    create_bench_file(&filled.store, number);
                },
            )
        });
    });
    group.finish();
}

fn bench_reads<F: FnOnce() -> Filled>(
    criterion: &mut Criterion<BenchClock>,
    place: &str,
    filled: &LazyCell<Filled, F>,
) {
    let mut group = criterion.benchmark_group(format!("live/{place}"));
    for (name, end) in [("get", ""), ("get-absent", "x")] {
        group.bench_function(name, |bencher| {
            let store = &filled.store;
            let mut random = RandomData(1);
            let names = (0..10_000)
                .map(|_| [&encode_dentry_key(random.next_below(filled.count))[..], end.as_bytes()].concat());
            let names: Vec<_> = names.collect();
            let mut names = names.iter().cycle();
            bencher.iter(|| {
                let found = store.get(names.next().expect("a cycle has no end")).expect("a get");
                assert_eq!(found.is_some(), end.is_empty());
            });
        });
    }
    group.sample_size(10);
    group.bench_function("scan", |bencher| bencher.iter(|| scan_all(&filled.store)));
    group.finish();
}

/// Visits every entry.
fn scan_all(store: &EmbeddedStore) -> u64 {
    let mut entries = 0;
    let visited = store.scan(&KeySpan::all_keys(), &mut |_, _| {
        entries += 1;
        ControlFlow::Continue(())
    });
    visited.expect("a scan");
    entries
}

fn bench_reopen(criterion: &mut Criterion<BenchClock>, count: u64) {
    let mut group = criterion.benchmark_group("live/open");
    group.sample_size(10);
    for (place, freeze) in [("in-memory", false), ("frozen", true)] {
        let closed = LazyCell::new(|| Filled::new(count, freeze).dir);
        group.bench_function(place, |bencher| {
            let path = closed.path().join("store");
            // One at a time: a store that is open is locked. Closing it is not in the figure.
            bencher.iter_custom(|times| {
                let opened = |_| {
                    let start = BenchClock::Wall.read();
                    let store = open_bench_store(&path);
                    let took = BenchClock::Wall.read_since(start);
                    drop(store);
                    took
                };
                (0..times).map(opened).sum()
            });
        });
    }
    group.finish();
}

fn bench_freezes(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("live/once");
    group.sample_size(10);
    let filled = || Filled::new(setup_size("VELLUM_BENCH_ONCE", ONCE), false);
    group.bench_function("freeze", |bencher| {
        let freeze = |filled: &mut Filled| filled.store.freeze_prefix(LAYER).expect("freezing");
        bencher.iter_batched_ref(filled, freeze, BatchSize::PerIteration);
    });
    let frozen = LazyCell::new(|| Filled::new(setup_size("VELLUM_BENCH_ONCE", ONCE), true));
    let mut number = 0;
    group.bench_function("fork", |bencher| {
        let frozen = &*frozen;
        bencher.iter(|| {
            number += 1;
            frozen.store.fork_into(&frozen.dir.path().join(format!("fork-{number}"))).expect("a fork");
        });
    });
    group.finish();
}

/// Transactions that are waited for, by several threads at once. The time is that of one; what the slowest of a
/// thousand took is told beside it.
fn bench_durable_waits(criterion: &mut Criterion<BenchClock>, threads: u64) {
    let filled = LazyCell::new(|| Filled::new(0, false));
    let next = AtomicU64::new(0);
    let took = RefCell::new(Vec::new());
    let name = format!("{threads}-threads");
    let mut group = criterion.benchmark_group("live/durable");
    group.sample_size(10).throughput(Throughput::Elements(1));
    group.bench_function(&name, |bencher| {
        let store = &filled.store;
        bencher.iter_custom(|times| {
            let each = times.div_ceil(threads);
            let start = BenchClock::Wall.read();
            took.borrow_mut().extend(measure_waits(store, &next, threads, each));
            BenchClock::Wall.read_since(start).mul_f64(times as f64 / (each * threads) as f64)
        });
    });
    group.finish();
    let mut took = took.into_inner();
    took.sort_unstable();
    if let Some(slow) = took.get(took.len() * 999 / 1000) {
        record_figure(&format!("live/durable/{name}"), "99.9 % within", slow.as_secs_f64(), "s");
    }
}

/// What each of some transactions took until it was durable.
fn measure_waits(store: &EmbeddedStore, next: &AtomicU64, threads: u64, each: u64) -> Vec<Duration> {
    let one = || {
        let start = Instant::now();
        let sequence = create_bench_file(store, next.fetch_add(1, Ordering::Relaxed));
        store.wait_until_durable(sequence).expect("durable");
        start.elapsed()
    };
    std::thread::scope(|scope| {
        let work = || (0..each).map(|_| one()).collect::<Vec<_>>();
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    })
}

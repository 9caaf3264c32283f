//! What writing and reading cost without a kernel.
//!
//! The live metadata are in the engine of this machine, all in a temporary directory (`VELLUM_BENCH_DIR` sets another
//! place). Processor time of the one thread that works, apart from what waits for a disk or for chunks.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

mod filesystem;

use std::cell::LazyCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{
    BenchClock, RandomData, RenewedFixture, random_bytes, thread_time_criterion, wall_time_criterion,
};
use vellum_fs::StateReader;
use vellum_fs::{LiveFilesystem, RequestCaller};
use vellum_types::Ino;

use crate::filesystem::open_new_filesystem;

const PAGE: usize = 4096;
/// Small operations after which a filesystem is made anew.
const SMALL: u64 = 10_000;
/// Bytes of a file that is read or overwritten, or appended to before its filesystem is made anew.
const FILE: u64 = 32 << 20;
const CALLER: RequestCaller = RequestCaller { uid: 0, gid: 0, umask: 0 };

fn main() {
    let mut criterion = thread_time_criterion();
    bench_small_files(&mut criterion);
    bench_appends(&mut criterion);
    bench_overwrites(&mut criterion);
    bench_cached_chunks(&mut criterion);
    let mut criterion = wall_time_criterion();
    bench_cold_reads(&mut criterion);
    bench_fsyncs(&mut criterion);
}

struct Bench {
    _dir: TempDir,
    fs: LiveFilesystem,
    /// The file that is worked on.
    ino: Ino,
}

impl Bench {
    fn new() -> Self {
        let (dir, fs) = open_new_filesystem();
        let ino = fs.names().create(Ino::ROOT, b"file", 0o644, CALLER).unwrap().ino;
        Self { _dir: dir, fs, ino }
    }

    /// A file of random bytes, so that nothing is compressed and no chunk is there twice.
    fn with_random_file() -> Self {
        let bench = Self::new();
        const BLOCK: usize = 1 << 20;
        for at in (0..FILE).step_by(BLOCK) {
            bench.fs.content().write(bench.ino, at, &random_bytes(at, BLOCK), false).unwrap();
        }
        bench
    }

    /// The same, published: its content is in chunks.
    fn with_published_file() -> Self {
        let bench = Self::with_random_file();
        bench.fs.publisher().publish_all().unwrap();
        bench
    }
}

/// Places of pages, all over a file.
fn generate_page_offsets(seed: u64, below: u64) -> impl FnMut() -> u64 {
    let mut random = RandomData(seed);
    move || random.next_below(below / PAGE as u64) * PAGE as u64
}

/// A file whose content stands in its inode.
fn bench_small_files(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("content/inline");
    let data = [1; 1000];
    group.throughput(Throughput::Bytes(data.len() as u64));
    let mut benches = RenewedFixture::new(SMALL, Bench::new);
    group.bench_function("write-1000", |bencher| {
        bencher.iter_custom(|times| {
            benches.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |bench, _| {
                    bench.fs.content().write(bench.ino, 0, &data, false).unwrap();
                },
            )
        });
    });
    let held = LazyCell::new(|| {
        let bench = Bench::new();
        bench.fs.content().write(bench.ino, 0, &data, false).unwrap();
        bench
    });
    group.bench_function("read-1000", |bencher| {
        let bench = &*held;
        bencher.iter(|| bench.fs.read(bench.ino, 0, PAGE).unwrap());
    });
    group.finish();
}

/// A file that grows, and what was written, read from the log.
fn bench_appends(criterion: &mut Criterion<BenchClock>) {
    let filled = LazyCell::new(Bench::with_random_file);
    for (name, len) in [("4KiB", PAGE), ("128KiB", 128 << 10), ("1MiB", 1 << 20)] {
        let data = random_bytes(1, len);
        let mut group = criterion.benchmark_group("content/append");
        group.throughput(Throughput::Bytes(len as u64));
        let mut benches = RenewedFixture::new(FILE / len as u64, Bench::new);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                benches.measure_operations(
                    times,
                    |work| BenchClock::Thread.measure(work),
                    |bench, _| {
                        bench.fs.content().append_to_file(bench.ino, &data, false).unwrap();
                    },
                )
            });
        });
        group.finish();
        let mut group = criterion.benchmark_group("content/read-log");
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(name, |bencher| {
            let bench = &*filled;
            let mut at = 0;
            bencher.iter(|| {
                at = (at + len as u64) % FILE;
                bench.fs.read(bench.ino, at, len).unwrap()
            });
        });
        group.finish();
    }
}

/// Pages anywhere in a file, written over and read.
fn bench_overwrites(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("content/overwrite");
    group.throughput(Throughput::Bytes(PAGE as u64));
    let mut benches = RenewedFixture::new(SMALL, Bench::with_random_file);
    let data = [1; PAGE];
    let mut place = generate_page_offsets(1, FILE);
    group.bench_function("4KiB", |bencher| {
        bencher.iter_custom(|times| {
            benches.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |bench, _| {
                    bench.fs.content().write(bench.ino, place(), &data, false).unwrap();
                },
            )
        });
    });
    group.finish();
    let held = LazyCell::new(|| {
        let bench = Bench::with_random_file();
        let mut place = generate_page_offsets(2, FILE);
        (0..SMALL).for_each(|_| {
            assert_eq!(bench.fs.content().write(bench.ino, place(), &[1; PAGE], false).unwrap(), PAGE)
        });
        bench
    });
    let mut group = criterion.benchmark_group("content/read-overwritten");
    group.throughput(Throughput::Bytes(PAGE as u64));
    group.bench_function("4KiB", |bencher| {
        let bench = &*held;
        let mut place = generate_page_offsets(3, FILE);
        bencher.iter(|| bench.fs.read(bench.ino, place(), PAGE).unwrap());
    });
    group.finish();
}

/// Pages of chunks that are decoded already.
fn bench_cached_chunks(criterion: &mut Criterion<BenchClock>) {
    const HOT: u64 = 8 << 20;
    let held = LazyCell::new(|| {
        let bench = Bench::with_published_file();
        (0..HOT).step_by(PAGE).for_each(|at| drop(bench.fs.read(bench.ino, at, PAGE).unwrap()));
        bench
    });
    let mut group = criterion.benchmark_group("content/read-chunks");
    group.throughput(Throughput::Bytes(PAGE as u64));
    group.bench_function("4KiB", |bencher| {
        let bench = &*held;
        let mut place = generate_page_offsets(1, HOT);
        bencher.iter(|| bench.fs.read(bench.ino, place(), PAGE).unwrap());
    });
    group.finish();
}

/// A published file, read once from its beginning: chunks are fetched ahead by other threads.
fn bench_cold_reads(criterion: &mut Criterion<BenchClock>) {
    const LEN: u64 = 128 << 10;
    let mut group = criterion.benchmark_group("content/read-cold");
    group.sample_size(10).throughput(Throughput::Bytes(LEN));
    let mut benches = RenewedFixture::new(FILE / LEN, Bench::with_published_file);
    group.bench_function("128KiB", |bencher| {
        bencher.iter_custom(|times| {
            benches.measure_operations(
                times,
                |work| BenchClock::Wall.measure(work),
                |bench, number| {
                    bench.fs.read(bench.ino, number * LEN, LEN as usize).unwrap();
                },
            )
        });
    });
    group.finish();
}

/// New files, each written and flushed, by many at once: they share flushes.
fn bench_fsyncs(criterion: &mut Criterion<BenchClock>) {
    let held = LazyCell::new(Bench::new);
    let next = AtomicU64::new(0);
    let mut group = criterion.benchmark_group("content/create-write-fsync");
    group.sample_size(10);
    for writers in [1, 8] {
        group.bench_function(format!("{writers}-writers"), |bencher| {
            let bench = &*held;
            bencher.iter_custom(|times| time_flushed_files(&bench.fs, &next, writers, times));
        });
    }
    group.finish();
}

/// What `times` files take that several writers make. Fewer than the writers are not made: each makes one at least,
/// and the time is told in proportion.
fn time_flushed_files(fs: &LiveFilesystem, next: &AtomicU64, writers: u64, times: u64) -> Duration {
    let each = times.div_ceil(writers);
    let start = BenchClock::Wall.read();
    std::thread::scope(|scope| {
        for _ in 0..writers {
            scope.spawn(|| {
                for _ in 0..each {
                    let name = format!("new-{}", next.fetch_add(1, Ordering::Relaxed));
                    let ino = fs.names().create(Ino::ROOT, name.as_bytes(), 0o644, CALLER).unwrap().ino;
                    fs.content().write(ino, 0, &[1; PAGE], false).unwrap();
                    fs.content().sync_all().unwrap();
                }
            });
        }
    });
    BenchClock::Wall.read_since(start).mul_f64(times as f64 / (each * writers) as f64)
}

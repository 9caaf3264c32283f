//! The scan, its cache, and the making of files.
//!
//! `VELLUM_BENCH_TREE` names a directory to scan; without it one of 10,000 small files is made. A scan by all threads
//! is measured in real time, all else in processor time of the one thread that works.

#![allow(clippy::disallowed_methods, reason = "tests and measurements make the trees that the code works on")]
#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::cell::LazyCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::TempDir;
use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{
    BenchClock, RenewedFixture, create_scratch_dir, record_figure, setup_size, thread_time_criterion,
    wall_time_criterion,
};
use vellum_checkout::scan::{ScanEntryRef, ScanOptions, ScanTree, scan_tree};
use vellum_checkout::statcache::{FilesystemTime, NewStatCache, RecordedEntry, StatCache, write_stat_cache};
use vellum_host::beneath::{HeldDir, ReplacePolicy, StagingMethod};
use vellum_types::{BlobId, Ino};

/// Files of each directory of the tree that is made.
const IN_ONE: u64 = 100;
const FILES: u64 = 10_000;
/// Files of a directory in which files are made.
const MADE: u64 = 1000;

fn main() {
    let place = LazyCell::new(Place::new);
    let mut criterion = thread_time_criterion();
    bench_scans(&mut criterion, &place);
    bench_caches(&mut criterion, &place);
    bench_creates(&mut criterion);
    bench_parallel_scans(&mut wall_time_criterion(), &place);
}

/// A tree, and a directory that holds what is remembered of it.
struct Place {
    root: HeldDir,
    state: HeldDir,
    _dirs: [TempDir; 2],
}

impl Place {
    fn new() -> Self {
        let tree = create_scratch_dir();
        let state = create_scratch_dir();
        let path =
            std::env::var_os("VELLUM_BENCH_TREE").map_or_else(|| tree.path().to_owned(), PathBuf::from);
        if path == tree.path() {
            create_bench_files(tree.path(), setup_size("VELLUM_BENCH_FILES", FILES));
        }
        let root = HeldDir::open_root(&path).unwrap();
        let open = HeldDir::open_root(state.path()).unwrap();
        let place = Self { root, state: open, _dirs: [tree, state] };
        place.write_cache(&place.scan_files(None, 0));
        place
    }

    fn scan_files(&self, cache: Option<StatCache>, threads: usize) -> ScanTree {
        scan_tree(&self.root, ScanOptions { cache, threads, ..ScanOptions::default() }).unwrap()
    }

    fn load_cache(&self) -> StatCache {
        StatCache::load(&self.state, b"cache").unwrap()
    }

    fn write_cache(&self, tree: &ScanTree) {
        let stamp = FilesystemTime::read_filesystem_time(&self.state).unwrap();
        let mut next = 1;
        let recorded = |_: ScanEntryRef<'_>| {
            next += 1;
            Some(RecordedEntry { ino: Ino(next), stat: None })
        };
        let cache = NewStatCache { dir: &self.state, name: b"cache", base: BlobId([0; 32]), stamp };
        write_stat_cache(cache, tree, recorded).unwrap();
    }
}

/// Directories with small files.
fn create_bench_files(path: &Path, files: u64) {
    for file in 0..files {
        let dir = path.join(format!("directory-{:05}", file / IN_ONE));
        if file % IN_ONE == 0 {
            std::fs::create_dir(&dir).unwrap();
        }
        std::fs::write(dir.join(format!("some-file-{file:07}.txt")), b"content").unwrap();
    }
}

fn bench_scans<F: FnOnce() -> Place>(criterion: &mut Criterion<BenchClock>, place: &LazyCell<Place, F>) {
    let mut group = criterion.benchmark_group("checkout/scan-by-one");
    group.sample_size(20);
    group.bench_function("without-cache", |bencher| {
        bencher.iter_with_large_drop(|| place.scan_files(None, 1))
    });
    group.bench_function("with-cache", |bencher| {
        bencher.iter_with_large_drop(|| place.scan_files(Some(place.load_cache()), 1));
    });
    group.finish();
}

fn bench_parallel_scans<F: FnOnce() -> Place>(
    criterion: &mut Criterion<BenchClock>,
    place: &LazyCell<Place, F>,
) {
    let printed = Once::new();
    let mut group = criterion.benchmark_group("checkout/scan-by-all");
    group.sample_size(20);
    group.bench_function("without-cache", |bencher| {
        printed.call_once(|| {
            let tree = place.scan_files(None, 0);
            let each = tree.memory_size() as f64 / tree.entry_count() as f64;
            record_figure("checkout/scan-by-all/without-cache", "memory for each entry", each, "bytes");
        });
        bencher.iter_with_large_drop(|| place.scan_files(None, 0));
    });
    group.bench_function("with-cache", |bencher| {
        bencher.iter_with_large_drop(|| place.scan_files(Some(place.load_cache()), 0));
    });
    group.finish();
}

fn bench_caches<F: FnOnce() -> Place>(criterion: &mut Criterion<BenchClock>, place: &LazyCell<Place, F>) {
    let printed = Once::new();
    let tree = LazyCell::new(|| place.scan_files(Some(place.load_cache()), 0));
    let mut group = criterion.benchmark_group("checkout/stat-cache");
    group.bench_function("write", |bencher| {
        bencher.iter(|| place.write_cache(&tree));
    });
    group.bench_function("load", |bencher| {
        printed.call_once(|| {
            let each = place.state.stat(b"cache").unwrap().size as f64 / tree.entry_count() as f64;
            record_figure("checkout/stat-cache/load", "file for each entry", each, "bytes");
        });
        bencher.iter(|| place.load_cache());
    });
    group.bench_function("ask-for-each", |bencher| {
        let tree = &*tree;
        bencher.iter(|| tree.walk_entries().filter_map(|entry| entry.cached_entry()).count());
    });
    group.finish();
}

/// How a file gets its content and its name.
#[derive(Clone, Copy)]
enum Manner {
    Direct,
    Staged(StagingMethod),
}

/// Small files, in three manners.
fn bench_creates(criterion: &mut Criterion<BenchClock>) {
    let manners = [
        ("direct", Manner::Direct),
        ("named", Manner::Staged(StagingMethod::Named)),
        ("anonymous", Manner::Staged(StagingMethod::Anonymous)),
    ];
    let mut group = criterion.benchmark_group("checkout/create");
    for (name, manner) in manners {
        let mut dirs = RenewedFixture::new(MADE, || {
            let dir = create_scratch_dir();
            (HeldDir::open_root(dir.path()).unwrap(), dir)
        });
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                dirs.measure_operations(
                    times,
                    |work| BenchClock::Thread.measure(work),
                    |(dir, _), number| {
                        create_with_manner(dir, manner, format!("file-{number:06}").as_bytes());
                    },
                )
            });
        });
    }
    group.finish();
}

fn create_with_manner(dir: &HeldDir, manner: Manner, name: &[u8]) {
    let content = [b'x'; 1000];
    match manner {
        Manner::Direct => dir.create_file(name, 0o600).unwrap().write_all(&content).unwrap(),
        Manner::Staged(staging) => {
            let file = dir.stage_file_by(staging).unwrap();
            file.file().unwrap().write_all(&content).unwrap();
            file.commit(name, ReplacePolicy::Never).unwrap();
        }
    }
}

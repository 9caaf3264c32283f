//! What the cache of inodes costs, and lookups through it.
//!
//! That hits and misses allocate nothing is checked, not measured. `VELLUM_BENCH_INODES` sets how many inodes there
//! are.

use std::cell::LazyCell;
use std::hint::black_box;
use std::sync::Arc;

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{
    BenchClock, RenewedFixture, assert_max_allocations, count_retained_bytes, create_scratch_dir,
    record_figure, setup_size, thread_time_criterion,
};
use vellum_fs::tree::cache::{InodeCache, InsertTicket};
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{LiveFilesystem, LiveOptions, RequestCaller, WriteLog};
use vellum_live::MemoryStore;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotStatistics, StateDir, Volume};

/// Operations in which allocations are counted, inodes put into one cache, and files of the directory looked up.
const COUNT: u64 = 20_000;
const NAME: &[u8] = b"some-file.rs";
const CALLER: RequestCaller = RequestCaller { uid: 0, gid: 0, umask: 0o022 };

fn main() {
    let inodes = setup_size("VELLUM_BENCH_INODES", 100_000);
    let mut criterion = thread_time_criterion();
    bench_lookups(&mut criterion, inodes);
    bench_inserts(&mut criterion);
    bench_invalidate(&mut criterion, inodes);
    bench_path_lookups(&mut criterion);
    measure_memory(1000);
}

/// What inodes take: the attributes of each, and its name in its directory, too.
fn measure_memory(inodes: u64) {
    let cache = InodeCache::new(1 << 30);
    let all = || (0..inodes).map(|number| Ino(2 + number));
    let attributes = count_retained_bytes(|| {
        for ino in all() {
            if let Err(ticket) = cache.get_attr(ino) {
                cache.insert_attr(ino, &new_inode_attr(), ticket);
            }
        }
    });
    let names = count_retained_bytes(|| {
        for ino in all() {
            let name = format!("some-file-{ino:?}.rs");
            if let Err(ticket) = cache.get_dentry(Ino::ROOT, name.as_bytes()) {
                let entry = Dentry { ino, kind: FileKind::File };
                cache.insert_dentry(Ino::ROOT, name.as_bytes(), Some(entry), ticket);
            }
        }
    });
    for (what, held) in [("attributes", attributes), ("attributes-and-names", attributes + names)] {
        record_figure(&format!("inode/memory/{what}-of-{inodes}"), "memory", held as f64, "bytes");
    }
}

/// Numbers as they are asked for: all over the place.
fn scattered_inodes(number: u64, below: u64) -> Ino {
    Ino(2 + number.wrapping_mul(7_919_993) % below)
}

fn new_inode_attr() -> Arc<InodeAttr> {
    Arc::new(InodeAttr { name: NAME.to_vec(), ..InodeAttr::new(FileKind::File, 0o644) })
}

fn new_filled_cache(inodes: u64) -> InodeCache {
    let cache = InodeCache::new(1 << 30);
    let attr = new_inode_attr();
    for ino in (0..inodes).map(|number| Ino(2 + number)) {
        if let Err(ticket) = cache.get_attr(ino) {
            cache.insert_attr(ino, &attr, ticket);
        }
        if let Err(ticket) = cache.get_dentry(ino, NAME) {
            cache.insert_dentry(ino, NAME, None, ticket);
        }
    }
    cache
}

/// A question to the cache: whether it was answered.
type Question = fn(&InodeCache, Ino) -> bool;

fn bench_lookups(criterion: &mut Criterion<BenchClock>, inodes: u64) {
    let cache = LazyCell::new(|| new_filled_cache(inodes));
    let kinds: [(&str, bool, Question); 4] = [
        ("hit-attr", true, |cache, ino| cache.get_attr(ino).is_ok()),
        ("hit-entry", true, |cache, ino| cache.get_dentry(ino, NAME).is_ok()),
        ("miss-attr", false, |cache, ino| cache.get_attr(Ino(ino.0 << 32)).is_ok()),
        ("miss-entry", false, |cache, ino| cache.get_dentry(ino, b"none").is_ok()),
    ];
    let mut group = criterion.benchmark_group("inode");
    for (name, found, ask) in kinds {
        for (which, below) in [("of-1000", inodes.min(1000)), ("of-all", inodes)] {
            group.bench_function(format!("{name}/{which}"), |bencher| {
                let cache = &*cache;
                let mut number = 0;
                let mut ask_next = || {
                    number += 1;
                    ask(cache, black_box(scattered_inodes(number, below)))
                };
                assert_max_allocations(name, 0, COUNT, |_| assert_eq!(ask_next(), found, "{name}"));
                bencher.iter(ask_next);
            });
        }
    }
    group.finish();
}

fn bench_inserts(criterion: &mut Criterion<BenchClock>) {
    let attr = new_inode_attr();
    let mut group = criterion.benchmark_group("inode/put");
    for (name, capacity) in [("with-room", 1 << 30), ("when-full", 1 << 20)] {
        let mut states = RenewedFixture::new(COUNT, || new_empty_cache(capacity));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                states.measure_operations(
                    times,
                    |work| BenchClock::Thread.measure(work),
                    |(cache, tickets), number| {
                        cache.insert_attr(Ino(number), &attr, tickets[number as usize]);
                    },
                )
            });
        });
    }
    group.finish();
}

/// A cache, and the tickets to put something into it.
fn new_empty_cache(capacity: usize) -> (InodeCache, Vec<InsertTicket>) {
    let cache = InodeCache::new(capacity);
    let tickets = (0..COUNT).map(|number| cache.get_attr(Ino(number)).expect_err("it is empty")).collect();
    (cache, tickets)
}

fn bench_invalidate(criterion: &mut Criterion<BenchClock>, inodes: u64) {
    let mut group = criterion.benchmark_group("inode/forget");
    let mut caches = RenewedFixture::new(inodes, || new_filled_cache(inodes));
    group.bench_function("attr", |bencher| {
        bencher.iter_custom(|times| {
            caches.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |cache, number| {
                    cache.invalidate_keys(&[MapKey::for_attr(scattered_inodes(number, inodes))]);
                },
            )
        });
    });
    group.finish();
}

/// A directory ten levels down, with many files.
struct Deep {
    _dir: tempfile::TempDir,
    fs: LiveFilesystem,
    path: Vec<u8>,
    /// The directory, and the last of its files.
    at: Ino,
    file: Ino,
}

impl Deep {
    fn new() -> Self {
        let dir = create_scratch_dir();
        let fs = open_filesystem(dir.path());
        let mut at = Ino::ROOT;
        let mut path = Vec::new();
        for level in 0..9 {
            let name = format!("directory-{level}");
            at = fs.names().mkdir(at, name.as_bytes(), 0o755, CALLER).expect("made").ino;
            path.extend([name.as_bytes(), b"/"].concat());
        }
        path.extend(b"file");
        for number in 0..COUNT {
            fs.names().create(at, format!("file-{number}").as_bytes(), 0o644, CALLER).expect("made");
        }
        let file = fs.names().create(at, b"file", 0o644, CALLER).expect("made").ino;
        Self { _dir: dir, fs, path, at, file }
    }
}

fn bench_path_lookups(criterion: &mut Criterion<BenchClock>) {
    let deep = LazyCell::new(Deep::new);
    let mut group = criterion.benchmark_group("lookup");
    group.bench_function("path-of-10-levels/warm", |bencher| {
        let deep = &*deep;
        bencher.iter(|| deep.fs.names().resolve_path(&deep.path).expect("it is there"));
    });
    group.bench_function("name/warm", |bencher| {
        let deep = &*deep;
        bencher.iter(|| deep.fs.names().lookup(deep.at, b"file").expect("it is there"));
    });
    group.bench_function("stat/not-cached", |bencher| {
        let deep = &*deep;
        deep.fs.live_map().inode_cache().set_capacity(0);
        let mut number = 0;
        bencher.iter(|| {
            number += 1;
            deep.fs.live_map().inode_attr(Ino(deep.file.0 - number % COUNT)).expect("it is there")
        });
    });
    group.finish();
}

fn open_filesystem(dir: &std::path::Path) -> LiveFilesystem {
    let state = StateDir::create(dir).expect("a state directory");
    let new = NewWorktree {
        store: None,
        name: "main".into(),
        encrypted: false,
        is_in_device_line: false,
        chunk_sizes: None,
    };
    let volume = Volume::init_volume(&state, &new, || unreachable!("a new volume asks for nothing"))
        .expect("made")
        .volume;
    let log = Arc::new(WriteLog::open(&state.join("log"), 1 << 30).expect("a log"));
    let fresh = LiveHead::new(volume.empty_root(), SnapshotStatistics::default(), None);
    let live = Arc::new(MemoryStore::default());
    LiveFilesystem::open(Arc::new(volume), live, log, &fresh, LiveOptions::default()).expect("opened")
}

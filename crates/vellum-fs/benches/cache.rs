//! What the cache of inodes costs, and lookups through it: `cargo bench -p vellum-fs --bench cache`.
//!
//! Figures are the best of a few rounds, in processor time of the one thread that works: the machine's other work is
//! not the cache's. `VELLUM_BENCH_INODES` sets how many inodes there are.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vellum_fs::cache::InodeCache;
use vellum_fs::head::Head;
use vellum_fs::{Caller, Fs, Options, WriteLog};
use vellum_live::MemoryStore;
use vellum_types::{Attr, FileKind, Ino, Key};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, Statistics, Volume};

const ROUNDS: usize = 5;
/// Operations of a round.
const COUNT: u64 = 200_000;
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
struct Counting;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn main() {
    let inodes = std::env::var("VELLUM_BENCH_INODES").map_or(100_000, |text| text.parse().expect("a number"));
    cache(inodes);
    lookups();
}

/// Numbers as they are asked for: all over the place.
fn scattered(below: u64) -> impl Iterator<Item = Ino> {
    (0..COUNT).map(move |index| Ino(2 + index.wrapping_mul(7_919_993) % below))
}

fn cache(inodes: u64) {
    let cache = InodeCache::new(1 << 30);
    let attr = Arc::new(Attr { name: b"some-file.rs".to_vec(), ..Attr::new(FileKind::File, 0o644) });
    for number in 0..inodes {
        let ino = Ino(2 + number);
        if let Err(ticket) = cache.attr(ino) {
            cache.put_attr(ino, &attr, ticket);
        }
        if let Err(ticket) = cache.dentry(ino, b"some-file.rs") {
            cache.put_dentry(ino, b"some-file.rs", None, ticket);
        }
    }
    let name = b"some-file.rs";
    for (which, below) in [("of a thousand", 1000), ("of all", inodes)] {
        measure(&format!("hit, inode, {which}"), || {
            assert!(scattered(below).all(|ino| black_box(cache.attr(ino)).is_ok()));
        });
        measure(&format!("hit, entry, {which}"), || {
            assert!(scattered(below).all(|ino| black_box(cache.dentry(ino, name)).is_ok()));
        });
        measure(&format!("miss, inode, {which}"), || {
            assert!(scattered(below).all(|ino| black_box(cache.attr(Ino(ino.0 + inodes))).is_err()));
        });
        measure(&format!("miss, entry, {which}"), || {
            assert!(scattered(below).all(|ino| black_box(cache.dentry(ino, b"none")).is_err()));
        });
    }
    puts("put, with room", &InodeCache::new(1 << 30), &attr);
    puts("put, when full", &InodeCache::new(1 << 20), &attr);
    let keys: Vec<_> = scattered(inodes).map(Key::attr).collect();
    measure("forget", || cache.forget(&keys));
}

fn puts(what: &str, cache: &InodeCache, attr: &Arc<Attr>) {
    let tickets: Vec<_> =
        (0..COUNT).map(|number| cache.attr(Ino(number)).expect_err("it is empty")).collect();
    measure(what, || {
        for (number, ticket) in tickets.iter().enumerate() {
            cache.put_attr(Ino(number as u64), attr, *ticket);
        }
    });
}

fn lookups() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = open(dir.path());
    let mut at = Ino::ROOT;
    let mut path = Vec::new();
    for level in 0..9 {
        let name = format!("directory-{level}");
        at = fs.mkdir(at, name.as_bytes(), 0o755, CALLER).expect("made").ino;
        path.extend([name.as_bytes(), b"/"].concat());
    }
    path.extend(b"file");
    for number in 0..COUNT / 10 {
        fs.create(at, format!("file-{number}").as_bytes(), 0o644, CALLER).expect("made");
    }
    let file = fs.create(at, b"file", 0o644, CALLER).expect("made").ino;
    measure("path of 10 levels, warm", || {
        (0..COUNT).for_each(|_| drop(black_box(fs.resolve(&path).expect("it is there"))));
    });
    measure("lookup, warm", || {
        (0..COUNT).for_each(|_| drop(black_box(fs.lookup(at, b"file").expect("it is there"))));
    });
    fs.inodes().resize(0);
    measure("stat, not cached", || {
        for number in 0..COUNT {
            drop(black_box(fs.getattr(Ino(file.0 - number % (COUNT / 10))).expect("it is there")));
        }
    });
}

fn open(dir: &std::path::Path) -> Fs {
    let state = StateDir::create(dir).expect("a state directory");
    let new = NewWorktree { store: None, name: "main".into(), encrypted: false };
    let volume =
        Volume::init(&state, &new, || unreachable!("a new volume asks for nothing")).expect("made").volume;
    let log = Arc::new(WriteLog::open(&state.join("log"), 1 << 30).expect("a log"));
    let fresh = Head::new(volume.empty_root(), Statistics::default(), None);
    let live = Arc::new(MemoryStore::default());
    Fs::open(Arc::new(volume), live, log, &fresh, Options::default()).expect("opened")
}

/// Prints what one of [`COUNT`] operations takes.
fn measure(what: &str, mut run: impl FnMut()) {
    let mut best = Duration::MAX;
    let mut allocations = u64::MAX;
    for _ in 0..ROUNDS {
        let (start, before) = (busy(), ALLOCATIONS.load(Ordering::Relaxed));
        run();
        best = best.min(busy() - start);
        allocations = allocations.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    let each = best.as_nanos() as f64 / COUNT as f64;
    println!("{what}: {each:.0} ns, {:.2} allocations", allocations as f64 / COUNT as f64);
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

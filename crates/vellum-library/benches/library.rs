//! What the library costs a program: `cargo bench -p vellum-library`.
//!
//! Figures are the best of a few rounds. Those of one thread are in its processor time: the machine's other work is not
//! ours. What waits for a disk is in real time. `VELLUM_BENCH_DIR` names the directory to work in.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vellum_fs::cache::InodeCache;
use vellum_library::{NewVolume, Tree, Volume, Worktree};
use vellum_types::{Attr, FileKind, Ino};

const ROUNDS: usize = 5;
/// Operations of a round.
const COUNT: u64 = 100_000;
/// Snapshots of a round: each is durable.
const SNAPSHOTS: u64 = 20;
/// Files of one directory.
const FILES: u64 = 20_000;

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
    let dir = match std::env::var_os("VELLUM_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(PathBuf::from(dir)),
        None => tempfile::tempdir(),
    };
    let dir = dir.expect("a directory");
    let new = NewVolume { store: None, plain: false };
    let volume = Volume::create_with(dir.path(), &new).expect("a volume").volume;
    let work = volume.create_worktree("work", None).expect("a worktree");
    views(&work);
    snapshots(&work);
    paths(&work);
    cache();
}

fn views(work: &Worktree) {
    work.write("file", "content").expect("written");
    measure("view, dropped at once", COUNT, busy, |_| drop(black_box(work.view().expect("a view"))));
    let mut kept = Vec::with_capacity(1000);
    measure("view, with 1,000 others kept", 1000, busy, |_| kept.push(work.view().expect("a view")));
    drop(kept);
    measure("view, and a write after it", 1000, busy, |_| {
        let view = work.view().expect("a view");
        work.chmod("file", 0o600).expect("changed");
        drop(view);
    });
    measure("the write alone", 1000, busy, |_| work.chmod("file", 0o600).expect("changed"));
}

/// A snapshot waits for the journal to be on the disk: what that alone takes is told beside it.
fn snapshots(work: &Worktree) {
    measure("snapshot, durable, real time", SNAPSHOTS, elapsed, |_| {
        work.chmod("file", 0o600).expect("changed");
        work.snapshot("").expect("a snapshot");
    });
    measure("a change made durable, real time", SNAPSHOTS, elapsed, |_| {
        work.chmod("file", 0o600).expect("changed");
        work.sync().expect("synced");
    });
    measure("snapshot, durable, processor time of its thread", SNAPSHOTS, busy, |_| {
        work.chmod("file", 0o600).expect("changed");
        work.snapshot("").expect("a snapshot");
    });
    work.flush().expect("published");
}

fn paths(work: &Worktree) {
    let deep: Vec<String> = (0..9).map(|level| format!("directory-{level}")).collect();
    let deep = deep.join("/");
    work.mkdir_all(&deep).expect("made");
    work.write(format!("{deep}/file"), "x").expect("written");
    let path = format!("{deep}/file");
    measure("stat, path of 10 levels, warm", COUNT, busy, |_| {
        drop(black_box(work.stat(&path).expect("there")))
    });
    work.mkdir("many").expect("made");
    let names: Vec<String> = (0..FILES).map(|number| format!("many/file-{number}")).collect();
    names.iter().for_each(|name| work.write(name, "x").expect("written"));
    measure("stat, warm", COUNT, busy, |number| {
        drop(black_box(work.stat(name(&names, number)).expect("there")));
    });
    let before = work.cache().capacity as usize;
    work.resize_cache(0);
    measure("stat, nothing cached, unpublished", FILES, busy, |number| {
        drop(black_box(work.stat(name(&names, number)).expect("there")));
    });
    work.flush().expect("published");
    measure("stat, nothing cached, published", FILES, busy, |number| {
        drop(black_box(work.stat(name(&names, number)).expect("there")));
    });
    work.resize_cache(before);
    let view = work.view().expect("a view");
    measure("stat in a view", FILES, busy, |number| {
        drop(black_box(view.stat(name(&names, number)).expect("there")));
    });
}

fn name(names: &[String], number: u64) -> &str {
    &names[(number.wrapping_mul(7_919_993) % FILES) as usize]
}

fn cache() {
    let cache = InodeCache::new(1 << 30);
    let attr = Arc::new(Attr { name: b"some-file.rs".to_vec(), ..Attr::new(FileKind::File, 0o644) });
    measure("cache put", COUNT, busy, |number| {
        if let Err(ticket) = cache.attr(Ino(number)) {
            cache.put_attr(Ino(number), &attr, ticket);
        }
    });
    measure("cache hit", COUNT, busy, |number| assert!(black_box(cache.attr(Ino(number))).is_ok()));
    measure("cache miss", COUNT, busy, |number| assert!(black_box(cache.attr(Ino(number + COUNT))).is_err()));
}

/// Prints what one of `count` operations takes.
fn measure(what: &str, count: u64, clock: fn() -> Duration, mut run: impl FnMut(u64)) {
    let mut best = Duration::MAX;
    let mut allocations = u64::MAX;
    for _ in 0..ROUNDS {
        let (start, before) = (clock(), ALLOCATIONS.load(Ordering::Relaxed));
        (0..count).for_each(&mut run);
        best = best.min(clock() - start);
        allocations = allocations.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    let each = best.as_nanos() as f64 / count as f64;
    println!("{what}: {each:.0} ns, {:.2} allocations", allocations as f64 / count as f64);
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Time that passes.
fn elapsed() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

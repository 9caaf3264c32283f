//! What the library costs a program.
//!
//! One thread at work is measured in its processor time: the machine's other work is not ours. What waits for a disk
//! is in real time. `VELLUM_BENCH_DIR` names the directory to work in.

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::measurement::{Measurement, WallTime};
use vellum_benchkit::criterion::{Bencher, Criterion};
use vellum_benchkit::{
    CountingAllocator, ProcessorTime, RandomData, RenewedFixture, assert_allocates, busy, elapsed, scale,
    scratch, waiting,
};
use vellum_library::{Tree, Volume, VolumeOptions, Worktree};

/// Views that are kept at once.
const KEPT: u64 = 1000;
/// Durable snapshots after which all is published.
const SNAPSHOTS: u64 = 50;
/// Files of one directory.
const FILES: u64 = 20_000;
/// Allocations that a warm `stat` may make: what it answers with.
const STAT_ALLOCATIONS: u64 = 8;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() {
    let mut criterion = busy();
    views(&mut criterion);
    stats(&mut criterion);
    snapshots(&mut criterion, "busy", |work| ProcessorTime::THREAD.time(work));
    let mut criterion = waiting();
    snapshots(&mut criterion, "durable", elapsed);
    syncs(&mut criterion);
}

/// A live worktree in a directory of its own.
struct Place {
    work: Worktree,
    _dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = scratch();
        let new = VolumeOptions { store: None, plain: false };
        let volume = Volume::create_with(dir.path(), &new).expect("a volume").volume;
        let work = volume.create_worktree("work", None).expect("a worktree");
        work.write("file", "content").expect("written");
        Self { work, _dir: dir }
    }

    fn change(&self) {
        self.work.chmod("file", 0o600).expect("changed");
    }
}

fn views(criterion: &mut Criterion<ProcessorTime>) {
    let place = LazyCell::new(Place::new);
    let mut group = criterion.benchmark_group("library/view");
    group.bench_function("alone", |bencher| {
        let work = &place.work;
        bencher.iter(|| drop(work.view().expect("a view")));
    });
    let mut kept = RenewedFixture::new(KEPT, Vec::new);
    group.bench_function("1000-kept", |bencher| {
        let work = &place.work;
        bencher.iter_custom(|times| {
            kept.time(
                times,
                |work| ProcessorTime::THREAD.time(work),
                |kept, _| kept.push(work.view().expect("a view")),
            )
        });
    });
    drop(kept);
    group.bench_function("then-chmod", |bencher| {
        let place = &*place;
        bencher.iter(|| {
            let _view = place.work.view().expect("a view");
            place.change();
        });
    });
    group.bench_function("chmod-alone", |bencher| {
        let place = &*place;
        bencher.iter(|| place.change());
    });
    group.finish();
}

/// A change and a snapshot that waits until the journal is on the disk: by the clock, or in the caller's own time.
fn snapshots<M: Measurement<Value = std::time::Duration> + 'static>(
    criterion: &mut Criterion<M>,
    name: &str,
    clock: impl Fn(&mut dyn FnMut()) -> std::time::Duration,
) {
    let place = LazyCell::new(Place::new);
    let mut rounds = RenewedFixture::new(SNAPSHOTS, || place.work.flush().expect("published"));
    let mut group = criterion.benchmark_group("library/snapshot");
    group.sample_size(10);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            rounds.time(times, &clock, |(), _| {
                place.change();
                place.work.snapshot("").expect("a snapshot");
            })
        });
    });
    group.finish();
}

/// What making a change durable takes alone.
fn syncs(criterion: &mut Criterion<WallTime>) {
    let place = LazyCell::new(Place::new);
    let mut group = criterion.benchmark_group("library/sync");
    group.sample_size(10);
    group.bench_function("durable", |bencher| {
        let place = &*place;
        bencher.iter(|| {
            place.change();
            place.work.sync().expect("synced");
        });
    });
    group.finish();
}

/// A path of ten levels, and a directory with many files.
struct Files {
    place: Place,
    path: String,
    names: Vec<String>,
}

impl Files {
    fn new(published: bool) -> Self {
        let place = Place::new();
        let deep = (0..9).map(|level| format!("directory-{level}")).collect::<Vec<_>>().join("/");
        place.work.mkdir_all(&deep).expect("made");
        let path = format!("{deep}/file");
        place.work.write(&path, "x").expect("written");
        place.work.mkdir("many").expect("made");
        let files = scale("VELLUM_BENCH_FILES", FILES);
        let mut names: Vec<String> = (0..files).map(|number| format!("many/file-{number}")).collect();
        names.iter().for_each(|name| place.work.write(name, "x").expect("written"));
        let mut random = RandomData(1);
        names.sort_by_cached_key(|_| random.next());
        if published {
            place.work.flush().expect("published");
        }
        Self { place, path, names }
    }
}

fn stats(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("library/stat");
    let files = LazyCell::new(|| Files::new(false));
    group.bench_function("path-of-10-levels", |bencher| {
        let (work, path) = (&files.place.work, &files.path);
        bencher.iter(|| work.stat(path).expect("there"));
        assert_allocates("a warm stat", STAT_ALLOCATIONS, KEPT, |_| drop(work.stat(path).expect("there")));
    });
    group.bench_function("warm", |bencher| {
        let (work, mut names) = (&files.place.work, files.names.iter().cycle());
        bencher.iter(|| work.stat(names.next().expect("a cycle has no end")).expect("there"));
    });
    let published = LazyCell::new(|| Files::new(true));
    group.bench_function("path-of-10-levels-not-cached", |bencher| {
        let (work, path) = (&published.place.work, &published.path);
        work.resize_cache(0);
        bencher.iter(|| work.stat(path).expect("there"));
    });
    group.bench_function("not-cached-unpublished", |bencher| not_cached(bencher, &files));
    group.bench_function("not-cached-published", |bencher| not_cached(bencher, &published));
    group.bench_function("in-a-view", |bencher| {
        let (view, mut names) =
            (published.place.work.view().expect("a view"), published.names.iter().cycle());
        bencher.iter(|| view.stat(names.next().expect("a cycle has no end")).expect("there"));
    });
    group.finish();
}

fn not_cached(bencher: &mut Bencher<'_, ProcessorTime>, files: &Files) {
    let (work, mut names) = (&files.place.work, files.names.iter().cycle());
    work.resize_cache(0);
    bencher.iter(|| work.stat(names.next().expect("a cycle has no end")).expect("there"));
}

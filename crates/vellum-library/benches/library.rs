//! What the library costs a program.
//!
//! One thread at work is measured in its processor time: the machine's other work is not ours. What waits for a disk
//! is in real time. `VELLUM_BENCH_DIR` names the directory to work in.

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::measurement::Measurement;
use vellum_benchkit::criterion::{Bencher, Criterion};
use vellum_benchkit::{
    BenchClock, RandomData, RenewedFixture, assert_max_allocations, create_scratch_dir, setup_size,
    thread_time_criterion, wall_time_criterion,
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

fn main() {
    let mut criterion = thread_time_criterion();
    bench_views(&mut criterion);
    bench_stats(&mut criterion);
    bench_snapshots(&mut criterion, "busy", |work| BenchClock::Thread.measure(work));
    let mut criterion = wall_time_criterion();
    bench_snapshots(&mut criterion, "durable", |work| BenchClock::Wall.measure(work));
    bench_syncs(&mut criterion);
}

/// A live worktree in a directory of its own.
struct Place {
    work: Worktree,
    _dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = create_scratch_dir();
        let new = VolumeOptions::default();
        let volume = Volume::create_with(dir.path(), &new).expect("a volume").volume;
        let work = volume.create_worktree("work", None).expect("a worktree");
        work.write("file", "content").expect("written");
        Self { work, _dir: dir }
    }

    fn change_file(&self) {
        self.work.chmod("file", 0o600).expect("changed");
    }
}

fn bench_views(criterion: &mut Criterion<BenchClock>) {
    let place = LazyCell::new(Place::new);
    let mut group = criterion.benchmark_group("library/view");
    group.bench_function("alone", |bencher| {
        let work = &place.work;
        bencher.iter(|| drop(work.open_view().expect("a view")));
    });
    let mut kept = RenewedFixture::new(KEPT, Vec::new);
    group.bench_function("1000-kept", |bencher| {
        let work = &place.work;
        bencher.iter_custom(|times| {
            kept.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |kept, _| kept.push(work.open_view().expect("a view")),
            )
        });
    });
    drop(kept);
    group.bench_function("then-chmod", |bencher| {
        let place = &*place;
        bencher.iter(|| {
            let _view = place.work.open_view().expect("a view");
            place.change_file();
        });
    });
    group.bench_function("chmod-alone", |bencher| {
        let place = &*place;
        bencher.iter(|| place.change_file());
    });
    group.finish();
}

/// A change and a snapshot that waits until the journal is on the disk: by the clock, or in the caller's own time.
fn bench_snapshots<M: Measurement<Value = std::time::Duration> + 'static>(
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
            rounds.measure_operations(times, &clock, |(), _| {
                place.change_file();
                place.work.create_snapshot("").expect("a snapshot");
            })
        });
    });
    group.finish();
}

/// What making a change durable takes alone.
fn bench_syncs(criterion: &mut Criterion<BenchClock>) {
    let place = LazyCell::new(Place::new);
    let mut group = criterion.benchmark_group("library/sync");
    group.sample_size(10);
    group.bench_function("durable", |bencher| {
        let place = &*place;
        bencher.iter(|| {
            place.change_file();
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
        let files = setup_size("VELLUM_BENCH_FILES", FILES);
        let mut names: Vec<String> = (0..files).map(|number| format!("many/file-{number}")).collect();
        names.iter().for_each(|name| place.work.write(name, "x").expect("written"));
        let mut random = RandomData(1);
        names.sort_by_cached_key(|_| random.next_number());
        if published {
            place.work.flush().expect("published");
        }
        Self { place, path, names }
    }
}

fn bench_stats(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("library/stat");
    let files = LazyCell::new(|| Files::new(false));
    group.bench_function("path-of-10-levels", |bencher| {
        let work = &files.place.work;
        let path = &files.path;
        bencher.iter(|| work.stat(path).expect("there"));
        assert_max_allocations("a warm stat", STAT_ALLOCATIONS, KEPT, |_| {
            drop(work.stat(path).expect("there"))
        });
    });
    group.bench_function("warm", |bencher| {
        let work = &files.place.work;
        let mut names = files.names.iter().cycle();
        bencher.iter(|| work.stat(names.next().expect("a cycle has no end")).expect("there"));
    });
    let published = LazyCell::new(|| Files::new(true));
    group.bench_function("path-of-10-levels-not-cached", |bencher| {
        let work = &published.place.work;
        let path = &published.path;
        work.resize_cache(0);
        bencher.iter(|| work.stat(path).expect("there"));
    });
    group.bench_function("not-cached-unpublished", |bencher| bench_uncached_stats(bencher, &files));
    group.bench_function("not-cached-published", |bencher| bench_uncached_stats(bencher, &published));
    group.bench_function("in-a-view", |bencher| {
        let view = published.place.work.open_view().expect("a view");
        let mut names = published.names.iter().cycle();
        bencher.iter(|| view.stat(names.next().expect("a cycle has no end")).expect("there"));
    });
    group.finish();
}

fn bench_uncached_stats(bencher: &mut Bencher<'_, BenchClock>, files: &Files) {
    let work = &files.place.work;
    let mut names = files.names.iter().cycle();
    work.resize_cache(0);
    bencher.iter(|| work.stat(names.next().expect("a cycle has no end")).expect("there"));
}

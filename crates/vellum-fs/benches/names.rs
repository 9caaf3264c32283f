//! What names cost without a kernel: the requests that the kernel sends for an operation, one after the other.
//!
//! The live metadata are in the engine of this machine, all in a temporary directory (`VELLUM_BENCH_DIR` sets another
//! place). Processor time of the one thread that works.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

mod filesystem;

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{BenchClock, RenewedFixture, thread_time_criterion};
use vellum_fs::{AttributeChanges, LiveFilesystem, RenameFlags, RequestCaller, StateReader, TimeChange};
use vellum_host::clock::current_time;
use vellum_types::Ino;

use crate::filesystem::open_new_filesystem;

/// Files of a worktree, each of which is used once.
const FILES: u64 = 10_000;
/// Released inodes after which a mount removes them: what comes within its 10 ms.
const RELEASED: u64 = 200;
const CALLER: RequestCaller = RequestCaller { uid: 0, gid: 0, umask: 0 };

fn main() {
    let mut criterion = thread_time_criterion();
    for (name, len) in [("empty", 0), ("4KiB", 4096), ("16KiB", 16 << 10)] {
        bench_unlink(&mut criterion, name, len);
        bench_rename(&mut criterion, name, len);
        bench_chmod(&mut criterion, name, len);
        bench_listing(&mut criterion, name, len);
    }
    bench_names(&mut criterion);
}

struct Bench {
    _dir: TempDir,
    fs: LiveFilesystem,
    inodes: Vec<Ino>,
}

impl Bench {
    /// Files of one size in one directory, all known to a kernel, and their attributes in no cache.
    fn with_files(len: usize) -> Self {
        let (dir, fs) = open_new_filesystem();
        let make = |number| {
            let ino = fs.names().create(Ino::ROOT, &file_name(number), 0o644, CALLER).unwrap().ino;
            if len > 0 {
                fs.content().write(ino, 0, &vec![7; len], false).unwrap();
            }
            fs.epochs().hold_inode(fs.epochs().current_epoch(), ino).unwrap();
            ino
        };
        let inodes = (0..FILES).map(make).collect();
        Self { _dir: dir, fs, inodes }
    }

    fn ino(&self, number: u64) -> Ino {
        self.inodes[usize::try_from(number).unwrap()]
    }

    /// What the kernel asks of an inode whose time it has set, and of the directory in which it was.
    fn finish_change(&self, ino: Ino) {
        self.fs.live_map().bare_inode_attr(ino).unwrap();
        self.fs.live_map().bare_inode_attr(Ino::ROOT).unwrap();
    }
}

fn file_name(number: u64) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

fn bench_each(
    criterion: &mut Criterion<BenchClock>,
    group: &str,
    (name, len): (&str, usize),
    work: impl Fn(&Bench, u64) + Copy,
) {
    let mut group = criterion.benchmark_group(group);
    let mut benches = RenewedFixture::new(FILES, || Bench::with_files(len));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            benches.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |bench, number| work(bench, number),
            )
        });
    });
    group.finish();
}

/// UNLINK, SETATTR of the time of change (of which a mount makes nothing), GETATTR of the directory, FORGET.
fn bench_unlink(criterion: &mut Criterion<BenchClock>, name: &str, len: usize) {
    bench_each(criterion, "names/unlink", (name, len), |bench, number| {
        let ino = bench.ino(number);
        bench.fs.names().unlink(Ino::ROOT, &file_name(number), 0).unwrap();
        bench.finish_change(ino);
        bench.fs.epochs().defer_inode_release(bench.fs.epochs().current_epoch(), ino, 1).unwrap();
        if number % RELEASED == RELEASED - 1 {
            bench.fs.epochs().remove_released_orphans().unwrap();
        }
    });
}

/// LOOKUP of the new name, RENAME, SETATTR of the time of change, GETATTR of the directory.
fn bench_rename(criterion: &mut Criterion<BenchClock>, name: &str, len: usize) {
    bench_each(criterion, "names/rename", (name, len), |bench, number| {
        let to = format!("renamed-{number}").into_bytes();
        bench.fs.names().lookup(Ino::ROOT, &to).unwrap_err();
        bench
            .fs
            .names()
            .rename(Ino::ROOT, &file_name(number), Ino::ROOT, &to, RenameFlags::default())
            .unwrap();
        let set = AttributeChanges { ctime: Some(current_time()), ..AttributeChanges::default() };
        bench.fs.attributes().setattr(bench.ino(number), &set, CALLER).unwrap();
        bench.fs.live_map().bare_inode_attr(Ino::ROOT).unwrap();
    });
}

/// SETATTR of the mode, and of a time.
fn bench_chmod(criterion: &mut Criterion<BenchClock>, name: &str, len: usize) {
    bench_each(criterion, "names/setattr", (name, len), |bench, number| {
        let set = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        bench.fs.attributes().setattr(bench.ino(number), &set, CALLER).unwrap();
        let set = AttributeChanges { mtime: Some(TimeChange::Now), ..AttributeChanges::default() };
        bench.fs.attributes().setattr(bench.ino(number), &set, CALLER).unwrap();
    });
}

/// An entry of READDIRPLUS.
fn bench_listing(criterion: &mut Criterion<BenchClock>, name: &str, len: usize) {
    bench_each(criterion, "names/listed", (name, len), |bench, number| {
        let ino = bench.ino(number);
        let bare = bench.fs.live_map().bare_inode_attr(ino).unwrap();
        bench.fs.content().stored_bytes_of_bare(ino, &bare).unwrap();
    });
}

/// READDIR of a directory of ten thousand names.
fn bench_names(criterion: &mut Criterion<BenchClock>) {
    let held = LazyCell::new(|| Bench::with_files(0));
    let mut group = criterion.benchmark_group("names/list");
    group.throughput(Throughput::Elements(FILES));
    group.bench_function("10000", |bencher| {
        let bench = &*held;
        bencher.iter(|| bench.fs.list_entries(Ino::ROOT).unwrap());
    });
    group.finish();
}

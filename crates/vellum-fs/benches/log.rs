//! The write log by itself: appending, appending and waiting for the disk, reading.
//!
//! Appending is processor time; what waits for the disk is real time, and stands in rows of its own.
//! `VELLUM_BENCH_DIR` chooses the disk.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::measurement::WallTime;
use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{ProcessorTime, RenewedFixture, busy, elapsed, noise, scratch, waiting};
use vellum_fs::WriteLog;

/// Bytes after which a log is made anew.
const LOG: u64 = 64 << 20;
const SIZES_KIB: [u64; 2] = [4, 128];

fn main() {
    let mut criterion = busy();
    appends(&mut criterion);
    reads(&mut criterion);
    syncs(&mut waiting());
}

fn open() -> (WriteLog, TempDir) {
    let dir = scratch();
    (WriteLog::open(&dir.path().join("log"), u64::MAX).unwrap(), dir)
}

fn appends(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("log/append");
    for kib in SIZES_KIB {
        let data = noise(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let mut logs = RenewedFixture::new(LOG / data.len() as u64, open);
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter_custom(|times| {
                logs.time(
                    times,
                    |work| ProcessorTime::THREAD.time(work),
                    |(log, _), _| drop(log.append(&data).unwrap()),
                )
            });
        });
    }
    group.finish();
}

fn syncs(criterion: &mut Criterion<WallTime>) {
    let mut group = criterion.benchmark_group("log/append-and-sync");
    group.sample_size(20);
    for kib in SIZES_KIB {
        let data = noise(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let mut logs = RenewedFixture::new(LOG / data.len() as u64, open);
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter_custom(|times| {
                logs.time(times, elapsed, |(log, _), _| {
                    drop(log.append(&data).unwrap());
                    log.sync().unwrap();
                })
            });
        });
    }
    group.finish();
}

fn reads(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("log/read");
    for kib in SIZES_KIB {
        let mut data = noise(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let held = LazyCell::new(|| {
            let (log, dir) = open();
            let places = (0..LOG / (kib * 1024)).map(|_| log.append(&noise(1, kib as usize * 1024)).unwrap());
            let places: Vec<_> = places.collect();
            (log, places, dir)
        });
        group.bench_function(format!("{kib}KiB"), |bencher| {
            let (log, places, _) = &*held;
            let mut places = places.iter().cycle();
            bencher.iter(|| {
                let place = places.next().unwrap();
                log.read(place.segment, place.offset, &mut data).unwrap();
            });
        });
    }
    group.finish();
}

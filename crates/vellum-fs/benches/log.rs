//! The write log by itself: appending, appending and waiting for the disk, reading.
//!
//! Appending is processor time; what waits for the disk is real time, and stands in rows of its own.
//! `VELLUM_BENCH_DIR` chooses the disk.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{
    BenchClock, RenewedFixture, create_scratch_dir, random_bytes, thread_time_criterion, wall_time_criterion,
};
use vellum_fs::WriteLog;

/// Bytes after which a log is made anew.
const LOG: u64 = 64 << 20;
const SIZES_KIB: [u64; 2] = [4, 128];

fn main() {
    let mut criterion = thread_time_criterion();
    bench_appends(&mut criterion);
    bench_reads(&mut criterion);
    bench_syncs(&mut wall_time_criterion());
}

fn open_log() -> (WriteLog, TempDir) {
    let dir = create_scratch_dir();
    (WriteLog::open(&dir.path().join("log"), u64::MAX).unwrap(), dir)
}

fn bench_appends(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("log/append");
    for kib in SIZES_KIB {
        let data = random_bytes(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let mut logs = RenewedFixture::new(LOG / data.len() as u64, open_log);
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter_custom(|times| {
                logs.measure_operations(
                    times,
                    |work| BenchClock::Thread.measure(work),
                    |(log, _), _| drop(log.append_data(&data).unwrap()),
                )
            });
        });
    }
    group.finish();
}

fn bench_syncs(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("log/append-and-sync");
    group.sample_size(20);
    for kib in SIZES_KIB {
        let data = random_bytes(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let mut logs = RenewedFixture::new(LOG / data.len() as u64, open_log);
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter_custom(|times| {
                logs.measure_operations(
                    times,
                    |work| BenchClock::Wall.measure(work),
                    |(log, _), _| {
                        drop(log.append_data(&data).unwrap());
                        log.sync_log().unwrap();
                    },
                )
            });
        });
    }
    group.finish();
}

fn bench_reads(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("log/read");
    for kib in SIZES_KIB {
        let mut data = random_bytes(1, kib as usize * 1024);
        group.throughput(Throughput::Bytes(data.len() as u64));
        let held = LazyCell::new(|| {
            let (log, dir) = open_log();
            let places = (0..LOG / (kib * 1024))
                .map(|_| log.append_data(&random_bytes(1, kib as usize * 1024)).unwrap());
            let places: Vec<_> = places.collect();
            (log, places, dir)
        });
        group.bench_function(format!("{kib}KiB"), |bencher| {
            let (log, places, _) = &*held;
            let mut places = places.iter().cycle();
            bencher.iter(|| {
                let place = places.next().unwrap();
                log.read_data(place.segment, place.offset, &mut data).unwrap();
            });
        });
    }
    group.finish();
}

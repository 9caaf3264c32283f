//! What it costs to count how long something took; a read of 4 KiB through a mount takes ten thousand nanoseconds and more.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vellum_benchkit::thread_time_criterion;
use vellum_host::DurationHistogram;

fn main() {
    let mut criterion = thread_time_criterion();
    let histogram = DurationHistogram::default();
    let mut nanos = 0;
    criterion.bench_function("histogram/record/one-thread", |bench| {
        bench.iter(|| {
            nanos = (nanos + 977) % 1_000_000;
            histogram.record_duration(black_box(Duration::from_nanos(nanos)));
        });
    });
    criterion.bench_function("histogram/record/with-two-looks-at-the-clock", |bench| {
        bench.iter(|| {
            let start = black_box(Instant::now());
            histogram.record_duration(start.elapsed());
        });
    });
}

//! What it costs to count how long a request took: `cargo bench -p vellum-types`. Best of a few rounds, one thread and
//! two, in nanoseconds; a read of 4 KiB through a mount takes ten thousand and more.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vellum_types::Histogram;

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 10;

fn main() {
    let histogram = Histogram::default();
    let record = |number: u32| histogram.record(Duration::from_nanos(u64::from(number)));
    let timed = |_: u32| {
        let start = Instant::now();
        black_box(());
        histogram.record(start.elapsed());
    };
    tell("record", best(1, &record));
    tell("record, two threads", best(2, &record));
    tell("two looks at the clock, and record", best(1, &timed));
    tell("the same, two threads", best(2, &timed));
}

fn tell(what: &str, nanos: f64) {
    println!("{what:<40} {nanos:>8.1} ns");
}

/// Nanoseconds of one call.
fn best(threads: u32, work: &(impl Fn(u32) + Sync)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..TIMES).for_each(|number| work(black_box(number))));
            }
        });
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

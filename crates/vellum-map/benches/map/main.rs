//! What the map and the layers on it cost. `VELLUM_BENCH_KEYS=10000000` is the size for which there are targets.
//!
//! Keys have 17 bytes, values 40; nodes are in memory and in the cache. Ids do not name the number of keys, so records
//! of different sizes must not be compared.

mod changes;
mod entries;
mod gets;
mod layers;

use std::cell::LazyCell;

use entries::Base;
use vellum_benchkit::{setup_size, thread_time_criterion};

fn main() {
    let keys = setup_size("VELLUM_BENCH_KEYS", 1_000_000);
    let mut criterion = thread_time_criterion();
    let base = LazyCell::new(move || Base::build_cached(keys));
    gets::bench_build(&mut criterion, keys);
    gets::bench_scans(&mut criterion, &base);
    gets::bench_point_gets(&mut criterion, &base);
    changes::bench_apply_clustered(&mut criterion, &base);
    changes::bench_apply_scattered(&mut criterion, &base);
    changes::bench_diffs(&mut criterion, &base);
    layers::bench_puts(&mut criterion);
    layers::bench_gets(&mut criterion, &base);
    layers::bench_ranges(&mut criterion, &base);
    gets::bench_yardsticks(&mut criterion, keys);
}

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
use vellum_benchkit::{busy, scale};

fn main() {
    let keys = scale("VELLUM_BENCH_KEYS", 1_000_000);
    let mut criterion = busy();
    let base = LazyCell::new(move || Base::warm(keys));
    gets::build(&mut criterion, keys);
    gets::scans(&mut criterion, &base);
    gets::points(&mut criterion, &base);
    changes::apply_clustered(&mut criterion, &base);
    changes::apply_scattered(&mut criterion, &base);
    changes::diffs(&mut criterion, &base);
    layers::puts(&mut criterion);
    layers::gets(&mut criterion, &base);
    layers::ranges(&mut criterion, &base);
    gets::yardsticks(&mut criterion, keys);
}

//! What benches share: how long they run, by which clock, on what data, and how a figure that is not a time is
//! reported.
//!
//! Invariant: every bench of the workspace is a [`Criterion`] one whose id is `group/what/of-what`, so that records of
//! different commits can be compared row by row. Deliberately absent: the structures that are measured, and anything
//! that tests need.
//!
//! One thread at work is measured in its own processor time ([`thread_time_criterion`]): the machine's other work is not the
//! structure's. What waits for a disk or for other threads is measured in real time ([`wall_time_criterion`]). Set-ups stand inside
//! the closures that Criterion calls, or in a `LazyCell`, so that a filter saves them, too.

mod allocations;
mod clock;
mod data;
mod figure;
mod renewed;
mod scale;

use std::time::Duration;

/// The harness itself, of one version for all.
pub use criterion;
use criterion::Criterion;

pub use allocations::{AllocationCount, assert_max_allocations, count_allocations, count_retained_bytes};
pub use clock::{BenchClock, measure_wall_time};
pub use data::{RandomData, generate_text, random_bytes};
pub use figure::record_figure;
pub use renewed::RenewedFixture;
pub use scale::{create_scratch_dir, is_measuring, setup_size};

/// Before anything is measured: caches are warm and the processor is awake after this.
const WARM_UP: Duration = Duration::from_millis(400);
/// For each bench. With some eighty of them all take about five minutes.
const MEASURED: Duration = Duration::from_millis(1500);
/// Enough for a median that moves by less than a percent; the analysis of more would take longer than they do.
const SAMPLES: usize = 40;
const RESAMPLES: usize = 10_000;

/// Benches of one thread at work, in its processor time. Takes Criterion's arguments from the command line.
#[must_use]
pub fn thread_time_criterion() -> Criterion<BenchClock> {
    configure_criterion(Criterion::default().with_measurement(BenchClock::Thread))
}

/// Benches that hand work to other threads, in the processor time of all. Takes the same arguments.
#[must_use]
pub fn process_time_criterion() -> Criterion<BenchClock> {
    configure_criterion(Criterion::default().with_measurement(BenchClock::Process))
}

/// Benches that wait for a disk or for other threads, in real time. Takes Criterion's arguments from the command line.
#[must_use]
pub fn wall_time_criterion() -> Criterion<BenchClock> {
    configure_criterion(Criterion::default().with_measurement(BenchClock::Wall))
}

fn configure_criterion(criterion: Criterion<BenchClock>) -> Criterion<BenchClock> {
    criterion
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURED)
        .sample_size(SAMPLES)
        .nresamples(RESAMPLES)
        .without_plots()
        // Last, so that the command line has the last word.
        .configure_from_args()
}

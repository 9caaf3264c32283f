//! What Criterion measures: processor time, real time, or what is allocated.
//!
//! Invariant: values are nanoseconds, as those of [`WallTime`], so that readers of records need not know the clock. With
//! `VELLUM_BENCH_QUANTITY=allocations` or `bytes` every clock counts allocations or their bytes instead, one for a
//! nanosecond: benches need not know that, and `bench/run.py micro` runs them a second and a third time for it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use rustix::time::{ClockId, clock_gettime};

use crate::allocations::AllocationCount;

/// Names what clocks measure.
const QUANTITY: &str = "VELLUM_BENCH_QUANTITY";

/// What every clock of this process measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BenchQuantity {
    Time,
    Allocations,
    AllocatedBytes,
}

impl BenchQuantity {
    fn of_process() -> Self {
        // Asked once: to read the variable allocates, which would be counted.
        static CHOSEN: OnceLock<BenchQuantity> = OnceLock::new();
        *CHOSEN.get_or_init(|| match std::env::var(QUANTITY).as_deref() {
            Err(_) => Self::Time,
            Ok("allocations") => Self::Allocations,
            Ok("bytes") => Self::AllocatedBytes,
            Ok(other) => panic!("{QUANTITY}={other}: it is either allocations or bytes"),
        })
    }
}

/// A clock of one thread, of all threads of the process, or of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchClock {
    /// Processor time of the thread that runs the bench.
    Thread,
    /// Processor time of all threads, where work is handed to others.
    Process,
    /// Real time, where something waits for a disk or for other threads.
    Wall,
}

impl BenchClock {
    /// What it shows: only differences mean something.
    #[must_use]
    pub fn read(self) -> Duration {
        let quantity = BenchQuantity::of_process();
        if quantity == BenchQuantity::Time {
            return self.read_time();
        }
        let count = match self {
            Self::Thread => AllocationCount::of_thread(),
            // Other processes cannot be counted.
            Self::Process | Self::Wall => AllocationCount::of_process(),
        };
        match quantity {
            BenchQuantity::AllocatedBytes => Duration::from_nanos(count.bytes),
            // The time was returned above.
            BenchQuantity::Allocations | BenchQuantity::Time => Duration::from_nanos(count.calls),
        }
    }

    fn read_time(self) -> Duration {
        let clock = match self {
            Self::Thread => ClockId::ThreadCPUTime,
            Self::Process => ClockId::ProcessCPUTime,
            // The time of day may be set while a bench runs.
            Self::Wall => ClockId::Monotonic,
        };
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    /// What it shows more since it was read. At least a nanosecond, since Criterion divides by it.
    #[must_use]
    pub fn read_since(self, start: Duration) -> Duration {
        (self.read() - start).max(Duration::from_nanos(1))
    }

    /// What it shows more after something was done.
    pub fn measure(self, work: &mut dyn FnMut()) -> Duration {
        let start = self.read();
        work();
        self.read_since(start)
    }
}

impl Measurement for BenchClock {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        self.read()
    }

    fn end(&self, start: Duration) -> Duration {
        self.read_since(start)
    }

    fn add(&self, first: &Duration, second: &Duration) -> Duration {
        *first + *second
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// The time that passes while something is done, whatever clocks measure.
pub fn measure_wall_time(work: &mut dyn FnMut()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_work_moves_with_work() {
        let mut sum = 0_u64;
        let mut work = || (0..1_000_000_u64).for_each(|number| sum = std::hint::black_box(sum ^ number));
        for clock in [BenchClock::Thread, BenchClock::Process, BenchClock::Wall] {
            let took = clock.measure(&mut work);
            assert!(took > Duration::from_nanos(1), "{clock:?} {took:?}");
        }
    }

    #[test]
    fn nothing_takes_more_than_no_time() {
        assert!(BenchClock::Thread.measure(&mut || ()) > Duration::ZERO);
    }
}

//! Processor time, as something that Criterion measures.
//!
//! Invariant: values are nanoseconds, as those of [`WallTime`], so that readers of records need not know the clock.

use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// Processor time, of one thread or of all of the process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessorTime(ClockId);

impl ProcessorTime {
    /// Of the thread that runs the bench.
    pub const THREAD: Self = Self(ClockId::ThreadCPUTime);
    /// Of all threads, where work is handed to others.
    pub const PROCESS: Self = Self(ClockId::ProcessCPUTime);

    /// What was computed so far.
    #[must_use]
    pub fn read_time(self) -> Duration {
        let time = clock_gettime(self.0);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    /// What is computed while something is done. At least a nanosecond, since Criterion divides by it.
    pub fn measure_time(self, work: &mut dyn FnMut()) -> Duration {
        let start = self.read_time();
        work();
        self.end(start)
    }
}

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        self.read_time()
    }

    fn end(&self, start: Duration) -> Duration {
        (self.read_time() - start).max(Duration::from_nanos(1))
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

/// The time that passes while something is done.
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
        let thread = ProcessorTime::THREAD.measure_time(&mut work);
        let process = ProcessorTime::PROCESS.measure_time(&mut work);
        assert!(thread > Duration::from_nanos(1), "{thread:?}");
        assert!(process > Duration::from_nanos(1), "{process:?}");
    }

    #[test]
    fn nothing_takes_more_than_no_time() {
        assert!(ProcessorTime::THREAD.measure_time(&mut || ()) > Duration::ZERO);
    }
}

//! The clock that the kernel uses for timestamps of files: the coarse one.
//!
//! The kernel stamps cached writes with `CLOCK_REALTIME_COARSE`. If a new file were stamped by a finer clock, its first
//! write would set an earlier time, by up to a tick, and the kernel would have to write the times to the filesystem
//! again.

use rustix::time::{ClockId, clock_gettime};
use vellum_types::UnixTime;

/// The time of the kernel's last tick.
#[must_use]
pub fn current_time() -> UnixTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    // The kernel gives less than 10^9 nanoseconds, so that the other value is never taken.
    UnixTime { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn it_is_not_ahead_of_the_clock_with_which_the_kernel_stamps_files() {
        use std::os::unix::fs::MetadataExt;
        let before = current_time();
        let made = tempfile::tempfile().unwrap().metadata().unwrap();
        let stamped = UnixTime { secs: made.mtime(), nanos: u32::try_from(made.mtime_nsec()).unwrap() };
        assert!(before <= stamped);
    }
}

//! `--bwlimit`: the rate of a run, which all of its threads share.
//!
//! Invariant: over any period the bytes are those that the rate allows in that period, and at most those of [`CREDIT`]
//! more. Deliberately absent: waiting.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time without transfers that is made up for afterwards, at most. A run that waited for a minute would otherwise send
/// the bytes of that minute at once.
const CREDIT: Duration = Duration::from_secs(1);

/// The bandwidth of a run.
pub(super) struct BandwidthLimit {
    /// Bytes per second.
    pub rate: u64,
    start: Instant,
    /// The time from the start at which all bytes so far may have gone.
    due: Mutex<Duration>,
}

impl BandwidthLimit {
    /// A limit in bytes per second, from now on.
    pub fn new(rate: u64) -> Self {
        Self { rate, start: Instant::now(), due: Mutex::default() }
    }

    /// Counts bytes; returns the time at which they may have gone.
    pub fn book_bytes(&self, bytes: u64) -> Instant {
        self.start + self.book_bytes_at(self.start.elapsed(), bytes)
    }

    fn book_bytes_at(&self, now: Duration, bytes: u64) -> Duration {
        let mut due = self.due.lock();
        *due =
            (*due).max(now.saturating_sub(CREDIT)) + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        *due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_made_up_for_by_one_second_at_most() {
        let limit = BandwidthLimit::new(1000);
        let seconds = Duration::from_secs;
        assert_eq!(limit.book_bytes_at(Duration::ZERO, 2000), seconds(2));
        assert_eq!(limit.book_bytes_at(seconds(2), 1000), seconds(3), "threads share one sum");
        assert_eq!(limit.book_bytes_at(seconds(60), 1000), seconds(60), "a second is made up for");
        assert_eq!(limit.book_bytes_at(seconds(60), 1000), seconds(61), "and no more");
    }
}

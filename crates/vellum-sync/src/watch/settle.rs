//! When to act on changes.
//!
//! Invariant: a pure function of the times that it is given; it reads no clock.

use std::time::{Duration, Instant};

/// The waiting times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchPace {
    /// Changes are acted on after this time without a further one.
    pub quiet: Duration,
    /// They are acted on after this time since the first one in any case.
    pub longest: Duration,
}

impl Default for WatchPace {
    fn default() -> Self {
        /// An editor saves a file in several steps, some milliseconds apart.
        const QUIET: Duration = Duration::from_millis(200);
        /// A program that writes all the time must not delay other changes for ever.
        const LONGEST: Duration = Duration::from_secs(5);
        Self { quiet: QUIET, longest: LONGEST }
    }
}

/// Waits for a quiet period.
#[derive(Debug, Clone)]
pub struct SettleTimer {
    pace: WatchPace,
    /// The times of the first change and of the last one that were not acted on.
    noticed: Option<(Instant, Instant)>,
}

impl SettleTimer {
    /// Starts without changes.
    #[must_use]
    pub fn new(pace: WatchPace) -> Self {
        Self { pace, noticed: None }
    }

    /// Records a change.
    pub fn record_event(&mut self, now: Instant) {
        let first = self.noticed.map_or(now, |(first, _)| first);
        self.noticed = Some((first, now));
    }

    /// The time until changes are to be acted on; zero: now. None: there are none.
    #[must_use]
    pub fn remaining_wait(&self, now: Instant) -> Option<Duration> {
        let (first, last) = self.noticed?;
        // Whichever comes first: quiet, or the longest wait since the first change.
        let due = (last + self.pace.quiet).min(first + self.pace.longest);
        Some(due.saturating_duration_since(now))
    }

    /// Forgets the changes so far, as they are acted on now.
    pub fn clear_events(&mut self) {
        self.noticed = None;
    }
}

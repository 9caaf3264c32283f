//! When to act on what was noticed.
//!
//! Invariant: a pure function of the moments it is told; it looks at no clock.

use std::time::{Duration, Instant};

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchPace {
    /// After the last change there is quiet for so long.
    pub quiet: Duration,
    /// But after so long since the first change nobody waits any more.
    pub longest: Duration,
}

impl Default for WatchPace {
    fn default() -> Self {
        /// Saving a file takes an editor several steps, some milliseconds apart.
        const QUIET: Duration = Duration::from_millis(200);
        /// A program that writes all the time must not put off everybody else's changes.
        const LONGEST: Duration = Duration::from_secs(5);
        Self { quiet: QUIET, longest: LONGEST }
    }
}

/// Waits for quiet.
#[derive(Debug, Clone)]
pub struct SettleTimer {
    pace: WatchPace,
    /// The first change and the last that were not acted on.
    noticed: Option<(Instant, Instant)>,
}

impl SettleTimer {
    /// Nothing was noticed yet.
    #[must_use]
    pub fn new(pace: WatchPace) -> Self {
        Self { pace, noticed: None }
    }

    /// Something was noticed.
    pub fn record_event(&mut self, now: Instant) {
        let first = self.noticed.map_or(now, |(first, _)| first);
        self.noticed = Some((first, now));
    }

    /// How long from now until something is to be done about it; zero: now. None: nothing was noticed.
    #[must_use]
    pub fn remaining_wait(&self, now: Instant) -> Option<Duration> {
        let (first, last) = self.noticed?;
        // Whichever comes first: quiet, or the longest wait since the first change.
        let due = (last + self.pace.quiet).min(first + self.pace.longest);
        Some(due.saturating_duration_since(now))
    }

    /// Something is done about all that was noticed so far.
    pub fn clear_events(&mut self) {
        self.noticed = None;
    }
}

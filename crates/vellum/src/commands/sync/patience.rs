//! Working again when a connection was cut.
//!
//! Invariant: a run is taken up only after a connection that had stood was lost: what never stood would not the next
//! time. Deliberately absent: what is done again (the caller knows what has arrived).

use std::time::{Duration, Instant};

use vellum_host::ProgressMeter;
use vellum_sync::model::options::SyncOptions;
use vellum_sync::two_way::ConnectionHealth;

/// How often a lost connection is made again by default.
const RETRIES: u32 = 3;
/// How long is waited before the first of these, and twice as long before each that follows.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest of these waits.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// How often it may still be tried.
pub struct RetryBudget {
    tries: u32,
    pause: Duration,
    cuts: u32,
}

impl RetryBudget {
    /// According to the options.
    pub fn new(options: &SyncOptions) -> Self {
        Self { tries: options.effort.retries.unwrap_or(RETRIES), pause: PAUSE, cuts: 0 }
    }

    /// Whether to work again, as connections have fared; after a pause, if so. `failed` says that something could not be
    /// done: what the other side was still writing after a cut can be in the way of the run that follows.
    pub fn should_retry(&mut self, lines: ConnectionHealth, failed: bool, meter: &ProgressMeter) -> bool {
        let is_cut = lines.cuts > self.cuts;
        let is_worth = is_cut || self.cuts > 0 && (lines.is_lost || failed);
        self.cuts = lines.cuts;
        if !is_worth || self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        tracing::info!(tries_left = self.tries, pause = ?self.pause, "the connection was cut: another is made");
        let start = Instant::now();
        // In short sleeps, so that Ctrl-C ends the pause soon.
        while start.elapsed() < self.pause && !meter.is_stopped() {
            std::thread::sleep(LOOK);
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        !meter.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_had_stood_is_made_again_and_not_for_ever() {
        let meter = ProgressMeter::default();
        let mut options = SyncOptions::default();
        options.effort.retries = Some(2);
        let lost = |cuts| ConnectionHealth { cuts, is_lost: true };
        let mut patience = RetryBudget { pause: Duration::ZERO, ..RetryBudget::new(&options) };
        assert!(!patience.should_retry(lost(0), true, &meter), "it never stood");
        assert!(patience.should_retry(lost(1), false, &meter));
        assert!(patience.should_retry(lost(1), false, &meter), "the other host is not back yet");
        assert!(!patience.should_retry(lost(2), true, &meter), "it was tried often enough");
        let mut patience = RetryBudget { pause: Duration::ZERO, ..RetryBudget::new(&options) };
        assert!(patience.should_retry(ConnectionHealth { cuts: 1, is_lost: false }, false, &meter));
        assert!(
            !patience.should_retry(ConnectionHealth { cuts: 1, is_lost: false }, false, &meter),
            "all is well"
        );
    }
}

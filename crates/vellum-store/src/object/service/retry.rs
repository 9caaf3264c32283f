//! When a failed request is repeated.
//!
//! Invariant: no operation is repeated for longer than allowed, and never without a growing pause. Repeats are a small
//! part of all requests, so that a service that is down is not overwhelmed by them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_host::wait::{LongWait, sleep_unless_stopped};

use super::failure::{FailedRequest, FailureClass};

/// The pause before the first repeat; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Repeats after wrong or cut answers, a count: then the object is damaged.
const GARBLED_MAX: u32 = 5;
/// How many repeats are saved up for bad times, a count.
const SAVED_MAX: f64 = 50.0;
/// The part of a repeat that each request earns.
// If more than one request in ten is repeated for long, pauses do not begin short any more.
const EARNED: f64 = 0.1;

/// What is known of a service from all requests so far.
pub(super) struct RequestRetryBudget {
    first_answer_max: Duration,
    has_answered: AtomicBool,
    saved: Mutex<f64>,
    repeats: AtomicU64,
}

/// The repeats of one operation.
pub(super) struct RetrySchedule<'a> {
    budget: &'a RequestRetryBudget,
    started: Instant,
    retry_for: Duration,
    repeats: u32,
    garbled: u32,
}

impl RequestRetryBudget {
    /// `first_answer_max`: how long a service is tried that has not answered yet.
    pub fn new(first_answer_max: Duration) -> Self {
        Self {
            first_answer_max,
            has_answered: AtomicBool::new(false),
            saved: Mutex::new(SAVED_MAX),
            repeats: AtomicU64::new(0),
        }
    }

    /// Begins an operation that may be repeated for `retry_for`.
    pub fn begin(&self, retry_for: Duration) -> RetrySchedule<'_> {
        let mut saved = self.saved.lock();
        *saved = (*saved + EARNED).min(SAVED_MAX);
        drop(saved);
        RetrySchedule { budget: self, started: Instant::now(), retry_for, repeats: 0, garbled: 0 }
    }

    /// Notes that the service answered.
    pub fn note_answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Notes that the service did not answer for as long as it was tried: until it does, it is tried no longer than one
    /// that has never answered.
    pub fn note_silence(&self) {
        self.has_answered.store(false, Ordering::Relaxed);
    }

    /// Requests that were repeated so far.
    pub fn repeat_count(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Takes a saved repeat, if there is one.
    fn take_repeat(&self) -> bool {
        let mut saved = self.saved.lock();
        let enough = *saved >= 1.0;
        if enough {
            *saved -= 1.0;
        }
        enough
    }
}

impl RetrySchedule<'_> {
    /// The pause before the next try, or `None` if there is to be none.
    pub fn next_pause(&mut self, failed: &FailedRequest) -> Option<Duration> {
        match failed.classify() {
            FailureClass::Final | FailureClass::ConditionFailed | FailureClass::CredentialsRefused => {
                return None;
            }
            FailureClass::Garbled => {
                self.garbled += 1;
                if self.garbled > GARBLED_MAX {
                    return None;
                }
            }
            FailureClass::Transient | FailureClass::Throttled | FailureClass::Conflict => {}
        }
        let exponential = PAUSE_MIN.saturating_mul(1_u32.checked_shl(self.repeats).unwrap_or(u32::MAX));
        // If no repeat is saved up, the longest pause is taken: many operations together must not flood a service
        // that is down.
        let longest = if self.budget.take_repeat() { exponential.min(PAUSE_MAX) } else { PAUSE_MAX };
        // Many clients that failed together must not come back together.
        let own = longest.mul_f64(random_fraction());
        // A service may ask for a longer pause, but not for none: with `Retry-After: 0` it would be asked without a
        // break.
        let pause = failed.exchange.retry_after.map_or(own, |asked| asked.max(own));
        let allowed = if self.budget.has_answered.load(Ordering::Relaxed) {
            self.retry_for
        } else {
            self.retry_for.min(self.budget.first_answer_max)
        };
        // A pause that would end too late is not begun.
        if self.started.elapsed().saturating_add(pause) > allowed {
            return None;
        }
        self.repeats += 1;
        self.budget.repeats.fetch_add(1, Ordering::Relaxed);
        Some(pause)
    }
}

/// Pauses before a repeat. Returns false if the user asked to stop.
pub(super) fn pause_before_retry(store: &str, failed: &FailedRequest, pause: Duration) -> bool {
    wait_before_repeat(store, &failed.describe(), pause)
}

/// Waits before a failed request is repeated, and reports the reason. Returns false if the user asked to stop.
pub(in crate::object) fn wait_before_repeat(store: &str, reason: &str, pause: Duration) -> bool {
    tracing::debug!(store, ?pause, reason, "store request is repeated");
    let wait = || LongWait::StoreRetry { store: store.to_owned(), reason: reason.to_owned(), pause };
    sleep_unless_stopped(pause, wait)
}

/// A number from 0 to 1. Without a source of randomness, the middle.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

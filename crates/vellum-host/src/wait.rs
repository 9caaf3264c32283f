//! Long waits: this process says for what it waits, and ends the wait on request.
//!
//! Invariant: whoever waits asks here again and again. Without an observer a wait lasts until it is over.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often a wait asks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// Why this process waits.
#[derive(Debug, Clone)]
pub enum LongWait {
    /// Another process holds a lock.
    Lock {
        /// The locked object, for a message.
        object: String,
        /// The process that holds it, if the system reports it.
        holder: Option<u32>,
    },
    /// A store has not answered a request yet.
    StoreAnswer,
    /// A request to a store failed and is about to be repeated.
    StoreRetry {
        /// The store, as it describes itself.
        store: String,
        /// Why the request failed.
        reason: String,
        /// Time until it is repeated.
        pause: Duration,
    },
    /// Another machine may have begun to write to a store with one writer.
    WriterClaim {
        /// The store, as it describes itself.
        store: String,
        /// How long it takes to see.
        pause: Duration,
    },
}

/// Called again and again while a wait lasts; false ends the wait.
pub type WaitObserver = fn(&LongWait) -> bool;

static OBSERVER: OnceLock<WaitObserver> = OnceLock::new();

/// From now on, long waits of this process are reported to `observer`. Only the first call has an effect.
pub fn observe_long_waits(observer: WaitObserver) {
    let _ = OBSERVER.set(observer);
}

/// Reports a wait; false if it must end.
pub fn go_on_waiting(wait: impl FnOnce() -> LongWait) -> bool {
    OBSERVER.get().is_none_or(|observer| observer(&wait()))
}

/// Waits for a time; false if the wait was ended before.
pub fn sleep_unless_stopped(pause: Duration, wait: impl Fn() -> LongWait) -> bool {
    let end = Instant::now() + pause;
    loop {
        if !go_on_waiting(&wait) {
            return false;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(TICK));
    }
}

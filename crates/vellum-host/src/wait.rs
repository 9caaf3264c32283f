//! Long waits: they are reported to an observer, which can end them.
//!
//! Invariant: every long wait calls the observer repeatedly. Without an observer a wait lasts until it is over.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often a wait checks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// The reason of a wait.
#[derive(Debug, Clone)]
pub enum LongWait {
    /// Another process holds a lock.
    Lock {
        /// The locked object, for a message.
        object: String,
        /// The process that holds it, if the system reports it.
        holder: Option<u32>,
    },
    /// A store has not replied to a request yet.
    StoreAnswer,
    /// A request to a store failed and is about to be repeated.
    StoreRetry {
        /// The store, as it describes itself.
        store: String,
        /// The error of the request.
        reason: String,
        /// Time until it is repeated.
        pause: Duration,
    },
    /// Another machine may have begun to write to a store with one writer.
    WriterClaim {
        /// The store, as it describes itself.
        store: String,
        /// How long it takes until that would be visible.
        pause: Duration,
    },
}

/// Called repeatedly during a wait; false ends the wait.
pub type WaitObserver = fn(&LongWait) -> bool;

static OBSERVER: OnceLock<WaitObserver> = OnceLock::new();

/// Reports all further long waits of this process to `observer`. Only the first call has an effect.
pub fn observe_long_waits(observer: WaitObserver) {
    let _ = OBSERVER.set(observer);
}

/// Reports a wait; false if it has to end.
pub fn go_on_waiting(wait: impl FnOnce() -> LongWait) -> bool {
    // The reason is put together only if somebody observes: this runs in each round of a wait.
    OBSERVER.get().is_none_or(|observer| observer(&wait()))
}

/// Waits for this long; false if the wait was ended early.
pub fn sleep_unless_stopped(pause: Duration, wait: impl Fn() -> LongWait) -> bool {
    let end = Instant::now() + pause;
    loop {
        // Before the first sleep, too, so that a stop that was requested earlier ends the wait at once.
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

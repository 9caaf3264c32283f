//! Long waits: this process says for what it waits, and ends the wait on request.
//!
//! Invariant: whoever waits asks here again and again. Without an observer a wait lasts until it is over.

use std::sync::OnceLock;
use std::time::Duration;

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

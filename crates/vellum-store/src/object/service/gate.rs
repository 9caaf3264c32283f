//! How many requests of one kind are under way at once.
//!
//! Invariant: never more than [`RequestGate::limit`]. The limit halves when the service asks for fewer requests, and grows
//! by one for each round of requests that it answered.

use parking_lot::{Condvar, Mutex};

/// Admits requests.
pub(super) struct RequestGate {
    max: f64,
    state: Mutex<GateState>,
    freed: Condvar,
}

struct GateState {
    limit: f64,
    active: u32,
}

/// The right to have one request under way.
pub(super) struct RequestPermit<'a> {
    gate: &'a RequestGate,
}

impl RequestGate {
    /// A gate for at most `max` requests at once.
    pub fn new(max: u32) -> Self {
        let max = f64::from(max);
        Self { max, state: Mutex::new(GateState { limit: max, active: 0 }), freed: Condvar::new() }
    }

    /// Waits until there is room.
    pub fn enter(&self) -> RequestPermit<'_> {
        let mut state = self.state.lock();
        // The limit grows by fractions, of which only whole requests count.
        while f64::from(state.active) >= state.limit.floor() {
            self.freed.wait(&mut state);
        }
        state.active += 1;
        RequestPermit { gate: self }
    }

    /// Halves the limit: the service asked for fewer requests.
    pub fn slow_down(&self) {
        let mut state = self.state.lock();
        // One request must remain possible: only its answer lets the limit grow again.
        state.limit = (state.limit / 2.0).max(1.0);
    }

    /// Lets the limit grow: the service answered.
    pub fn speed_up(&self) {
        let mut state = self.state.lock();
        // After as many answers as there may be requests at once, the limit has grown by about one.
        state.limit = (state.limit + 1.0 / state.limit).min(self.max);
        // The limit may have grown by a whole request, for which somebody waits.
        drop(state);
        self.freed.notify_one();
    }

    /// How many requests may be under way now.
    #[cfg(test)]
    pub fn limit(&self) -> u32 {
        self.state.lock().limit as u32
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().active -= 1;
        self.gate.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_halves_at_once_and_comes_back_slowly() {
        let gate = RequestGate::new(32);
        gate.slow_down();
        gate.slow_down();
        assert_eq!(gate.limit(), 8);
        for _ in 0..8 {
            gate.speed_up();
        }
        assert_eq!(gate.limit(), 8, "a round of answers is worth less than one more request");
        for _ in 0..2000 {
            gate.speed_up();
        }
        assert_eq!(gate.limit(), 32);
        for _ in 0..20 {
            gate.slow_down();
        }
        assert_eq!(gate.limit(), 1, "one request always goes");
        drop(gate.enter());
        drop(gate.enter());
    }
}

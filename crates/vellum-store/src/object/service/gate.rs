//! How many requests of one kind are under way at once, and which of those that wait is next.
//!
//! Invariants: a foreground request never waits for one of another purpose that came later or waits, too. Apart from one
//! background request, never more than the limit are under way. That one is not counted and is always admitted, and
//! background purposes take turns: so none of them waits for ever, however many foreground requests there are. The limit
//! halves when the service asks for fewer requests, and grows by one for each round of requests that it answered.

use std::sync::Arc;

use vellum_host::fork_safe::{Condvar, Mutex};

use crate::object::{PerPurpose, RequestPurpose};

/// The part of the limit that background requests may take together, so that a foreground request finds room at once.
const BACKGROUND_PART: f64 = 0.75;

/// Admits requests.
pub(super) struct RequestGate {
    max: f64,
    state: Mutex<GateState>,
    freed: Condvar,
}

struct GateState {
    limit: f64,
    active: PerPurpose<u32>,
    waiting: PerPurpose<u32>,
    /// The background purpose that was admitted last.
    last: RequestPurpose,
}

/// The right to have one request under way.
pub(super) struct RequestPermit {
    gate: Arc<RequestGate>,
    purpose: RequestPurpose,
}

impl GateState {
    fn new(max: f64) -> Self {
        Self {
            limit: max,
            active: PerPurpose::default(),
            waiting: PerPurpose::default(),
            last: RequestPurpose::Upkeep,
        }
    }

    fn background_count(&self) -> u32 {
        self.active.read_ahead + self.active.upload + self.active.upkeep
    }

    /// Whether a request may begin. It is among those that wait.
    fn may_begin(&self, purpose: RequestPurpose) -> bool {
        let background = self.background_count();
        // One background request does not count, so that it takes no place of a foreground request.
        let counted = self.active.foreground + background.saturating_sub(1);
        let has_room = f64::from(counted) < self.limit.floor();
        if purpose == RequestPurpose::Foreground {
            return has_room;
        }
        if purpose != self.next_background() {
            return false;
        }
        let share = (self.limit * BACKGROUND_PART).floor();
        background == 0 || (has_room && self.waiting.foreground == 0 && f64::from(background) < share)
    }

    /// The background purpose whose turn it is, of those that wait.
    fn next_background(&self) -> RequestPurpose {
        use RequestPurpose::{Foreground, ReadAhead, Upkeep, Upload};
        let order = match self.last {
            ReadAhead => [Upload, Upkeep, ReadAhead],
            Upload => [Upkeep, ReadAhead, Upload],
            Upkeep | Foreground => [ReadAhead, Upload, Upkeep],
        };
        order.into_iter().find(|purpose| *self.waiting.get(*purpose) > 0).unwrap_or(self.last)
    }

    fn begin(&mut self, purpose: RequestPurpose) {
        *self.waiting.get_mut(purpose) -= 1;
        *self.active.get_mut(purpose) += 1;
        if purpose != RequestPurpose::Foreground {
            self.last = purpose;
        }
    }
}

impl RequestGate {
    /// A gate for at most `max` requests at once, and one of the background.
    pub fn new(max: u32) -> Arc<Self> {
        let max = f64::from(max);
        Arc::new(Self { max, state: Mutex::new(GateState::new(max)), freed: Condvar::new() })
    }

    /// Waits until there is room for a request.
    pub fn enter(self: &Arc<Self>, purpose: RequestPurpose) -> RequestPermit {
        let mut state = self.state.lock();
        *state.waiting.get_mut(purpose) += 1;
        while !state.may_begin(purpose) {
            self.freed.wait(&mut state);
        }
        state.begin(purpose);
        drop(state);
        // It is another purpose's turn now, whose threads may have been woken before this one.
        self.freed.notify_all();
        RequestPermit { gate: Arc::clone(self), purpose }
    }

    /// Admits a foreground request if there is room at once and nobody waits.
    pub fn try_enter_foreground(self: &Arc<Self>) -> Option<RequestPermit> {
        let purpose = RequestPurpose::Foreground;
        let mut state = self.state.lock();
        if state.waiting.foreground > 0 || !state.may_begin(purpose) {
            return None;
        }
        *state.waiting.get_mut(purpose) += 1;
        state.begin(purpose);
        Some(RequestPermit { gate: Arc::clone(self), purpose })
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
        self.freed.notify_all();
    }

    /// Requests that are under way.
    pub fn active_requests(&self) -> PerPurpose<u32> {
        self.state.lock().active
    }

    /// How many requests may be under way now.
    #[cfg(test)]
    pub fn limit(&self) -> u32 {
        self.state.lock().limit as u32
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        *self.gate.state.lock().active.get_mut(self.purpose) -= 1;
        self.gate.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::RequestPurpose::{Foreground, ReadAhead, Upkeep, Upload};
    use super::*;

    /// Lets as many waiting requests begin as may, foreground first as threads would find it, and returns how many of
    /// each purpose did.
    fn admit_waiting(state: &mut GateState) -> PerPurpose<u32> {
        let mut begun = PerPurpose::default();
        while let Some(next) = RequestPurpose::ALL
            .into_iter()
            .find(|purpose| *state.waiting.get(*purpose) > 0 && state.may_begin(*purpose))
        {
            state.begin(next);
            *begun.get_mut(next) += 1;
        }
        begun
    }

    #[test]
    fn background_requests_leave_room_and_take_turns() {
        let mut state = GateState::new(8.0);
        state.waiting = PerPurpose { foreground: 0, read_ahead: 9, upload: 9, upkeep: 9 };
        let begun = admit_waiting(&mut state);
        assert_eq!(begun, PerPurpose { foreground: 0, read_ahead: 2, upload: 2, upkeep: 2 });
        // The room that was left is there at once.
        state.waiting.foreground = 9;
        assert_eq!(admit_waiting(&mut state).foreground, 3);
        // What becomes free goes to the foreground, though others have waited for longer.
        state.active.upload -= 2;
        let begun = admit_waiting(&mut state);
        assert_eq!(begun, PerPurpose { foreground: 2, ..PerPurpose::default() });
    }

    #[test]
    fn no_purpose_waits_for_ever_behind_the_foreground() {
        let mut state = GateState::new(4.0);
        state.waiting = PerPurpose { foreground: 1000, read_ahead: 2, upload: 2, upkeep: 2 };
        let mut order = Vec::new();
        for _ in 0..6 {
            admit_waiting(&mut state);
            assert_eq!(state.active.foreground, 4, "the background takes no place of the foreground");
            assert_eq!(state.background_count(), 1);
            order.push(state.last);
            state.active = PerPurpose { foreground: 3, ..PerPurpose::default() };
        }
        assert_eq!(order, [ReadAhead, Upload, Upkeep, ReadAhead, Upload, Upkeep]);
    }

    #[test]
    fn a_throttled_service_gets_one_request_and_one_of_the_background() {
        let gate = RequestGate::new(8);
        for _ in 0..9 {
            gate.slow_down();
        }
        let _foreground = gate.enter(Foreground);
        let background = gate.enter(Upload);
        assert!(gate.try_enter_foreground().is_none());
        drop(background);
        drop(gate.enter(Upkeep));
    }

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
        drop(gate.enter(Foreground));
        drop(gate.enter(Foreground));
    }
}

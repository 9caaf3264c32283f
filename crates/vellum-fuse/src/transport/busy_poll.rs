//! Busy-polling: a sleeping processor, especially in a virtual machine, takes longer to wake than most requests take
//! to be answered, and the kernel prefers a sleeping processor for a program that was woken.
//!
//! While requests arrive, one thread of a mount polls for them instead of sleeping. It yields all the time, and stops
//! when another thread needs its processor. Then no thread polls for a while, which is longer the more often this
//! happened: a thread that yields to a computing program continues only after a whole time slice, and a request that
//! arrived meanwhile has waited for it, while a sleeping thread is woken at once.
//!
//! Invariant: at most one thread of a mount polls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long after a request further ones are expected.
const BUSY: Duration = Duration::from_micros(200);

/// If yielding the processor took so long, another thread has used it.
const OTHERS: Duration = Duration::from_micros(30);

/// How long no thread polls after another thread has used the processor, nanoseconds: at first, since that may have
/// been a coincidence. Each further time doubles it.
const PAUSE_MIN: u64 = 1_000_000;

/// How long at most, nanoseconds.
const PAUSE_MAX: u64 = 256_000_000;

/// Whether a thread of the mount polls, and whether one should.
#[derive(Debug)]
pub struct BusyPoll {
    taken: AtomicBool,
    start: Instant,
    /// When the last request arrived, nanoseconds since `start`.
    last: AtomicU64,
    /// No thread polls before that, nanoseconds since `start`.
    free: AtomicU64,
    /// The pause after another thread uses the processor the next time.
    pause: AtomicU64,
}

impl BusyPoll {
    /// No request has arrived yet.
    pub fn new() -> Self {
        let last = AtomicU64::new(0);
        let free = AtomicU64::new(0);
        let pause = AtomicU64::new(PAUSE_MIN);
        Self { taken: AtomicBool::new(false), start: Instant::now(), last, free, pause }
    }

    /// A request has arrived.
    pub fn record_request(&self) {
        self.last.store(self.elapsed_nanos(), Ordering::Relaxed);
    }

    /// Returns the permit to poll; None if another thread has it, if polling is paused, or if no request is expected.
    pub fn acquire_permit(&self) -> Option<BusyPollPermit<'_>> {
        let now = self.elapsed_nanos();
        // Looked at first: the flag is written, and would move between processors with each request if it were taken
        // without need.
        let wanted = self.has_recent_request(now) && now >= self.free.load(Ordering::Relaxed);
        let free = wanted && !self.taken.swap(true, Ordering::Acquire);
        free.then_some(BusyPollPermit(self))
    }

    /// Another thread has used the processor.
    fn pause_polling(&self, now: u64) {
        let pause = self.pause.load(Ordering::Relaxed);
        self.free.store(now.saturating_add(pause), Ordering::Relaxed);
        self.pause.store((pause * 2).min(PAUSE_MAX), Ordering::Relaxed);
    }

    /// No other thread has used the processor.
    fn reset_pause(&self) {
        self.pause.store(PAUSE_MIN, Ordering::Relaxed);
    }

    fn elapsed_nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn has_recent_request(&self, now: u64) -> bool {
        now.saturating_sub(self.last.load(Ordering::Relaxed)) < BUSY.as_nanos() as u64
    }
}

/// The right of one thread to poll.
#[derive(Debug)]
pub struct BusyPollPermit<'l>(&'l BusyPoll);

impl BusyPollPermit<'_> {
    /// Polls until `look` returns true. Returns false if the thread should sleep instead.
    pub fn poll_until(&self, mut look: impl FnMut() -> bool) -> bool {
        // How long yielding takes is the only sign that another thread wants the processor: the kernel does not tell
        // otherwise.
        let mut before = self.0.elapsed_nanos();
        let mut yielded = false;
        loop {
            if look() {
                if yielded {
                    // Other threads had the chance to run, and did not need it.
                    self.0.reset_pause();
                }
                return true;
            }
            rustix::thread::sched_yield();
            let now = self.0.elapsed_nanos();
            if now.saturating_sub(before) > OTHERS.as_nanos() as u64 {
                // The request may have come while others ran: one more look costs less than to go to sleep and be
                // woken.
                self.0.pause_polling(now);
                return look();
            }
            if !self.0.has_recent_request(now) {
                // No further requests are expected. One may have come during the last yield.
                self.0.reset_pause();
                return look();
            }
            before = now;
            yielded = true;
        }
    }
}

impl Drop for BusyPollPermit<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_lingers_when_nothing_has_come_for_a_while() {
        let poll = BusyPoll::new();
        poll.record_request();
        std::thread::sleep(BUSY);
        assert!(poll.acquire_permit().is_none());
    }

    #[test]
    fn nobody_lingers_for_longer_and_longer_while_others_want_the_processor() {
        let poll = BusyPoll { last: AtomicU64::new(u64::MAX), ..BusyPoll::new() };
        let pauses = |poll: &BusyPoll| {
            poll.pause_polling(0);
            poll.free.load(Ordering::Relaxed)
        };
        let all: Vec<_> = (0..10).map(|_| pauses(&poll)).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256].map(|millis| millis * 1_000_000));
        poll.reset_pause();
        assert_eq!(pauses(&poll), PAUSE_MIN);
        poll.free.store(u64::MAX, Ordering::Relaxed);
        assert!(poll.acquire_permit().is_none());
        poll.free.store(0, Ordering::Relaxed);
        assert!(poll.acquire_permit().is_some());
    }

    #[test]
    fn one_lingers_and_ends_when_something_came_or_nothing_does() {
        let mut poll = BusyPoll::new();
        // So that the test's own pauses do not matter.
        poll.last = AtomicU64::new(u64::MAX);
        let permit = poll.acquire_permit().unwrap();
        assert!(poll.acquire_permit().is_none());
        assert!(permit.poll_until(|| true));
        poll.last.store(0, Ordering::Relaxed);
        std::thread::sleep(BUSY);
        assert!(!permit.poll_until(|| false));
        drop(permit);
        poll.last.store(u64::MAX, Ordering::Relaxed);
        // Another process may have had the processor while this one yielded it: then no thread lingers for a while.
        poll.free.store(0, Ordering::Relaxed);
        assert!(poll.acquire_permit().is_some());
    }
}

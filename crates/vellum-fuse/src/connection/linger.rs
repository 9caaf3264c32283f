//! Staying awake for a moment: a processor that has fallen asleep, in a virtual machine above all, takes longer to wake
//! than most requests take to be answered, and a program that was woken prefers a processor that sleeps.
//!
//! While requests come, one thread of a mount goes on looking for them instead of sleeping. It yields all the time, and
//! ends as soon as somebody else wants its processor. Invariant: at most one thread of a mount lingers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The mount is busy for so long after a request.
const BUSY: Duration = Duration::from_micros(200);

/// Somebody else has had the processor if yielding it took so long.
const OTHERS: Duration = Duration::from_micros(30);

/// Who lingers, and until when.
#[derive(Debug)]
pub struct Linger {
    taken: AtomicBool,
    start: Instant,
    /// When the last request came, in nanoseconds since `start`.
    last: AtomicU64,
}

impl Linger {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Self { taken: AtomicBool::new(false), start: Instant::now(), last: AtomicU64::new(0) }
    }

    /// A request has come.
    pub fn note(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Becomes the one who lingers, unless somebody is, or there is nothing to linger for.
    pub fn begin(&self) -> Option<Lingering<'_>> {
        let free = self.is_busy(self.now()) && !self.taken.swap(true, Ordering::Acquire);
        free.then_some(Lingering(self))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_busy(&self, now: u64) -> bool {
        now.saturating_sub(self.last.load(Ordering::Relaxed)) < BUSY.as_nanos() as u64
    }
}

/// The right to linger.
#[derive(Debug)]
pub struct Lingering<'l>(&'l Linger);

impl Lingering<'_> {
    /// Looks until there is something. False: it is time to sleep.
    pub fn until(&self, mut look: impl FnMut() -> bool) -> bool {
        let mut before = self.0.now();
        loop {
            if look() {
                return true;
            }
            rustix::thread::sched_yield();
            let now = self.0.now();
            if now - before > OTHERS.as_nanos() as u64 || !self.0.is_busy(now) {
                return look();
            }
            before = now;
        }
    }
}

impl Drop for Lingering<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_lingers_when_nothing_has_come_for_a_while() {
        let linger = Linger::new();
        linger.note();
        std::thread::sleep(BUSY);
        assert!(linger.begin().is_none());
    }

    #[test]
    fn one_lingers_and_ends_when_something_came_or_nothing_does() {
        let mut linger = Linger::new();
        // So that the test's own pauses do not matter.
        linger.last = AtomicU64::new(u64::MAX);
        let lingering = linger.begin().unwrap();
        assert!(linger.begin().is_none());
        assert!(lingering.until(|| true));
        linger.last.store(0, Ordering::Relaxed);
        std::thread::sleep(BUSY);
        assert!(!lingering.until(|| false));
        drop(lingering);
        linger.last.store(u64::MAX, Ordering::Relaxed);
        assert!(linger.begin().is_some());
    }
}

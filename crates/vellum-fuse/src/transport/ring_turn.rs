//! Decides which thread takes requests from a ring, and ensures that one does.
//!
//! One thread at a time takes requests from a ring, and answers each at once. If a request takes long (its content is
//! fetched from a distant store, or a lock is held), those behind it would wait for no reason. So a watch looks at all
//! rings every few milliseconds, and gives the turn of a thread that still works on the same request to another thread.
//!
//! Invariant: at most one thread has a ring's turn.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often the watch looks. A request waits at most twice as long for one that is held up.
const TICK: Duration = Duration::from_millis(2);

/// After this many looks without a request in progress, the watch sleeps until it is woken.
const QUIET_TICKS: u32 = 50;

/// The last bit of a state: a request is in progress.
const BUSY: u64 = 1;

/// The turn of one ring.
#[derive(Debug, Default)]
pub struct RingTurn {
    /// Counts requests and releases of the turn, in steps of two. The last bit is set while a request is in progress.
    state: AtomicU64,
    waiting: Mutex<WaitingThread>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WaitingThread {
    taken: bool,
    over: bool,
}

/// A request in progress: the state of the turn while it is.
#[derive(Debug)]
pub struct RequestWork(u64);

impl RingTurn {
    /// Waits for the turn. Returns false when the mount has ended.
    pub fn wait_for_turn(&self) -> bool {
        // A thread that gives the turn away waits here until another thread is held up in its turn.
        let mut waiting = self.waiting.lock();
        while waiting.taken && !waiting.over {
            self.changed.wait(&mut waiting);
        }
        waiting.taken = true;
        !waiting.over
    }

    /// The thread that has the turn begins a request.
    pub fn begin_request(&self, watch: &TurnWatch) -> RequestWork {
        // No other thread changes the state now but the watch, which leaves a turn without a request alone.
        let state = (self.state.load(Ordering::Relaxed) | BUSY) + 2;
        // Sequentially consistent with `asleep` in `wake_if_asleep`: either the watch sees this request before it
        // parks, or this thread sees that the watch is about to park. Weaker orders would allow neither.
        self.state.store(state, Ordering::SeqCst);
        watch.wake_if_asleep();
        RequestWork(state)
    }

    /// The request was answered. Returns false if another thread got the turn meanwhile.
    pub fn end_request(&self, work: &RequestWork) -> bool {
        // The state has changed only if the watch has released the turn, so one comparison decides who goes on.
        self.state.compare_exchange(work.0, work.0 & !BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The mount has ended: no thread waits for a turn any more.
    pub fn finish_turns(&self) {
        self.waiting.lock().over = true;
        self.changed.notify_all();
    }

    fn release_turn(&self, seen: u64) {
        // Counted up: a request of the next owner must not have the state that the former owner compares with.
        let free = (seen & !BUSY) + 2;
        if self.state.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // After the exchange: a thread that gets the turn now must not meet the old request's state.
            self.waiting.lock().taken = false;
            self.changed.notify_one();
        }
    }
}

/// Watches the turns of all rings.
#[derive(Debug, Default)]
pub struct TurnWatch {
    asleep: AtomicBool,
    over: AtomicBool,
    thread: OnceLock<Thread>,
}

impl TurnWatch {
    /// Watches `turns` until [`TurnWatch::finish_watch`].
    pub fn watch_turns(&self, turns: &[&RingTurn]) {
        // A request that comes before this does not wake the watch, which is harmless: the watch is awake when it
        // begins.
        let _ = self.thread.set(std::thread::current());
        let mut seen = vec![0; turns.len()];
        let mut quiet = 0;
        while !self.over.load(Ordering::Acquire) {
            let busy = release_stuck_turns(turns, &mut seen);
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet < QUIET_TICKS {
                std::thread::sleep(TICK);
                continue;
            }
            quiet = 0;
            self.asleep.store(true, Ordering::SeqCst);
            // A request that began before this store did not wake the watch, so it is looked for; a later one does.
            if !turns.iter().any(|turn| turn.state.load(Ordering::SeqCst) & BUSY != 0) {
                std::thread::park();
            }
            // Reset by the watch itself, too: it may have been woken for another reason.
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    fn wake_if_asleep(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    /// The mount has ended: no thread waits for a turn any more.
    pub fn finish_watch(&self) {
        self.over.store(true, Ordering::Release);
        self.wake_thread();
    }

    fn wake_thread(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Releases the turns whose request is the same as at the last look. Returns whether any request is in progress.
fn release_stuck_turns(turns: &[&RingTurn], seen: &mut [u64]) -> bool {
    let mut busy = false;
    for (turn, seen) in turns.iter().zip(seen) {
        let state = turn.state.load(Ordering::Acquire);
        busy |= state & BUSY != 0;
        // Equal states mean the same request, since each request has a state of its own.
        if state & BUSY != 0 && state == *seen {
            turn.release_turn(state);
        }
        *seen = state;
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_one_request_for_two_looks_loses_the_turn() {
        let turn = RingTurn::default();
        let watch = TurnWatch::default();
        assert!(turn.wait_for_turn());
        let work = turn.begin_request(&watch);
        let mut seen = [0];
        assert!(release_stuck_turns(&[&turn], &mut seen));
        assert!(release_stuck_turns(&[&turn], &mut seen));
        assert!(turn.wait_for_turn(), "the turn is free");
        assert!(!turn.end_request(&work), "it is not the first thread's any more");
    }

    #[test]
    fn who_is_at_another_request_keeps_the_turn() {
        let turn = RingTurn::default();
        let watch = TurnWatch::default();
        assert!(turn.wait_for_turn());
        let mut seen = [0];
        for _ in 0..3 {
            let work = turn.begin_request(&watch);
            assert!(release_stuck_turns(&[&turn], &mut seen));
            assert!(turn.end_request(&work));
            assert!(!release_stuck_turns(&[&turn], &mut seen));
        }
    }

    #[test]
    fn an_old_request_does_not_end_a_new_ones_work() {
        let turn = RingTurn::default();
        let watch = TurnWatch::default();
        assert!(turn.wait_for_turn());
        let old = turn.begin_request(&watch);
        turn.release_turn(old.0);
        assert!(turn.wait_for_turn());
        let new = turn.begin_request(&watch);
        assert!(!turn.end_request(&old));
        assert!(turn.end_request(&new));
    }

    #[test]
    fn nobody_waits_for_the_turn_of_a_mount_that_is_gone() {
        let turn = RingTurn::default();
        assert!(turn.wait_for_turn());
        turn.finish_turns();
        assert!(!turn.wait_for_turn());
    }
}

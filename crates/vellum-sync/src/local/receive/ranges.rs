//! Copying a large file in ranges, with the help of idle threads.
//!
//! Invariant: when a call returns, every range was processed once, or one failed and its error is returned; no thread
//! works on it any more. Deliberately absent: additional threads. A run with many files keeps all of its threads busy,
//! and only its last files are shared.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;

use parking_lot::Mutex;

use crate::error::{Result, SyncError};

/// Bytes of a range: copying it takes a few milliseconds, compared with which starting a thread takes little.
pub(crate) const RANGE: u64 = 16 << 20;

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub start: u64,
    pub end: u64,
}

impl ContentRange {
    /// A range that the other side named.
    pub fn from_len(start: u64, len: u64) -> Result<Self> {
        Ok(Self { start, end: start.checked_add(len).ok_or(SyncError::Unequal)? })
    }
}

/// Splits segments, each with its start and its end, into ranges.
pub(super) fn split_ranges(
    segments: impl Iterator<Item = Result<ContentRange>>,
) -> impl Iterator<Item = Result<ContentRange>> {
    let mut segments = segments;
    let mut rest = ContentRange { start: 0, end: 0 };
    std::iter::from_fn(move || {
        while rest.start >= rest.end {
            rest = match segments.next()? {
                Ok(segment) => segment,
                Err(error) => return Some(Err(error)),
            };
        }
        let range = ContentRange { start: rest.start, end: rest.end.min(rest.start.saturating_add(RANGE)) };
        rest.start = range.end;
        Some(Ok(range))
    })
}

/// The number of idle threads of a run.
#[derive(Default)]
pub(crate) struct IdleWorkers(AtomicUsize);

/// One idle thread, taken until this is dropped.
struct IdleWorker<'h>(&'h IdleWorkers);

impl Drop for IdleWorker<'_> {
    fn drop(&mut self) {
        self.0.add_idle_worker();
    }
}

impl IdleWorkers {
    /// Sets the number of idle threads.
    pub fn set_idle_count(&self, idle: usize) {
        self.0.store(idle, Ordering::Relaxed);
    }

    /// Adds one idle thread.
    pub fn add_idle_worker(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn acquire_worker(&self) -> Option<IdleWorker<'_>> {
        let less = |idle: usize| idle.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().map(|_| IdleWorker(self))
    }

    /// Calls `work` for each range, on this thread and on those that are idle or become so meanwhile.
    pub(super) fn process_ranges<R: Send>(
        &self,
        ranges: impl Iterator<Item = Result<R>> + Send,
        work: impl Fn(R) -> Result<()> + Sync,
    ) -> Result<()> {
        let queue = RangeQueue {
            ranges: Mutex::new(ranges.peekable()),
            over: AtomicBool::new(false),
            failed: Mutex::default(),
        };
        // The scope returns when all helpers have ended, so the file is complete, or given up, when this
        // returns.
        std::thread::scope(|scope| self.process_queue(scope, &queue, &work));
        queue.failed.into_inner().map_or(Ok(()), Err)
    }

    /// Processes one range after the other. If there are more, an idle thread is started.
    fn process_queue<'scope, R: Send, I: Iterator<Item = Result<R>> + Send>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        queue: &'scope RangeQueue<I>,
        work: &'scope (impl Fn(R) -> Result<()> + Sync),
    ) {
        while let Some((range, more)) = queue.next_range() {
            // Helpers are called one at a time, each by the one before: a file of two ranges never starts ten
            // threads.
            if more && let Some(hand) = self.acquire_worker() {
                scope.spawn(move || {
                    let _hand = hand;
                    self.process_queue(scope, queue, work);
                });
            }
            queue.record_outcome(work(range));
        }
    }
}

/// The ranges that no thread has taken yet.
struct RangeQueue<I: Iterator> {
    ranges: Mutex<std::iter::Peekable<I>>,
    /// A range failed, so the others are not processed.
    over: AtomicBool,
    failed: Mutex<Option<SyncError>>,
}

impl<R, I: Iterator<Item = Result<R>>> RangeQueue<I> {
    /// Takes a range; also returns whether there are more.
    fn next_range(&self) -> Option<(R, bool)> {
        if self.over.load(Ordering::Relaxed) {
            return None;
        }
        // Finding the next range can seek in the file (SEEK_DATA), which moves its position. The lock keeps
        // that to one thread.
        let mut ranges = self.ranges.lock();
        match ranges.next()? {
            Ok(range) => Some((range, ranges.peek().is_some())),
            Err(error) => {
                self.record_outcome(Err(error));
                None
            }
        }
    }

    fn record_outcome(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.over.store(true, Ordering::Relaxed);
            // Later errors follow from the first one, or from the stop.
            self.failed.lock().get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use super::*;

    fn ranges(segments: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let segments = segments.iter().map(|(start, end)| Ok(ContentRange { start: *start, end: *end }));
        split_ranges(segments).map(|range| range.map(|range| (range.start, range.end)).unwrap()).collect()
    }

    #[test]
    fn segments_are_cut_without_a_gap_and_short_ones_left_as_they_are() {
        assert_eq!(ranges(&[(0, 5), (9, 10)]), [(0, 5), (9, 10)]);
        assert_eq!(
            ranges(&[(3, 3 + 2 * RANGE + 1)]),
            [(3, 3 + RANGE), (3 + RANGE, 3 + 2 * RANGE), (3 + 2 * RANGE, 3 + 2 * RANGE + 1)]
        );
        assert_eq!(ranges(&[(u64::MAX - 1, u64::MAX)]), [(u64::MAX - 1, u64::MAX)]);
        assert!(ranges(&[]).is_empty() && ranges(&[(4, 4)]).is_empty());
    }

    #[test]
    fn idle_threads_take_ranges_and_are_idle_again() {
        let idle_workers = IdleWorkers::default();
        idle_workers.set_idle_count(2);
        // Nobody gets past it unless three are at work at once.
        let together = Barrier::new(3);
        let seen = Mutex::new(BTreeSet::new());
        idle_workers
            .process_ranges((0..3).map(Ok), |range| {
                together.wait();
                assert!(seen.lock().insert(range));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen.lock().len(), 3);
        assert_eq!(idle_workers.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn alone_one_thread_does_all_in_order() {
        let seen = Mutex::new(Vec::new());
        let this = std::thread::current().id();
        let work = |range| {
            assert_eq!(std::thread::current().id(), this);
            seen.lock().push(range);
            Ok(())
        };
        IdleWorkers::default().process_ranges((0..9).map(Ok), work).unwrap();
        assert_eq!(seen.lock().as_slice(), (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_failure_is_told_and_ends_it() {
        let done = AtomicUsize::new(0);
        let work = |range| match range {
            1 => Err(SyncError::Changed),
            _ => {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let outcome = IdleWorkers::default().process_ranges((0..100).map(Ok), work);
        assert!(matches!(outcome, Err(SyncError::Changed)));
        assert_eq!(done.load(Ordering::Relaxed), 1);
        // So does one that is not even a range.
        let outcome = IdleWorkers::default()
            .process_ranges([Err::<u8, _>(SyncError::Vanished), Ok(1)].into_iter(), |_| Ok(()));
        assert!(matches!(outcome, Err(SyncError::Vanished)));
    }
}

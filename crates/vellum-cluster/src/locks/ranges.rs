//! The `fcntl` and OFD locks of one owner on one file.
//!
//! Invariant: no two overlap, and two that adjoin have different modes.

use std::collections::BTreeMap;

use super::request::{LockKind, LockMode, LockRange};

/// A lock of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeLock {
    pub(crate) range: LockRange,
    pub(crate) kind: LockKind,
    pub(crate) mode: LockMode,
    pub(crate) pid: u32,
}

/// The locks by their start.
#[derive(Debug, Default)]
pub(crate) struct OwnerRanges {
    locks: BTreeMap<u64, RangeLock>,
}

impl OwnerRanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RangeLock> + '_ {
        self.locks.values().copied()
    }

    /// The first lock in a range that conflicts with a mode.
    pub(crate) fn find_conflict(&self, range: LockRange, mode: LockMode) -> Option<RangeLock> {
        // They come from the last to the first.
        self.overlapping(range).filter(|lock| lock.mode.conflicts_with(mode)).last()
    }

    /// By how many the number of locks changes if `mode` is set in a range, or, with None, the range is cleared.
    pub(crate) fn growth(&self, range: LockRange, mode: Option<LockMode>) -> isize {
        let mut growth = isize::from(mode.is_some());
        for lock in self.overlapping(range) {
            growth -= 1;
            // What stays of a lock of the same mode becomes one with the new lock.
            if Some(lock.mode) != mode {
                growth += isize::from(lock.range.start < range.start);
                growth += isize::from(lock.range.end > range.end);
            }
        }
        let adjoining = [self.before(range), self.after(range)];
        let merged = adjoining.into_iter().flatten().filter(|lock| Some(lock.mode) == mode);
        growth - merged.count().cast_signed()
    }

    /// Sets a lock in place of what is there.
    pub(crate) fn set(&mut self, lock: RangeLock) {
        // What overlaps is cut first, so that only whole neighbours are left to be merged.
        self.clear(lock.range);
        let mut merged = lock;
        if let Some(earlier) = self.before(lock.range)
            && earlier.mode == lock.mode
        {
            self.locks.remove(&earlier.range.start);
            merged.range.start = earlier.range.start;
        }
        if let Some(later) = self.after(lock.range)
            && later.mode == lock.mode
        {
            self.locks.remove(&later.range.start);
            merged.range.end = later.range.end;
        }
        self.locks.insert(merged.range.start, merged);
    }

    /// Removes what is in a range. Returns whether something was.
    pub(crate) fn clear(&mut self, range: LockRange) -> bool {
        let overlapping: Vec<_> = self.overlapping(range).collect();
        for &lock in &overlapping {
            let LockRange { start, end } = lock.range;
            self.locks.remove(&start);
            if start < range.start {
                let before = LockRange { start, end: range.start - 1 };
                self.locks.insert(before.start, RangeLock { range: before, ..lock });
            }
            if end > range.end {
                let after = LockRange { start: range.end + 1, end };
                self.locks.insert(after.start, RangeLock { range: after, ..lock });
            }
        }
        !overlapping.is_empty()
    }

    /// The locks that have bytes in a range, from the last to the first.
    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = RangeLock> + '_ {
        // As they do not overlap each other, those that begin earlier end earlier.
        let earlier = self.locks.range(..=range.end).rev().map(|(_, lock)| *lock);
        earlier.take_while(move |lock| lock.range.end >= range.start)
    }

    /// The lock that ends where the range begins.
    fn before(&self, range: LockRange) -> Option<RangeLock> {
        let (_, lock) = self.locks.range(..range.start).next_back()?;
        // No lock ends behind LockRange::LAST, which has a successor.
        (lock.range.end + 1 == range.start).then_some(*lock)
    }

    /// The lock that begins where the range ends.
    fn after(&self, range: LockRange) -> Option<RangeLock> {
        self.locks.get(&(range.end + 1)).copied()
    }
}

//! The locks on one file, and who waits for them.

use std::collections::BTreeMap;

use super::ranges::{OwnerRanges, RangeLock};
use super::request::{HeldLock, LockKind, LockMode, LockOwner, LockRange, LockRequest, LockSession, WaitId};
use super::state::LockCallback;

/// A `flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlockLock {
    pub(super) mode: LockMode,
    pub(super) pid: u32,
}

/// A request that waits.
pub(super) struct WaitingRequest {
    pub(super) id: WaitId,
    pub(super) request: LockRequest,
    pub(super) done: LockCallback,
}

/// The locks on one file.
#[derive(Default)]
pub(super) struct FileLockSet {
    /// `fcntl` and OFD locks.
    pub(super) ranges: BTreeMap<LockOwner, OwnerRanges>,
    pub(super) flocks: BTreeMap<LockOwner, FlockLock>,
    /// By order of arrival.
    pub(super) waits: BTreeMap<u64, WaitingRequest>,
}

/// All owners of a session, as a range of a sorted map.
pub(super) fn owners_of(session: LockSession) -> std::ops::RangeInclusive<LockOwner> {
    LockOwner { session, number: 0 }..=LockOwner { session, number: u64::MAX }
}

impl FileLockSet {
    /// Whether nobody has or wants a lock.
    pub(super) fn is_unused(&self) -> bool {
        self.has_no_locks() && self.waits.is_empty()
    }

    pub(super) fn has_no_locks(&self) -> bool {
        self.ranges.is_empty() && self.flocks.is_empty()
    }

    /// Whether a session has or wants a lock.
    pub(super) fn concerns(&self, session: LockSession) -> bool {
        self.ranges.range(owners_of(session)).next().is_some()
            || self.flocks.range(owners_of(session)).next().is_some()
            || self.waits.values().any(|waiting| waiting.id.session == session)
    }

    pub(super) fn list_locks(&self) -> impl Iterator<Item = HeldLock> + '_ {
        let ranges = self.ranges.iter();
        let ranges = ranges.flat_map(|(owner, locks)| locks.iter().map(|lock| hold_range(*owner, lock)));
        ranges.chain(self.flocks.iter().map(|(owner, lock)| hold_flock(*owner, *lock)))
    }

    /// A lock that prevents a request.
    pub(super) fn find_conflict(&self, request: &LockRequest) -> Option<HeldLock> {
        self.conflicts(request).next()
    }

    /// A lock of each owner that has some that prevent a request.
    pub(super) fn conflicts<'a>(&'a self, request: &LockRequest) -> impl Iterator<Item = HeldLock> + use<'a> {
        let LockRequest { owner, kind, mode, range, .. } = *request;
        let is_flock = kind == LockKind::Flock;
        // An owner never conflicts with itself: its new lock replaces the old one where they overlap.
        let others = self.ranges.iter().filter(move |(other, _)| !is_flock && **other != owner);
        let ranges = others.filter_map(move |(other, locks)| {
            locks.find_conflict(range, mode).map(|lock| hold_range(*other, lock))
        });
        let others = self.flocks.iter().filter(move |(other, _)| is_flock && **other != owner);
        let flocks = others.filter(move |(_, lock)| lock.mode.conflicts_with(mode));
        ranges.chain(flocks.map(|(other, lock)| hold_flock(*other, *lock)))
    }

    /// By how many the locks become more if a request is granted.
    pub(super) fn growth(&self, request: &LockRequest) -> isize {
        let LockRequest { owner, kind, mode, range, .. } = request;
        match kind {
            LockKind::Flock => isize::from(!self.flocks.contains_key(owner)),
            LockKind::Posix | LockKind::Ofd => {
                self.ranges.get(owner).map_or(1, |locks| locks.growth(*range, Some(*mode)))
            }
        }
    }

    /// Sets a lock that conflicts with nothing.
    pub(super) fn insert(&mut self, request: &LockRequest) {
        let LockRequest { owner, kind, mode, range, pid, .. } = *request;
        match kind {
            LockKind::Flock => {
                self.flocks.insert(owner, FlockLock { mode, pid });
            }
            LockKind::Posix | LockKind::Ofd => {
                self.ranges.entry(owner).or_default().set(RangeLock { range, kind, mode, pid });
            }
        }
    }

    /// The first request that waits for nothing any more: the order of its arrival.
    pub(super) fn find_grantable(&self) -> Option<u64> {
        let mut waits = self.waits.iter();
        // The first that can be granted, not the first of all: one that waits for another range must not hold up the rest.
        waits.find(|(_, waiting)| self.find_conflict(&waiting.request).is_none()).map(|(order, _)| *order)
    }
}

fn hold_range(owner: LockOwner, lock: RangeLock) -> HeldLock {
    let RangeLock { range, kind, mode, pid } = lock;
    HeldLock { owner, kind, mode, range, pid }
}

fn hold_flock(owner: LockOwner, lock: FlockLock) -> HeldLock {
    let FlockLock { mode, pid } = lock;
    HeldLock { owner, kind: LockKind::Flock, mode, range: LockRange::ALL, pid }
}

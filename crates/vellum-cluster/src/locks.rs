//! The locks that programs on all machines have on files of one worktree: `fcntl` (POSIX), open file descriptions (OFD)
//! and `flock`.
//!
//! The table answers as Linux does for a local filesystem. POSIX and OFD locks are of one space, in which they conflict;
//! `flock` is a space of its own. Whoever must wait leaves a callback, so no thread waits.
//!
//! Order: requests that wait are granted in the order of their arrival. A new request is granted at once if it conflicts
//! with no lock that is held, also while an earlier one waits: a shared lock is not refused because somebody waits for an
//! exclusive one. To wait behind it could hang a program that works on a local filesystem, since its parent may hold the
//! shared lock and wait for it to end.
//!
//! Invariants: locks of two owners never conflict; the locks of one owner on one file neither overlap nor adjoin with the
//! same mode; no request waits that conflicts with nothing. Callbacks run when the table is not locked, each exactly once,
//! on the thread of the caller that decided the request.
//!
//! After a server was replaced, the sessions that had locks take them up again; nobody else gets a lock meanwhile (`grace`).
//!
//! Deliberately absent: mandatory locks, and leases of `fcntl`.

mod deadlock;
mod file;
mod grace;
pub(crate) mod ranges;
mod request;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use parking_lot::Mutex;
use vellum_types::Ino;

use self::grace::{DeferredRequest, LockGrace};
pub use self::request::{
    HeldLock, LockError, LockKind, LockLimits, LockMode, LockOwner, LockRange, LockRequest, LockSession,
    LockUsage, WaitId,
};
use self::state::{LockCompletions, LockState};

/// The locks of one worktree.
///
/// What FUSE asks for becomes: `GETLK` → [`LockTable::find_conflict`]; `SETLK` → [`LockTable::set`]; `SETLKW` →
/// [`LockTable::set_and_wait`]; either with `F_UNLCK` → [`LockTable::unlock`]; `INTERRUPT` → [`LockTable::cancel`]; `FLUSH`
/// → [`LockTable::release_ranges`] of its lock owner; `RELEASE` → [`LockTable::release_flock`] if it has
/// `FUSE_RELEASE_FLOCK_UNLOCK`, and [`LockTable::release_ranges`] of each owner that locked through this handle and was not
/// flushed on it since: those are OFD locks, for which the kernel sends nothing.
pub struct LockTable {
    state: Mutex<LockState>,
}

impl LockTable {
    /// A table without sessions.
    #[must_use]
    pub fn new(limits: LockLimits) -> Self {
        Self { state: Mutex::new(LockState::new(limits)) }
    }

    /// Begins the time in which these sessions take up the locks that they had in an earlier process. Requests of all others
    /// are held up until it ends.
    pub fn begin_grace(&self, sessions: BTreeSet<LockSession>) {
        if !sessions.is_empty() {
            self.state.lock().grace = Some(LockGrace { awaited: sessions, ..LockGrace::default() });
        }
    }

    /// The sessions that have not taken up all of their locks.
    #[must_use]
    pub fn list_awaited(&self) -> Vec<LockSession> {
        let state = self.state.lock();
        state.grace.iter().flat_map(|grace| &grace.awaited).copied().collect()
    }

    /// Whether a session may still take up the locks that it had. What it sets now is set at once, or refused.
    #[must_use]
    pub fn may_reclaim(&self, session: LockSession) -> bool {
        self.state.lock().grace.as_ref().is_some_and(|grace| grace.awaited.contains(&session))
    }

    /// A session has taken up its locks.
    pub fn end_reclaim(&self, session: LockSession) {
        self.change(|state, completions| state.end_reclaim(session, completions));
    }

    /// The sessions that have not come back have lost their locks.
    pub fn end_grace(&self) {
        self.change(LockState::end_grace);
    }

    /// Lets nobody get a lock any more: another process goes on with those that there are.
    pub fn suspend(&self) {
        self.state.lock().suspend();
    }

    /// Whether requests of a session are held up.
    #[must_use]
    pub fn is_held_up(&self, session: LockSession) -> bool {
        self.state.lock().is_held_up(session)
    }

    /// Opens a session: requests of others are refused. Opening it again has no effect.
    pub fn open_session(&self, session: LockSession) {
        self.state.lock().open_session(session);
    }

    /// Ends a session: its locks are released and its requests fail with [`LockError::SessionEnded`], in one step. Returns
    /// the files on which locks were released, and perhaps granted to others.
    pub fn end_session(&self, session: LockSession) -> Vec<Ino> {
        self.change(|state, completions| state.end_session(session, completions))
    }

    /// Fails all waiting requests of a session with [`LockError::Interrupted`]: its connection was lost, and it will send
    /// again what it still waits for.
    pub fn cancel_session(&self, session: LockSession) {
        self.change(|state, completions| state.cancel_session(session, completions));
    }

    /// The sessions that are open, in order.
    #[must_use]
    pub fn list_sessions(&self) -> Vec<LockSession> {
        self.state.lock().list_sessions()
    }

    /// What a session has in the table; None if it is not open.
    #[must_use]
    pub fn usage(&self, session: LockSession) -> Option<LockUsage> {
        self.state.lock().usage(session)
    }

    /// The locks on a file: `fcntl` and OFD locks by owner and offset, then `flock`.
    #[must_use]
    pub fn list_locks(&self, ino: Ino) -> Vec<HeldLock> {
        self.state.lock().file(ino).map_or_else(Vec::new, |file| file.list_locks().collect())
    }

    /// Returns a lock that would prevent the request: of those of the first owner, the one that begins first.
    #[must_use]
    pub fn find_conflict(&self, request: &LockRequest) -> Option<HeldLock> {
        self.state.lock().file(request.ino).and_then(|file| file.find_conflict(request))
    }

    /// Sets a lock, or fails with [`LockError::WouldBlock`]. A lock of the same owner is replaced where they overlap. As on
    /// Linux, a `flock` that is to change its mode and cannot is lost.
    pub fn set(&self, request: &LockRequest) -> Result<(), LockError> {
        self.change(|state, completions| state.set(request, completions))
    }

    /// Sets a lock as soon as it can be set, then calls `done`: perhaps before this function returns, or with an error.
    /// `wait` names the request for [`LockTable::cancel`]; it may not be that of another request that waits.
    ///
    /// Deadlocks among POSIX locks fail with [`LockError::Deadlock`]. OFD locks and `flock` belong to open files, which do
    /// not wait: processes do, and several may have one open file; so nothing is concluded from their waits.
    pub fn set_and_wait<F>(&self, request: &LockRequest, wait: WaitId, done: F)
    where
        F: FnOnce(Result<(), LockError>) + Send + 'static,
    {
        let done = Box::new(done);
        let deferred = DeferredRequest { id: wait, request: *request, waits: true, done };
        self.change(|state, completions| state.decide(deferred, completions));
    }

    /// Sets a lock, or fails, as soon as that can be decided: at once, unless requests are held up. `wait` as above.
    pub fn set_in_turn<F>(&self, request: &LockRequest, wait: WaitId, done: F)
    where
        F: FnOnce(Result<(), LockError>) + Send + 'static,
    {
        let done = Box::new(done);
        let deferred = DeferredRequest { id: wait, request: *request, waits: false, done };
        self.change(|state, completions| state.decide(deferred, completions));
    }

    /// Takes back a request that waits: it fails with [`LockError::Interrupted`]. False if it does not wait (any more):
    /// its callback was or is being called with what it became.
    pub fn cancel(&self, wait: WaitId) -> bool {
        self.change(|state, completions| state.cancel(wait, completions))
    }

    /// Removes what an owner has in a range of a file. It fails only if a lock would be split and the session has as many
    /// as it may have.
    pub fn unlock(&self, request: &LockRequest) -> Result<(), LockError> {
        self.change(|state, completions| state.unlock(request, completions))
    }

    /// Removes all `fcntl` and OFD locks of an owner on a file, as when it closes any descriptor of it. True if it had some.
    pub fn release_ranges(&self, ino: Ino, owner: LockOwner) -> bool {
        self.change(|state, completions| state.release_ranges(ino, owner, completions))
    }

    /// Removes the `flock` of an owner on a file, as when the open file is closed. True if it had one.
    pub fn release_flock(&self, ino: Ino, owner: LockOwner) -> bool {
        self.change(|state, completions| state.release_flock(ino, owner, completions))
    }

    /// Changes the table, and calls the callbacks afterwards: they may use the table again.
    fn change<T>(&self, change: impl FnOnce(&mut LockState, &mut LockCompletions) -> T) -> T {
        let mut completions = LockCompletions::default();
        let result = change(&mut self.state.lock(), &mut completions);
        // The lock was released with the statement before: a callback answers a session, which may unlock or ask at once.
        completions.run();
        result
    }
}

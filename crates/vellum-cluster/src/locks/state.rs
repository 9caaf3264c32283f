//! The table behind its lock.

use std::collections::{BTreeSet, HashMap};

use vellum_types::Ino;

use super::file::{FileLockSet, WaitingRequest};
use super::grace::{DeferredRequest, LockGrace};
use super::request::{
    LockError, LockKind, LockLimits, LockOwner, LockRequest, LockSession, LockUsage, WaitId,
};

/// What is called when a request that waited is decided.
pub(super) type LockCallback = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// Requests that were decided, whose callbacks are still to be called.
#[derive(Default)]
pub(super) struct LockCompletions(Vec<(LockCallback, Result<(), LockError>)>);

impl LockCompletions {
    /// Calls the callbacks, in the order of the decisions.
    pub(super) fn run(self) {
        for (done, result) in self.0 {
            done(result);
        }
    }

    fn add(&mut self, done: LockCallback, result: Result<(), LockError>) {
        self.0.push((done, result));
    }
}

/// A session, with the files on which it has or wants locks.
#[derive(Default)]
struct SessionLocks {
    usage: LockUsage,
    files: BTreeSet<Ino>,
}

/// Where a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitPlace {
    pub(super) ino: Ino,
    pub(super) order: u64,
}

/// The table.
pub(super) struct LockState {
    limits: LockLimits,
    files: HashMap<Ino, FileLockSet>,
    sessions: HashMap<LockSession, SessionLocks>,
    waits: HashMap<WaitId, WaitPlace>,
    /// Where owners wait for POSIX locks: the edges of the wait-for graph begin there.
    pub(super) posix_waits: HashMap<LockOwner, BTreeSet<WaitPlace>>,
    next_order: u64,
    /// Sessions of an earlier process may take up their locks; None: that is over.
    pub(super) grace: Option<LockGrace>,
}

impl LockState {
    pub(super) fn new(limits: LockLimits) -> Self {
        Self {
            limits,
            files: HashMap::new(),
            sessions: HashMap::new(),
            waits: HashMap::new(),
            posix_waits: HashMap::new(),
            next_order: 0,
            grace: None,
        }
    }

    /// Whether requests of a session are held up until others have taken up their locks.
    pub(super) fn is_held_up(&self, session: LockSession) -> bool {
        self.grace.as_ref().is_some_and(|grace| !grace.awaited.contains(&session))
    }

    /// A session has taken up its locks. The last one ends the time for it.
    pub(super) fn end_reclaim(&mut self, session: LockSession, completions: &mut LockCompletions) {
        if self.grace.as_mut().is_some_and(|grace| grace.awaited.remove(&session) && grace.awaited.is_empty())
        {
            self.end_grace(completions);
        }
    }

    /// Decides what was held up, in the order of its arrival.
    pub(super) fn end_grace(&mut self, completions: &mut LockCompletions) {
        let ended = self.grace.take_if(|grace| !grace.is_final);
        for held in ended.into_iter().flat_map(|grace| grace.held) {
            self.decide(held, completions);
        }
    }

    /// Lets nobody get a lock any more: what is released from now on is only on its way to another process.
    pub(super) fn suspend(&mut self) {
        let grace = self.grace.get_or_insert_default();
        grace.awaited.clear();
        grace.is_final = true;
    }

    /// Sets a lock, or has the request wait, as soon as that can be decided.
    pub(super) fn decide(&mut self, deferred: DeferredRequest, completions: &mut LockCompletions) {
        let session = deferred.request.owner.session;
        if self.is_held_up(session) {
            return self.hold_up(deferred, completions);
        }
        let DeferredRequest { id, request, waits, done } = deferred;
        if waits {
            return self.set_and_wait(&request, id, done, completions);
        }
        let result = self.set(&request, completions);
        completions.add(done, result);
    }

    fn hold_up(&mut self, deferred: DeferredRequest, completions: &mut LockCompletions) {
        let session = deferred.request.owner.session;
        let Some(usage) = self.usage(session) else {
            return completions.add(deferred.done, Err(LockError::SessionEnded));
        };
        let Some(grace) = &mut self.grace else { return };
        if grace.held_of(session).count() + usage.waits >= self.limits.waits {
            return completions.add(deferred.done, Err(LockError::TooMany));
        }
        grace.held.push(deferred);
    }

    pub(super) fn file(&self, ino: Ino) -> Option<&FileLockSet> {
        self.files.get(&ino)
    }

    pub(super) fn open_session(&mut self, session: LockSession) {
        self.sessions.entry(session).or_default();
    }

    pub(super) fn list_sessions(&self) -> Vec<LockSession> {
        let mut sessions: Vec<_> = self.sessions.keys().copied().collect();
        sessions.sort_unstable();
        sessions
    }

    pub(super) fn usage(&self, session: LockSession) -> Option<LockUsage> {
        self.sessions.get(&session).map(|session| session.usage)
    }

    pub(super) fn set(
        &mut self,
        request: &LockRequest,
        completions: &mut LockCompletions,
    ) -> Result<(), LockError> {
        self.expect_session(request.owner.session)?;
        if self.is_held_up(request.owner.session) {
            return Err(LockError::WouldBlock);
        }
        // Before the conflict is looked for, as Linux does: two holders of a shared flock who both want it exclusive would
        // otherwise wait for each other for ever.
        self.remove_other_flock(request);
        let is_free = self.file(request.ino).is_none_or(|file| file.find_conflict(request).is_none());
        let result = if is_free { self.grant(request) } else { Err(LockError::WouldBlock) };
        // A shared lock may have replaced an exclusive one, and a flock that cannot change its mode is gone.
        self.settle(request.ino, request.owner.session, completions);
        result
    }

    fn set_and_wait(
        &mut self,
        request: &LockRequest,
        id: WaitId,
        done: LockCallback,
        completions: &mut LockCompletions,
    ) {
        if self.waits.contains_key(&id) {
            return completions.add(done, Err(LockError::DuplicateWait));
        }
        match self.set(request, completions) {
            // All that follows is with the table's lock, so that no release can come between the refusal and the wait.
            Err(LockError::WouldBlock) => {}
            result => return completions.add(done, result),
        }
        if self.would_deadlock(request) {
            return completions.add(done, Err(LockError::Deadlock));
        }
        if let Err(error) = self.expect_wait_allowed(id.session) {
            return completions.add(done, Err(error));
        }
        let place = WaitPlace { ino: request.ino, order: self.next_order };
        self.next_order += 1;
        let waiting = WaitingRequest { id, request: *request, done };
        self.files.entry(place.ino).or_default().waits.insert(place.order, waiting);
        self.waits.insert(id, place);
        if request.kind == LockKind::Posix {
            self.posix_waits.entry(request.owner).or_default().insert(place);
        }
        if let Some(session) = self.sessions.get_mut(&id.session) {
            session.usage.waits += 1;
            session.files.insert(place.ino);
        }
        // What was granted meanwhile may have made room for this request, too.
        self.grant_waiting(place.ino, completions);
    }

    pub(super) fn cancel(&mut self, id: WaitId, completions: &mut LockCompletions) -> bool {
        self.fail_wait(id, LockError::Interrupted, completions)
    }

    pub(super) fn cancel_session(&mut self, session: LockSession, completions: &mut LockCompletions) {
        self.fail_waits(session, LockError::Interrupted, completions);
    }

    pub(super) fn unlock(
        &mut self,
        request: &LockRequest,
        completions: &mut LockCompletions,
    ) -> Result<(), LockError> {
        let LockRequest { ino, owner, kind, range, .. } = *request;
        self.expect_session(owner.session)?;
        match kind {
            LockKind::Flock => {
                self.release_flock(ino, owner, completions);
            }
            LockKind::Posix | LockKind::Ofd => {
                let Some(locks) = self.files.get_mut(&ino).and_then(|file| file.ranges.get_mut(&owner))
                else {
                    return Ok(());
                };
                // Looked at first: to remove the middle of a lock makes two of one, and a refused request must leave all as
                // it was.
                let growth = locks.growth(range, None);
                self.expect_room(owner.session, growth)?;
                self.clear_range(request);
                self.count_locks(owner.session, growth);
                self.settle(ino, owner.session, completions);
            }
        }
        Ok(())
    }

    pub(super) fn release_ranges(
        &mut self,
        ino: Ino,
        owner: LockOwner,
        completions: &mut LockCompletions,
    ) -> bool {
        let removed = self.files.get_mut(&ino).and_then(|file| file.ranges.remove(&owner));
        let Some(locks) = removed else { return false };
        self.count_locks(owner.session, -locks.len().cast_signed());
        self.settle(ino, owner.session, completions);
        true
    }

    pub(super) fn release_flock(
        &mut self,
        ino: Ino,
        owner: LockOwner,
        completions: &mut LockCompletions,
    ) -> bool {
        let is_removed = self.remove_flock(ino, owner);
        if is_removed {
            self.settle(ino, owner.session, completions);
        }
        is_removed
    }

    pub(super) fn end_session(
        &mut self,
        session: LockSession,
        completions: &mut LockCompletions,
    ) -> Vec<Ino> {
        // Before locks are released, which could be granted to this session itself.
        // In the order of arrival, as they would have been granted.
        self.fail_waits(session, LockError::SessionEnded, completions);
        let Some(ended) = self.sessions.remove(&session) else { return Vec::new() };
        for ino in &ended.files {
            if let Some(file) = self.files.get_mut(ino) {
                file.ranges.retain(|owner, _| owner.session != session);
                file.flocks.retain(|owner, _| owner.session != session);
            }
            self.settle(*ino, session, completions);
        }
        ended.files.into_iter().collect()
    }

    /// Whether nothing but sessions is left.
    #[cfg(test)]
    pub(super) fn is_blank(&self) -> bool {
        let has_files = self.sessions.values().any(|session| !session.files.is_empty());
        self.files.is_empty() && self.waits.is_empty() && self.posix_waits.is_empty() && !has_files
    }

    /// Sets a lock that conflicts with nothing, if the session may have another one.
    fn grant(&mut self, request: &LockRequest) -> Result<(), LockError> {
        // If the session has no room, an empty entry stays here, which the caller drops with `settle`.
        let file = self.files.entry(request.ino).or_default();
        let growth = file.growth(request);
        let result = self.expect_room(request.owner.session, growth);
        if result.is_ok() {
            self.files.entry(request.ino).or_default().insert(request);
            self.count_locks(request.owner.session, growth);
            if let Some(session) = self.sessions.get_mut(&request.owner.session) {
                session.files.insert(request.ino);
            }
        }
        result
    }

    /// Grants what waits for nothing any more.
    fn grant_waiting(&mut self, ino: Ino, completions: &mut LockCompletions) {
        // Their machines ask the next process, where whoever has released this takes it up again.
        if self.grace.as_ref().is_some_and(|grace| grace.is_final) {
            return;
        }
        // What is granted may take the place of an exclusive lock, so that something earlier can be granted.
        while let Some(order) = self.file(ino).and_then(FileLockSet::find_grantable) {
            let Some(waiting) = self.remove_wait(WaitPlace { ino, order }) else { return };
            // The session may have as many locks as it may by now: then the request fails here.
            let result = self.grant(&waiting.request);
            completions.add(waiting.done, result);
        }
    }

    /// Grants what a released lock held up, and forgets what is empty.
    fn settle(&mut self, ino: Ino, session: LockSession, completions: &mut LockCompletions) {
        self.grant_waiting(ino, completions);
        self.drop_unused(ino, session);
    }

    fn drop_unused(&mut self, ino: Ino, session: LockSession) {
        let Some(file) = self.files.get(&ino) else { return };
        if !file.concerns(session)
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.files.remove(&ino);
        }
        if file.is_unused() {
            self.files.remove(&ino);
        }
    }

    fn clear_range(&mut self, request: &LockRequest) {
        let Some(file) = self.files.get_mut(&request.ino) else { return };
        if let Some(locks) = file.ranges.get_mut(&request.owner) {
            locks.clear(request.range);
            if locks.is_empty() {
                file.ranges.remove(&request.owner);
            }
        }
    }

    /// As Linux changes the mode of a `flock`: the old one is removed before the new one is set.
    fn remove_other_flock(&mut self, request: &LockRequest) {
        let LockRequest { ino, owner, kind, mode, .. } = *request;
        let held = self.file(ino).and_then(|file| file.flocks.get(&owner));
        if kind == LockKind::Flock && held.is_some_and(|held| held.mode != mode) {
            self.remove_flock(ino, owner);
        }
    }

    fn remove_flock(&mut self, ino: Ino, owner: LockOwner) -> bool {
        let is_removed = self.files.get_mut(&ino).is_some_and(|file| file.flocks.remove(&owner).is_some());
        if is_removed {
            self.count_locks(owner.session, -1);
        }
        is_removed
    }

    fn fail_waits(&mut self, session: LockSession, error: LockError, completions: &mut LockCompletions) {
        let mut ids: Vec<_> = self.waits.iter().filter(|(id, _)| id.session == session).collect();
        ids.sort_unstable_by_key(|(_, place)| place.order);
        let mut ids: Vec<WaitId> = ids.into_iter().map(|(id, _)| *id).collect();
        ids.extend(self.grace.iter().flat_map(|grace| grace.held_of(session)));
        for id in ids {
            self.fail_wait(id, error, completions);
        }
    }

    fn fail_wait(&mut self, id: WaitId, error: LockError, completions: &mut LockCompletions) -> bool {
        if let Some(held) = self.grace.as_mut().and_then(|grace| grace.take_held(id)) {
            completions.add(held.done, Err(error));
            return true;
        }
        let Some(place) = self.waits.get(&id).copied() else { return false };
        let Some(waiting) = self.remove_wait(place) else { return false };
        completions.add(waiting.done, Err(error));
        self.drop_unused(place.ino, id.session);
        true
    }

    fn remove_wait(&mut self, place: WaitPlace) -> Option<WaitingRequest> {
        let waiting = self.files.get_mut(&place.ino)?.waits.remove(&place.order)?;
        self.waits.remove(&waiting.id);
        let owner = waiting.request.owner;
        if let Some(places) = self.posix_waits.get_mut(&owner) {
            // An edge that stays would let later requests fail with a deadlock that is none.
            places.remove(&place);
            if places.is_empty() {
                self.posix_waits.remove(&owner);
            }
        }
        if let Some(session) = self.sessions.get_mut(&waiting.id.session) {
            session.usage.waits -= 1;
        }
        Some(waiting)
    }

    fn expect_session(&self, session: LockSession) -> Result<(), LockError> {
        if self.sessions.contains_key(&session) { Ok(()) } else { Err(LockError::SessionEnded) }
    }

    fn expect_room(&self, session: LockSession, growth: isize) -> Result<(), LockError> {
        let used = self.usage(session).ok_or(LockError::SessionEnded)?.locks;
        // What makes them no more is never refused: a session at its limit has to be able to unlock.
        let is_within = growth <= 0 || used.saturating_add_signed(growth) <= self.limits.locks;
        if is_within { Ok(()) } else { Err(LockError::TooMany) }
    }

    fn expect_wait_allowed(&self, session: LockSession) -> Result<(), LockError> {
        let used = self.usage(session).ok_or(LockError::SessionEnded)?.waits;
        if used < self.limits.waits { Ok(()) } else { Err(LockError::TooMany) }
    }

    fn count_locks(&mut self, session: LockSession, growth: isize) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.usage.locks = session.usage.locks.saturating_add_signed(growth);
        }
    }
}

//! The time in which sessions of an earlier process take up their locks again.
//!
//! Invariant: in this time nobody gets a lock but those who had one in the earlier process.

use std::collections::BTreeSet;

use super::request::{LockRequest, LockSession, WaitId};
use super::state::LockCallback;

/// The time, as long as it lasts.
#[derive(Default)]
pub(super) struct LockGrace {
    /// Sessions that have not taken up all that they had.
    pub(super) awaited: BTreeSet<LockSession>,
    /// Requests of the others, in the order of their arrival.
    pub(super) held: Vec<DeferredRequest>,
    /// It does not end: another process goes on with the locks.
    pub(super) is_final: bool,
}

/// A request that is decided later.
pub(super) struct DeferredRequest {
    pub(super) id: WaitId,
    pub(super) request: LockRequest,
    /// Whether it waits until the lock can be set.
    pub(super) waits: bool,
    pub(super) done: LockCallback,
}

impl LockGrace {
    pub(super) fn take_held(&mut self, id: WaitId) -> Option<DeferredRequest> {
        let index = self.held.iter().position(|held| held.id == id)?;
        Some(self.held.remove(index))
    }

    /// Those of a session.
    pub(super) fn held_of(&self, session: LockSession) -> impl Iterator<Item = WaitId> + '_ {
        self.held.iter().map(|held| held.id).filter(move |id| id.session == session)
    }
}

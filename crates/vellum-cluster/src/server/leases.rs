//! What clients may keep of answers, and how changes wait until they do not.
//!
//! - `table` is who was granted what, and what is recalled.
//! - `gate` is where an operation waits, of a client or of the server's own mount.
//!
//! A change first marks what it changes: from then on none of it is granted. Then it recalls what was granted, waits until
//! that is given back or the time for it is over, and is carried out. Only then can what it has changed be granted again,
//! with answers to requests that came after it.
//!
//! Invariants: an answer that a client may keep is one that no change under way contradicts; whoever grants or recalls
//! never waits for a client while it has the lock.

mod gate;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::protocol::lease::Lease;
use crate::protocol::{RECALL_TIME, SessionId};
pub use gate::LeaseGate;
use table::{GrantTable, StripeSet};

/// Where frames to a client wait to be sent.
pub trait FrameSink: Send + Sync {
    /// Adds an answer.
    fn add_answer(&self, frame: Arc<Vec<u8>>);
    /// Adds a frame that no request has asked for.
    fn add_notice(&self, frame: Vec<u8>);
}

/// The grants of all clients of a worktree.
pub struct LeaseTable {
    table: Mutex<GrantTable>,
    /// Something was given back, or a change is done.
    changed: Condvar,
    recall_time: Duration,
}

impl Default for LeaseTable {
    fn default() -> Self {
        Self::with_recall_time(RECALL_TIME)
    }
}

/// What a change has marked; it is done when this is dropped.
pub struct ChangeUnderWay {
    table: Arc<LeaseTable>,
    leases: MarkedLeases,
    stripes: StripeSet,
}

/// Which grants a change concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedLeases {
    /// These.
    Some(Vec<Lease>),
    /// All.
    All,
}

/// The moment at which a request came: what was changed since then is not granted with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestMoment(u64);

impl LeaseTable {
    /// Without grants. `recall_time`: [`RECALL_TIME`], unless a test has no time.
    #[must_use]
    pub fn with_recall_time(recall_time: Duration) -> Self {
        Self { table: Mutex::default(), changed: Condvar::new(), recall_time }
    }

    /// What a client is sent goes here from now on. It has kept nothing from before.
    pub fn attach_client(&self, session: SessionId, sink: Arc<dyn FrameSink>) {
        self.table.lock().attach_client(session, sink);
        // What it had before is forgotten with its old recalls, and changes may be waiting for those.
        self.changed.notify_all();
    }

    /// The connection of a client is lost. It may use what it was granted until its term is over.
    pub fn detach_client(&self, session: SessionId) {
        self.table.lock().detach_client(session, Instant::now());
    }

    /// A client uses nothing any more.
    pub fn remove_client(&self, session: SessionId) {
        self.table.lock().remove_client(session);
        self.changed.notify_all();
    }

    /// The moment at which a request comes.
    pub fn now(&self) -> RequestMoment {
        RequestMoment(self.table.lock().moment())
    }

    /// Sends an answer: `leased` if what it depends on can be granted, and `plain` otherwise.
    pub fn send_answer(
        &self,
        session: SessionId,
        came: RequestMoment,
        leases: &[Lease],
        answer: LeasedAnswer,
    ) {
        self.table.lock().send_answer(session, came.0, leases, answer);
    }

    /// A client has given back what it was not asked for.
    pub fn note_returned(&self, session: SessionId, leases: &[Lease]) {
        self.table.lock().note_returned(session, leases);
        self.changed.notify_all();
    }

    /// A client has confirmed a recall.
    pub fn note_recalled(&self, session: SessionId, number: u64) {
        self.table.lock().note_recalled(session, number);
        self.changed.notify_all();
    }

    /// The clients that have not answered a recall in time.
    pub fn take_overdue(&self) -> Vec<SessionId> {
        let mut table = self.table.lock();
        table.forget_ended(self.recall_time);
        table.take_overdue()
    }

    /// Whether a client has been granted anything, or may be.
    pub fn has_clients(&self) -> bool {
        self.table.lock().has_clients()
    }

    /// Grants that a client has.
    pub fn count_leases(&self, session: SessionId) -> usize {
        self.table.lock().count_leases(session)
    }

    /// Takes names that are to be changed: no other change of these is under way then.
    fn take_names(self: &Arc<Self>, stripes: StripeSet) -> ChangeUnderWay {
        let mut table = self.table.lock();
        // All or none: a change that held one name while it waited for another could wait for one that waits for it.
        self.changed.wait_while(&mut table, |table| !table.take_stripes(&stripes));
        ChangeUnderWay { table: self.clone(), leases: MarkedLeases::Some(Vec::new()), stripes }
    }

    /// Begins a change of everything, and waits until no client uses anything.
    #[must_use]
    pub fn begin_change_of_all(self: &Arc<Self>) -> ChangeUnderWay {
        let mut change = self.take_names(StripeSet::default());
        change.recall(MarkedLeases::All, None);
        change
    }
}

/// An answer in its two forms.
pub struct LeasedAnswer {
    /// As it is kept for a client that has not got it.
    pub plain: Arc<Vec<u8>>,
    /// The same, which the client may use again.
    pub leased: Arc<Vec<u8>>,
}

impl ChangeUnderWay {
    /// Marks what is changed, and waits until no client uses it. `by`: the session of the client that changes it, which may
    /// go on using names.
    fn recall(&mut self, leases: MarkedLeases, by: Option<SessionId>) {
        let LeaseTable { table, changed, recall_time } = &*self.table;
        let mut table = table.lock();
        // Marked before it is recalled, and both with one lock: an answer that is granted in between would be seen by
        // neither.
        table.begin_change(&leases);
        self.leases = leases;
        // The frames are only put into outboxes here, so nobody waits for a client with the lock.
        let number = table.recall(&self.leases, by);
        let sent = Instant::now();
        while let Some(until) = table.recalled_until(number, sent, *recall_time) {
            if until <= Instant::now() {
                // A client whose time is over uses nothing any more by its own clock: LEASE_TERM of the client is shorter
                // than RECALL_TIME of the server. Once it is given up, the next round finds nobody to wait for.
                table.give_up(number, sent, *recall_time);
            } else {
                changed.wait_until(&mut table, until);
            }
        }
    }
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        let mut table = self.table.table.lock();
        // Also if the operation has failed or panicked: a mark that stays would keep its place from being granted for ever.
        table.end_change(&self.leases);
        table.release_stripes(&self.stripes);
        drop(table);
        self.table.changed.notify_all();
    }
}

//! Who was granted what, what is being changed, and what is recalled. Nothing here waits.
//!
//! Changes are noted by a hash of what they change, in a table of a fixed size: two places with one hash only keep each
//! other from being granted for a moment.
//!
//! Invariant: what a client may use is among its grants, until it has said that it does not use it any more, or its term
//! is over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{FrameSink, LeasedAnswer, MarkedLeases};
use crate::protocol::frame::ServerFrame;
use crate::protocol::lease::Lease;
use crate::protocol::{LEASES_IN_FRAME_MAX, LEASES_MAX, SessionId};

/// Places of the table of changes, a count.
const MARKS: usize = 1 << 14;
/// Names that are told apart while they are changed, a count.
const STRIPES: u64 = 1 << 16;
/// The share of a client's grants that is recalled when it has as many as it may have: one part of so many.
const OLDEST_PART: usize = 8;

/// The table.
pub(super) struct GrantTable {
    /// Counts the beginnings and the ends of changes.
    moment: u64,
    marks: Vec<ChangeMark>,
    /// Of changes of everything.
    of_all: ChangeMark,
    clients: HashMap<SessionId, ClientGrants>,
    granted: HashMap<Lease, BTreeSet<SessionId>>,
    next_recall: u64,
    busy: BTreeSet<u64>,
}

/// What is known of the changes of one place.
#[derive(Debug, Clone, Copy, Default)]
struct ChangeMark {
    under_way: u32,
    last_ended: u64,
}

impl ChangeMark {
    fn has_changed_since(self, moment: u64) -> bool {
        // A change that ended after the request came may have been carried out before or after the request read: which of
        // them, nobody knows, so the answer is not kept.
        self.under_way > 0 || self.last_ended > moment
    }
}

/// Names that one change has taken.
#[derive(Debug, Clone, Default)]
pub(super) struct StripeSet(BTreeSet<u64>);

impl StripeSet {
    /// Of these names.
    pub fn of_names<'n>(names: impl Iterator<Item = (u64, &'n [u8])>) -> Self {
        Self(names.map(|name| hash_of(&name) % STRIPES).collect())
    }
}

/// What one client was granted.
#[derive(Default)]
struct ClientGrants {
    /// None: it is not connected.
    sink: Option<Arc<dyn FrameSink>>,
    lost_at: Option<Instant>,
    /// With the order in which they were granted.
    leases: HashMap<Lease, u64>,
    by_age: BTreeMap<u64, Lease>,
    next: u64,
    /// By their numbers.
    recalls: BTreeMap<u64, Vec<Lease>>,
    /// How many recalls name each.
    recalled: HashMap<Lease, u32>,
    is_overdue: bool,
}

impl Default for GrantTable {
    fn default() -> Self {
        Self {
            moment: 0,
            marks: vec![ChangeMark::default(); MARKS],
            of_all: ChangeMark::default(),
            clients: HashMap::new(),
            granted: HashMap::new(),
            next_recall: 1,
            busy: BTreeSet::new(),
        }
    }
}

impl GrantTable {
    pub fn moment(&self) -> u64 {
        self.moment
    }

    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    pub fn count_leases(&self, session: SessionId) -> usize {
        self.clients.get(&session).map_or(0, |client| client.leases.len())
    }

    pub fn attach_client(&mut self, session: SessionId, sink: Arc<dyn FrameSink>) {
        // A client forgets all that it keeps when it connects, so what the table still has of it is not in use.
        self.remove_client(session);
        self.clients.insert(session, ClientGrants { sink: Some(sink), ..ClientGrants::default() });
    }

    pub fn detach_client(&mut self, session: SessionId, now: Instant) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.sink = None;
        // The first loss counts: its term runs from then on, whatever is noted later.
        client.lost_at.get_or_insert(now);
        // Overdue is who is connected and silent about a recall. Who is not connected is waited for by its term, not ended.
        client.is_overdue = false;
    }

    pub fn remove_client(&mut self, session: SessionId) {
        if let Some(client) = self.clients.remove(&session) {
            client.leases.keys().for_each(|lease| forget_holder(&mut self.granted, *lease, session));
        }
    }

    /// Forgets the clients whose connection was lost so long ago that their terms are over.
    pub fn forget_ended(&mut self, recall_time: Duration) {
        let is_over =
            |client: &ClientGrants| client.lost_at.is_some_and(|lost| lost.elapsed() >= recall_time);
        let ended: Vec<_> =
            self.clients.iter().filter(|(_, client)| is_over(client)).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|session| self.remove_client(session));
    }

    pub fn take_overdue(&mut self) -> Vec<SessionId> {
        let take = |(id, client): (&SessionId, &mut ClientGrants)| {
            std::mem::take(&mut client.is_overdue).then_some(*id)
        };
        self.clients.iter_mut().filter_map(take).collect()
    }

    /// Takes the names, or none of them. Gives whether they were free.
    pub fn take_stripes(&mut self, stripes: &StripeSet) -> bool {
        let are_free = stripes.0.is_disjoint(&self.busy);
        if are_free {
            self.busy.extend(&stripes.0);
        }
        are_free
    }

    pub fn release_stripes(&mut self, stripes: &StripeSet) {
        self.busy.retain(|stripe| !stripes.0.contains(stripe));
    }

    pub fn begin_change(&mut self, leases: &MarkedLeases) {
        self.moment += 1;
        self.visit_marks(leases, |mark| mark.under_way += 1);
    }

    pub fn end_change(&mut self, leases: &MarkedLeases) {
        self.moment += 1;
        let moment = self.moment;
        self.visit_marks(leases, |mark| {
            mark.under_way -= 1;
            mark.last_ended = moment;
        });
    }

    fn visit_marks(&mut self, leases: &MarkedLeases, mut visit: impl FnMut(&mut ChangeMark)) {
        match leases {
            // Each change comes here as long as there are no clients, so that it must not visit all places.
            MarkedLeases::All => visit(&mut self.of_all),
            MarkedLeases::Some(leases) => {
                // Two places of one mark count it twice, in the beginning and in the end alike, so the count stays right.
                for lease in leases {
                    if let Some(mark) = self.marks.get_mut(mark_of(lease)) {
                        visit(mark);
                    }
                }
            }
        }
    }

    /// Sends an answer, and grants what it depends on if nothing stands against it.
    pub fn send_answer(&mut self, session: SessionId, came: u64, leases: &[Lease], answer: LeasedAnswer) {
        let is_changed = self.of_all.has_changed_since(came)
            || leases
                .iter()
                .any(|lease| self.marks.get(mark_of(lease)).is_none_or(|mark| mark.has_changed_since(came)));
        let Some(client) = self.clients.get_mut(&session) else { return };
        let Some(sink) = client.sink.clone() else { return };
        let is_recalled = leases.iter().any(|lease| client.recalled.contains_key(lease));
        // With a recall under way, the client's confirmation would take back what this answer has granted, and the client
        // would go on using it.
        if is_changed || is_recalled || leases.len() > LEASES_MAX {
            return sink.add_answer(answer.plain);
        }
        if client.leases.len() + leases.len() > LEASES_MAX {
            // This answer goes without a grant rather than wait for room: whoever sends an answer never waits for a client.
            self.recall_oldest(session);
            return sink.add_answer(answer.plain);
        }
        for lease in leases {
            client.add_lease(*lease);
            self.granted.entry(*lease).or_default().insert(session);
        }
        sink.add_answer(answer.leased);
    }

    /// A client has as many grants as it may have.
    fn recall_oldest(&mut self, session: SessionId) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        // What was recalled before makes room, once it is given back.
        if !client.recalled.is_empty() {
            return;
        }
        let oldest: Vec<_> = client.by_age.values().take(LEASES_MAX / OLDEST_PART).copied().collect();
        for leases in oldest.chunks(LEASES_IN_FRAME_MAX) {
            let number = self.next_recall;
            self.next_recall += 1;
            client.send_recall(number, leases.to_vec(), false);
        }
    }

    /// Asks all clients to give back what they were granted of these. Gives the number of the recall. `by`: the session of
    /// the client that changes it. It drops what it has kept of names by itself; its kernel knows of its own change, and
    /// would have to look up everything again if it lost what it has cached of the other names.
    pub fn recall(&mut self, leases: &MarkedLeases, by: Option<SessionId>) -> u64 {
        let number = self.next_recall;
        self.next_recall += 1;
        match leases {
            MarkedLeases::All => {
                for client in self.clients.values_mut().filter(|client| !client.leases.is_empty()) {
                    let all = client.leases.keys().copied().collect();
                    client.send_recall(number, all, true);
                }
            }
            MarkedLeases::Some(leases) => {
                // One frame for each client, since one number is confirmed once by each.
                let mut by_client: HashMap<SessionId, BTreeSet<Lease>> = HashMap::new();
                for lease in leases {
                    let keeps =
                        |session: &&SessionId| matches!(lease, Lease::Names(_)) && by == Some(**session);
                    let holders = self.granted.get(lease).into_iter().flatten();
                    for session in holders.filter(|session| !keeps(session)) {
                        by_client.entry(*session).or_default().insert(*lease);
                    }
                }
                for (session, leases) in by_client {
                    if let Some(client) = self.clients.get_mut(&session) {
                        client.send_recall(number, leases.into_iter().collect(), false);
                    }
                }
            }
        }
        number
    }

    /// Until when a recall is to be waited for; None: nobody is waited for.
    pub fn recalled_until(&self, number: u64, sent: Instant, recall_time: Duration) -> Option<Instant> {
        let waited = self.clients.values().filter(|client| client.recalls.contains_key(&number));
        // A client that was lost before the recall has not renewed since, so its term is counted from there. The earliest
        // one wakes the waiter, who gives that client up and asks again.
        waited.map(|client| client.lost_at.unwrap_or(sent).min(sent) + recall_time).min()
    }

    /// Waits no longer for the clients whose terms are over.
    pub fn give_up(&mut self, number: u64, sent: Instant, recall_time: Duration) {
        let now = Instant::now();
        for (session, client) in &mut self.clients {
            let until = client.lost_at.unwrap_or(sent).min(sent) + recall_time;
            if client.recalls.contains_key(&number) && until <= now {
                // Whoever is connected and has not answered is at odds with the protocol; its session is ended by the next
                // look.
                client.is_overdue = client.sink.is_some();
                client.leases.keys().for_each(|lease| forget_holder(&mut self.granted, *lease, *session));
                client.forget_leases();
            }
        }
    }

    pub fn note_recalled(&mut self, session: SessionId, number: u64) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let Some(leases) = client.recalls.remove(&number) else { return };
        for lease in leases {
            // It may be named by a later recall, too; until that is confirmed as well, it is not granted anew.
            client.count_recalled_less(lease);
            client.remove_lease(lease);
            forget_holder(&mut self.granted, lease, session);
        }
    }

    pub fn note_returned(&mut self, session: SessionId, leases: &[Lease]) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        // A recall that names it is still to be confirmed. Until then it is not granted anew.
        for lease in leases {
            client.remove_lease(*lease);
            forget_holder(&mut self.granted, *lease, session);
        }
    }
}

impl ClientGrants {
    fn add_lease(&mut self, lease: Lease) {
        // Granted again, it is the newest: recall_oldest takes what has not been asked for the longest.
        self.remove_lease(lease);
        self.leases.insert(lease, self.next);
        self.by_age.insert(self.next, lease);
        self.next += 1;
    }

    fn remove_lease(&mut self, lease: Lease) {
        if let Some(order) = self.leases.remove(&lease) {
            self.by_age.remove(&order);
        }
    }

    fn send_recall(&mut self, number: u64, leases: Vec<Lease>, is_of_all: bool) {
        if let Some(sink) = &self.sink {
            // A frame has room for LEASES_IN_FRAME_MAX, and all may be many more: no names stand for all.
            let named = if is_of_all { Vec::new() } else { leases.clone() };
            sink.add_notice(ServerFrame::Recall { number, leases: named }.encode());
        }
        // Noted also without a connection: the change then waits until the client's term is over.
        leases.iter().for_each(|lease| *self.recalled.entry(*lease).or_default() += 1);
        self.recalls.insert(number, leases);
    }

    fn count_recalled_less(&mut self, lease: Lease) {
        if let Some(count) = self.recalled.get_mut(&lease) {
            *count -= 1;
            if *count == 0 {
                self.recalled.remove(&lease);
            }
        }
    }

    fn forget_leases(&mut self) {
        self.leases.clear();
        self.by_age.clear();
        self.recalls.clear();
        self.recalled.clear();
    }
}

fn forget_holder(granted: &mut HashMap<Lease, BTreeSet<SessionId>>, lease: Lease, session: SessionId) {
    if let Some(holders) = granted.get_mut(&lease) {
        holders.remove(&session);
        if holders.is_empty() {
            granted.remove(&lease);
        }
    }
}

fn mark_of(lease: &Lease) -> usize {
    usize::try_from(hash_of(lease)).unwrap_or_default() % MARKS
}

fn hash_of(hashed: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    hashed.hash(&mut hasher);
    hasher.finish()
}

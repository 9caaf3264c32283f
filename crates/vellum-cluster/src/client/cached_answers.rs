//! Answers that the client gives again, as long as the server has granted what they depend on.
//!
//! Invariants: an answer is given only while a heartbeat that was sent less than [`LEASE_TERM`] ago was answered; what the
//! client itself is changing is neither given nor kept; there are never more than [`CACHED_BYTES_MAX`] bytes of answers.
//! Nothing is given back before the kernel has dropped it, too ([`KernelGrants`]).
//!
//! **Listings.** A program reads a large directory by several requests. The server answers the later ones from the names that
//! were there when some program began, which is right for that one, and wrong for another one that begins after a change.
//! So the answer to a later request is kept only if the beginning of the listing is kept, and was when the request was made:
//! then nothing has changed in between.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vellum_fuse::visit_named_nodes;
use vellum_fuse::wire::patching::without_entries;
use vellum_fuse::wire::{FuseOperation, FuseRequest, Opcode};

use super::kernel_grants::{GrantedTerm, KernelAnswer, KernelGrants, KernelNotice};
use crate::error::{ClusterError, Result};
use crate::protocol::frame::ClientFrame;
use crate::protocol::lease::{AnswerKey, ChangedPlaces, Lease};
use crate::protocol::{CACHED_BYTES_MAX, LEASE_TERM, LEASES_IN_FRAME_MAX, RECALLS_MAX};

/// What an answer takes besides its bytes and those of its key, for each thing that it depends on.
const DEPENDENCY_WEIGHT: usize = 128;

/// Heartbeats of which the time is known, a count: more than are under way in the time after which a connection is lost.
const PINGS_MAX: usize = 16;

/// The answers.
#[derive(Debug, Default)]
pub struct CachedAnswers {
    answers: HashMap<Arc<AnswerKey>, CachedAnswer>,
    by_lease: HashMap<Lease, HashSet<Arc<AnswerKey>>>,
    bytes: usize,
    /// Answers that were kept, a count.
    kept: u64,
    /// What the client is changing, with how many requests.
    changing: HashMap<Lease, u32>,
    /// What is to be given back without having been recalled.
    returned: Vec<Lease>,
    /// Recalls to confirm.
    recalled: Vec<u64>,
    /// Recalls that are confirmed when the kernel has dropped what they name, a count.
    unconfirmed: usize,
    /// Connections so far: another process may use the same numbers for its recalls.
    connection: u64,
    /// None: there is no kernel that caches anything.
    kernel: Option<KernelGrants>,
    /// Nodes that answers have named which are not kept any more.
    unnamed: Vec<u64>,
    /// Heartbeats that are not answered, and when they were sent.
    pings: VecDeque<(u64, Duration)>,
    next_ping: u64,
    /// By the clock that counts while the machine sleeps.
    valid_until: Duration,
}

#[derive(Debug)]
struct CachedAnswer {
    /// Which of the answers that were kept it is.
    number: u64,
    errno: i32,
    body: Vec<u8>,
    leases: Vec<Lease>,
    weight: usize,
}

/// What the answer to a request goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingBeginning {
    /// From nothing.
    NotNeeded,
    /// From an answer that is not kept.
    Missing,
    /// From one that is kept, and which one it is.
    Kept { number: u64 },
}

/// A change of the client's own that has begun.
#[derive(Debug, Default)]
pub struct BegunChange {
    /// What [`CachedAnswers::end_change`] is to be told.
    pub changed: Vec<Lease>,
    /// What the kernel has to drop before the request is sent.
    pub notices: Vec<KernelNotice>,
    /// What is given back with it.
    returned: Vec<Lease>,
    connection: u64,
}

impl BegunChange {
    /// Whether nothing is changed.
    pub fn changes_nothing(&self) -> bool {
        self.changed.is_empty()
    }
}

/// A recall that is to be confirmed.
#[derive(Debug)]
pub struct RecallConfirmation {
    number: u64,
    connection: u64,
    /// What the kernel has to drop before.
    pub notices: Vec<KernelNotice>,
}

impl CachedAnswers {
    /// From now on there is a kernel that caches something.
    pub fn attach_kernel(&mut self, kernel: KernelGrants) {
        self.kernel = Some(kernel);
    }

    /// From now on the kernel caches no names; those that it has are left to expire. Gives whether it cached any before.
    pub fn end_kernel_names(&mut self) -> bool {
        self.kernel.as_mut().is_some_and(KernelGrants::end_names)
    }

    /// Forgets everything: what is connected from now on has granted nothing. Gives what the kernel has to drop before the
    /// next connection.
    pub fn clear(&mut self) -> Vec<KernelNotice> {
        // What the client is changing is still under way: those requests are sent again over the next connection.
        let changing = std::mem::take(&mut self.changing);
        let notices = self.kernel.as_mut().map(KernelGrants::end_all).unwrap_or_default();
        let connection = self.connection + 1;
        self.drop_answers();
        let kernel = self.kernel.take();
        let unnamed = std::mem::take(&mut self.unnamed);
        *self = Self { changing, kept: self.kept, connection, kernel, unnamed, ..Self::default() };
        notices
    }

    /// The answer to a request, if the server need not be asked. `knows_node`: whether the server holds a node for this
    /// client.
    pub fn find_answer(&mut self, key: &AnswerKey, knows_node: impl Fn(u64) -> bool) -> Option<KernelAnswer> {
        let mut answer = self.copy_answer(key)?;
        if self.kernel.is_some() {
            answer.leave_out_nodes(key.opcode());
        }
        let mut knows_all = true;
        visit_named_nodes(key.opcode(), &answer.body, |node| knows_all &= knows_node(node));
        // The clock is read last: what is found is valid at that moment.
        let term = self.remaining_term().filter(|_| knows_all)?;
        if let Some(kernel) = &mut self.kernel {
            kernel.grant(key, &mut answer, term);
        }
        Some(answer)
    }

    fn copy_answer(&self, key: &AnswerKey) -> Option<KernelAnswer> {
        if let Some(CachedAnswer { errno, body, .. }) = self.answers.get(key) {
            return Some(KernelAnswer { errno: *errno, body: body.clone() });
        }
        // A kernel asks for the rest of a listing with entries or without, depending on what it has looked up meanwhile.
        let other = self.answers.get(&key.of_other_listing()?)?;
        let has_entries = key.opcode() == Opcode::Readdir.number();
        let body = has_entries.then(|| without_entries(&other.body));
        // Entries are not made up, except for the end of a listing, which has none.
        let body = body.or_else(|| other.body.is_empty().then(Vec::new))?;
        Some(KernelAnswer { errno: other.errno, body })
    }

    /// How long what is kept may be used from now on; None: not any more.
    fn remaining_term(&self) -> Option<GrantedTerm> {
        let now = boot_time();
        let rest = self.valid_until.checked_sub(now).filter(|rest| !rest.is_zero())?;
        Some(GrantedTerm { now, rest })
    }

    /// What an answer to a request goes on from, which is about to be sent.
    pub fn find_beginning(&self, request: &FuseRequest<'_>) -> ListingBeginning {
        let Ok(operation) = request.decode_operation() else { return ListingBeginning::Missing };
        let Some(keys) = AnswerKey::of_beginning(request.header.node, &operation) else {
            return ListingBeginning::NotNeeded;
        };
        let kept = keys.iter().find_map(|key| self.answers.get(key));
        kept.map_or(ListingBeginning::Missing, |kept| ListingBeginning::Kept { number: kept.number })
    }

    /// Keeps an answer that the server lets the client keep, and lets the kernel cache it. `beginning`: when the request was
    /// made.
    pub fn keep_answer(
        &mut self,
        request: &FuseRequest<'_>,
        beginning: ListingBeginning,
        answer: &mut KernelAnswer,
    ) {
        let Ok(operation) = request.decode_operation() else { return };
        let key = AnswerKey::of_request(request.header.opcode, request.header.node, &operation);
        let Some(key) = key.map(Arc::new) else { return };
        // With another beginning than the one that the request went on from, they would not be one listing.
        if beginning == ListingBeginning::Missing || self.find_beginning(request) != beginning {
            return;
        }
        if self.add_answer(&key, answer.errno, &answer.body)
            && let Some(term) = self.remaining_term()
            && let Some(kernel) = &mut self.kernel
        {
            kernel.grant(&key, answer, term);
        }
    }

    /// Adds an answer to those that are kept. False: it is not kept.
    fn add_answer(&mut self, key: &Arc<AnswerKey>, errno: i32, body: &[u8]) -> bool {
        let Some(leases) = key.list_leases(errno, body) else { return false };
        // The server may have sent it before it got the client's own change, and what this has given back.
        if leases.iter().any(|lease| self.changing.contains_key(lease)) {
            return false;
        }
        self.remove_answer(key);
        let weight = body.len() + (1 + leases.len()) * (DEPENDENCY_WEIGHT + key.weight());
        if self.bytes + weight > CACHED_BYTES_MAX {
            // All at once instead of one by one by age: the cache is a copy that fills again, and 64 MiB are seldom full.
            self.drop_answers();
        }
        if weight > CACHED_BYTES_MAX {
            return false;
        }
        self.bytes += weight;
        for lease in &leases {
            self.by_lease.entry(*lease).or_default().insert(key.clone());
        }
        self.kept += 1;
        let number = self.kept;
        self.answers.insert(key.clone(), CachedAnswer { number, errno, body: body.into(), leases, weight });
        true
    }

    /// The client changes something. What this gives is passed to [`Self::give_back`], when the kernel has dropped what it
    /// names.
    pub fn begin_change(&mut self, node: u64, operation: &FuseOperation<'_>) -> BegunChange {
        let mut places = ChangedPlaces::of_operation(node, operation);
        for name in std::mem::take(&mut places.names) {
            if name.changes_node
                && let Some(node) = self.find_node(name.dir, name.name)
            {
                places.add_named_node(node);
            }
        }
        let moves_entry = matches!(operation, FuseOperation::Rename { to_dir, .. } if *to_dir != node);
        let mut begun = BegunChange { connection: self.connection, ..BegunChange::default() };
        for lease in &places.leases {
            *self.changing.entry(*lease).or_default() += 1;
            self.give_up(*lease, moves_entry, &mut begun);
        }
        BegunChange { changed: places.leases, ..begun }
    }

    /// Drops what depends on a lease that a change of the client's own concerns.
    fn give_up(&mut self, lease: Lease, moves_entry: bool, begun: &mut BegunChange) {
        let was_kept = self.drop_lease(lease);
        let Some(kernel) = &mut self.kernel else {
            begun.returned.extend(was_kept.then_some(lease));
            return;
        };
        match lease {
            // The kernel follows its own change, so the other names of the directory stay right, and stay granted.
            Lease::Names(dir) if kernel.has_names(dir) && !moves_entry => {}
            Lease::Names(_) | Lease::Node(_) => {
                let notice = kernel.end_lease(lease, boot_time());
                // Given back without being asked, so that the client's own change need not wait for its own recall.
                begun.returned.extend((was_kept || notice.is_some()).then_some(lease));
                begun.notices.extend(notice);
            }
        }
    }

    /// Gives back what a change of the client's own concerns, with the next request.
    pub fn give_back(&mut self, begun: &mut BegunChange) {
        // To another connection nothing of it was granted.
        if begun.connection == self.connection {
            self.returned.append(&mut begun.returned);
        }
    }

    /// A change of the client's own was answered, or will not be.
    pub fn end_change(&mut self, changed: &[Lease]) {
        for lease in changed {
            if let Some(count) = self.changing.get_mut(lease) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(lease);
                }
            }
        }
    }

    /// The kernel knows a node no more.
    pub fn forget_node(&mut self, node: u64) {
        let had_names = self.kernel.as_mut().is_some_and(|kernel| kernel.forget_node(node));
        // What the client itself has kept is recalled when it is changed.
        if had_names && !self.by_lease.contains_key(&Lease::Names(node)) {
            self.returned.push(Lease::Names(node));
        }
    }

    fn find_node(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let cached = self.answers.get(&AnswerKey::of_name(dir, name))?;
        let mut found = None;
        visit_named_nodes(Opcode::Lookup.number(), &cached.body, |node| found = Some(node));
        found
    }

    /// The server recalls what it has granted; nothing: all of it. Gives what is passed to [`Self::confirm_recall`], when the
    /// kernel has dropped what it names.
    pub fn recall(&mut self, number: u64, leases: &[Lease]) -> Result<RecallConfirmation> {
        // They wait for the sender, which a server that does not read could hold up while it sends recalls.
        if self.recalled.len() + self.unconfirmed >= RECALLS_MAX {
            return Err(ClusterError::Violation("too many recalls"));
        }
        let notices = match leases {
            [] => {
                self.drop_answers();
                self.kernel.as_mut().map(KernelGrants::end_all).unwrap_or_default()
            }
            leases => leases.iter().filter_map(|lease| self.end_lease(*lease)).collect(),
        };
        self.unconfirmed += 1;
        Ok(RecallConfirmation { number, connection: self.connection, notices })
    }

    fn end_lease(&mut self, lease: Lease) -> Option<KernelNotice> {
        self.drop_lease(lease);
        self.kernel.as_mut().and_then(|kernel| kernel.end_lease(lease, boot_time()))
    }

    /// Confirms a recall, with the next request.
    pub fn confirm_recall(&mut self, confirmation: &RecallConfirmation) {
        // Over another connection, the same number is of another recall, or of none.
        if confirmation.connection == self.connection {
            self.unconfirmed -= 1;
            self.recalled.push(confirmation.number);
        }
    }

    /// What is to be sent, before the next requests.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let returned = std::mem::take(&mut self.returned);
        let returned =
            returned.chunks(LEASES_IN_FRAME_MAX).map(|leases| ClientFrame::Return(leases.to_vec()).encode());
        let recalled = std::mem::take(&mut self.recalled);
        let recalled = recalled.into_iter().map(|number| ClientFrame::Recalled { number }.encode());
        returned.chain(recalled).collect()
    }

    /// The next heartbeat, which is sent after this.
    pub fn new_ping(&mut self) -> Vec<u8> {
        self.next_ping += 1;
        let number = self.next_ping;
        if self.pings.len() >= PINGS_MAX {
            self.pings.pop_front();
        }
        self.pings.push_back((number, boot_time()));
        ClientFrame::Ping { number }.encode()
    }

    /// A heartbeat was answered, and with it all before.
    pub fn note_pong(&mut self, number: u64) {
        while let Some((sent, at)) = self.pings.front().copied()
            && sent <= number
        {
            self.pings.pop_front();
            // A number that was never sent, or is forgotten, prolongs nothing.
            if sent == number {
                // Counted from before it was sent: at no moment does the client believe longer than the server waits.
                self.valid_until = at + LEASE_TERM;
            }
        }
    }

    /// Whether an answer that is kept names a node, for a kernel that may have to learn of the node again: each time that
    /// it drops all names, it forgets what it knows by no other way.
    pub fn names_node(&self, node: u64) -> bool {
        self.kernel.is_some() && self.by_lease.contains_key(&Lease::Node(node))
    }

    /// Takes the nodes that answers have named which are not kept any more.
    pub fn take_unnamed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unnamed)
    }

    fn note_unused(&mut self, lease: Lease) {
        match lease {
            Lease::Node(node) if self.kernel.is_some() => self.unnamed.push(node),
            Lease::Node(_) | Lease::Names(_) => {}
        }
    }

    fn drop_answers(&mut self) {
        self.answers.clear();
        let unused = std::mem::take(&mut self.by_lease);
        unused.into_keys().for_each(|lease| self.note_unused(lease));
        self.bytes = 0;
    }

    /// Drops what depends on it. Gives whether there was anything.
    fn drop_lease(&mut self, lease: Lease) -> bool {
        let Some(keys) = self.by_lease.remove(&lease) else { return false };
        self.note_unused(lease);
        keys.iter().for_each(|key| self.remove_answer(key));
        true
    }

    fn remove_answer(&mut self, key: &AnswerKey) {
        let Some(cached) = self.answers.remove(key) else { return };
        self.bytes -= cached.weight;
        for lease in cached.leases {
            if let Some(keys) = self.by_lease.get_mut(&lease) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_lease.remove(&lease);
                    self.note_unused(lease);
                }
            }
        }
    }
}

/// The time since the machine has started, also while it sleeps.
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // It counts from the machine's start, so it is never negative.
    let secs = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_fuse::wire::RequestHeader;

    const ROOM: u32 = 4096;
    const DIR: u64 = 7;

    /// The body of a request for a part of a listing (`fuse_read_in`).
    fn read_body(offset: u64) -> Vec<u8> {
        [&0u64.to_le_bytes()[..], &offset.to_le_bytes(), &ROOM.to_le_bytes(), &[0; 20]].concat()
    }

    fn listing_request(body: &[u8], opcode: Opcode) -> FuseRequest<'_> {
        let header = RequestHeader { opcode: opcode.number(), unique: 1, node: DIR, uid: 0, gid: 0, pid: 0 };
        FuseRequest::from_parts(header, body)
    }

    fn new_answers() -> CachedAnswers {
        let mut answers = CachedAnswers::default();
        answers.new_ping();
        answers.note_pong(1);
        answers
    }

    /// Asks for a part of the listing, and lets `meanwhile` happen before the answer comes.
    fn ask(answers: &mut CachedAnswers, offset: u64, meanwhile: impl FnOnce(&mut CachedAnswers)) {
        let body = read_body(offset);
        let request = listing_request(&body, Opcode::Readdir);
        let beginning = answers.find_beginning(&request);
        meanwhile(answers);
        answers.keep_answer(&request, beginning, &mut KernelAnswer { errno: 0, body: Vec::new() });
    }

    fn is_kept(answers: &mut CachedAnswers, offset: u64) -> bool {
        let operation = FuseOperation::Readdir { offset, room: ROOM };
        let key = AnswerKey::of_request(Opcode::Readdir.number(), DIR, &operation).unwrap();
        answers.find_answer(&key, |_| true).is_some()
    }

    fn recall(answers: &mut CachedAnswers) {
        answers.recall(1, &[Lease::Names(DIR)]).unwrap();
    }

    #[test]
    fn a_listing_is_kept_from_its_beginning_on() {
        let mut answers = new_answers();
        ask(&mut answers, 0, |_| {});
        ask(&mut answers, 50, |_| {});
        assert!(is_kept(&mut answers, 0) && is_kept(&mut answers, 50));
        recall(&mut answers);
        assert!(!is_kept(&mut answers, 0) && !is_kept(&mut answers, 50));
    }

    #[test]
    fn the_end_of_a_listing_is_the_same_with_entries_and_without() {
        let mut answers = new_answers();
        ask(&mut answers, 0, |_| {});
        let operation = FuseOperation::Readdirplus { offset: 0, room: ROOM };
        let key = AnswerKey::of_request(Opcode::Readdirplus.number(), DIR, &operation).unwrap();
        assert!(answers.find_answer(&key, |_| true).is_some());
        recall(&mut answers);
        assert!(answers.find_answer(&key, |_| true).is_none());
    }

    #[test]
    fn what_goes_on_from_an_older_listing_is_not_kept() {
        let mut answers = new_answers();
        // The directory has changed since this reader began.
        ask(&mut answers, 0, |_| {});
        recall(&mut answers);
        ask(&mut answers, 50, |_| {});
        assert!(!is_kept(&mut answers, 50));
        // Nor if another one begins before the answer comes.
        ask(&mut answers, 50, |answers| ask(answers, 0, |_| {}));
        assert!(is_kept(&mut answers, 0) && !is_kept(&mut answers, 50));
        ask(&mut answers, 50, |answers| {
            recall(answers);
            ask(answers, 0, |_| {});
        });
        assert!(is_kept(&mut answers, 0) && !is_kept(&mut answers, 50));
    }
}

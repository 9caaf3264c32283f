//! The requests of a client that are not answered.
//!
//! Invariant: what is sent and not answered stays within the limits of the protocol; requests are sent in the order in
//! which they came.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vellum_fuse::transport::PendingAnswer;
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest, Opcode, RequestHeader};

use super::ClientLinkStatus;
use super::cached_answers::{BegunChange, CachedAnswers, ListingBeginning, RecallConfirmation};
use super::kernel_grants::{KernelAnswer, KernelGrants, KernelNotice};
use super::known_nodes::KnownNodes;
use super::locked_files::LockedFiles;
use super::notices::WaitingChange;
use super::stored_writes::{KeptContent, asks_for_bytes};
use super::unsynced::{SyncingThread, UnsyncedChanges};
use crate::error::Result;
use crate::protocol::frame::{ServerProcess, encode_request};
use crate::protocol::lease::{AnswerKey, Lease};
use crate::protocol::reclaim::ReclaimedLock;
use crate::protocol::weight::weigh_request;
use crate::protocol::{IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX};

/// Forgotten nodes in one request, a count: the request stays small.
const FORGETS_MAX: usize = 1024;

/// The requests.
pub struct RequestQueue {
    next: u64,
    operations: BTreeMap<u64, ClientOperation>,
    /// Those that were not sent over the present connection.
    unsent: VecDeque<u64>,
    sent: SentOperations,
    known: KnownNodes,
    cached: CachedAnswers,
    files: LockedFiles,
    unsynced: UnsyncedChanges,
    /// The process that served last.
    server: Option<[u8; 16]>,
    /// Nodes that the server is to be told of, with how often it counts each.
    forgotten: Vec<(u64, u64)>,
    /// Nodes that the server has to hold in this session, in the order in which they are named; none: it holds all.
    to_hold: Vec<u64>,
    link: LinkState,
}

/// Requests that were sent over the present connection and are not answered.
#[derive(Debug, Clone, Copy, Default)]
struct SentOperations {
    count: usize,
    weight: usize,
}

/// Whether there is a connection.
#[derive(Debug, Clone, Copy)]
enum LinkState {
    Connected,
    LostSince(Instant),
    Ended,
}

struct ClientOperation {
    header: RequestHeader,
    body: Vec<u8>,
    weight: usize,
    since: Instant,
    /// Over the present connection.
    is_sent: bool,
    /// Over any connection.
    was_sent: bool,
    /// The number by which the kernel knows it.
    kernel_unique: u64,
    /// What it changes.
    changed: Vec<Lease>,
    /// What its answer goes on from.
    beginning: ListingBeginning,
    /// When it was added, as [`UnsyncedChanges`] counts.
    added: u64,
    reply: OperationReply,
}

/// Who waits for an answer.
pub enum OperationReply {
    /// The kernel.
    Kernel(PendingAnswer),
    /// The kernel. Its request was a write with this body, whose bytes are in the store.
    StoredWrite {
        /// Its answer.
        kernel: PendingAnswer,
        /// What is sent if the server does not find them there.
        body: Vec<u8>,
        /// While this exists, the store keeps them.
        _kept: KeptContent,
    },
    /// A thread of this process.
    Command(SyncSender<FuseAnswer>),
    /// Nobody.
    Nobody,
}

/// An answer of the server.
#[derive(Debug, Clone, Copy)]
pub struct AnsweredRequest<'a> {
    /// The request.
    pub number: u64,
    /// The number of the error; 0: success.
    pub errno: i32,
    /// What it succeeded with.
    pub body: &'a [u8],
    /// Whether it may be given again.
    pub is_leased: bool,
}

/// A request that was answered, or that nobody will answer.
pub struct EndedOperation {
    pub(super) reply: OperationReply,
    pub(super) answer: FuseAnswer,
}

impl EndedOperation {
    /// Sends the answer to the kernel. To be called without a lock: the kernel may send a request at once.
    pub fn send_answer(self) {
        match self.reply {
            OperationReply::Kernel(reply) | OperationReply::StoredWrite { kernel: reply, .. } => {
                reply.send_answer(self.answer);
            }
            // Whoever sent the command may be gone.
            OperationReply::Command(reply) => drop(reply.try_send(self.answer)),
            OperationReply::Nobody => {}
        }
    }
}

impl RequestQueue {
    /// Without requests and without a connection.
    pub fn new() -> Self {
        Self {
            next: 1,
            operations: BTreeMap::new(),
            unsent: VecDeque::new(),
            sent: SentOperations::default(),
            known: KnownNodes::default(),
            cached: CachedAnswers::default(),
            files: LockedFiles::default(),
            unsynced: UnsyncedChanges::default(),
            server: None,
            forgotten: Vec::new(),
            to_hold: Vec::new(),
            link: LinkState::LostSince(Instant::now()),
        }
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        matches!(self.link, LinkState::Connected)
    }

    /// Whether the client ends.
    pub fn has_ended(&self) -> bool {
        matches!(self.link, LinkState::Ended)
    }

    /// From now on there is a kernel that caches something.
    pub fn attach_kernel(&mut self, kernel: KernelGrants) {
        self.cached.attach_kernel(kernel);
    }

    /// From now on the kernel caches no names; those that it has are left to expire. Gives whether it cached any before.
    pub fn end_kernel_names(&mut self) -> bool {
        self.cached.end_kernel_names()
    }

    /// Begins what a request changes, which is added afterwards.
    pub fn begin_change(&mut self, request: &FuseRequest<'_>, operation: &FuseOperation<'_>) -> BegunChange {
        self.cached.begin_change(request.header.node, operation)
    }

    /// Adds a request that changes nothing. If the client has ended, dropping `reply` fails it.
    pub fn add_request(&mut self, request: &FuseRequest<'_>, reply: OperationReply) {
        self.add_change(request, None, BegunChange::default(), reply);
    }

    /// Adds a request, and what it changes. `operation`: what it asks for, as far as it matters for its weight.
    pub fn add_change(
        &mut self,
        request: &FuseRequest<'_>,
        operation: Option<&FuseOperation<'_>>,
        mut change: BegunChange,
        reply: OperationReply,
    ) {
        if self.has_ended() {
            return;
        }
        self.cached.give_back(&mut change);
        let weight = weigh_request(request, operation);
        // The body is copied since the kernel's buffer is used for the next request, and this one may be sent several
        // times.
        let operation = ClientOperation {
            header: request.header,
            body: request.body().to_vec(),
            weight,
            since: Instant::now(),
            is_sent: false,
            was_sent: false,
            kernel_unique: request.header.unique,
            changed: change.changed,
            beginning: self.cached.find_beginning(request),
            added: self.unsynced.now(),
            reply,
        };
        self.enqueue_operation(operation);
    }

    fn enqueue_operation(&mut self, mut operation: ClientOperation) {
        let number = self.next;
        self.next += 1;
        operation.header.unique = number;
        self.operations.insert(number, operation);
        self.unsent.push_back(number);
    }

    /// Adds a request of which the kernel has dropped what it changes. Gives it if it must not be carried out.
    pub fn add_waiting_change(&mut self, waiting: WaitingChange) -> Option<EndedOperation> {
        let WaitingChange { header, body, change, reply } = waiting;
        let request = FuseRequest::from_parts(header, &body);
        // It was looked at before it waited, too; a loss that was noted meanwhile has not found it.
        if self.refuses(&request) {
            self.cached.end_change(&change.changed);
            return Some(EndedOperation { reply, answer: FuseAnswer::Failed(Errno::IO) });
        }
        // It was decoded before it waited, so this succeeds.
        let operation = request.decode_operation().ok();
        self.add_change(&request, operation.as_ref(), change, reply);
        None
    }

    /// Whether a request fails because something is lost that it relies on.
    pub fn refuses(&mut self, request: &FuseRequest<'_>) -> bool {
        self.is_lock_lost(request) || self.take_loss(&request.header)
    }

    /// The answer to a request, if the server has granted it before.
    pub fn find_cached(
        &mut self,
        request: &FuseRequest<'_>,
        operation: &FuseOperation<'_>,
    ) -> Option<FuseAnswer> {
        let RequestHeader { opcode, node, .. } = request.header;
        let key = AnswerKey::of_request(opcode, node, operation)?;
        // Each answer that names a node counts it once more in the kernel. If the server does not hold the node for this
        // client, it could be gone before the kernel uses it.
        let answer = self.cached.find_answer(&key, |node| self.known.knows(node))?;
        if answer.errno == 0 {
            self.known.record_cached_answer(opcode, &answer.body);
        }
        Some(answer.into())
    }

    /// The server recalls what it has granted.
    pub fn recall(&mut self, number: u64, leases: &[Lease]) -> Result<RecallConfirmation> {
        self.cached.recall(number, leases)
    }

    /// Nothing uses any more what was recalled.
    pub fn confirm_recall(&mut self, confirmation: &RecallConfirmation) {
        self.cached.confirm_recall(confirmation);
    }

    /// The next heartbeat, which is sent after this.
    pub fn new_ping(&mut self) -> Vec<u8> {
        self.cached.new_ping()
    }

    /// A heartbeat was answered.
    pub fn note_pong(&mut self, number: u64) {
        self.cached.note_pong(number);
        // The server reads frames in their order, and the first heartbeat comes behind what it has to hold.
        if number > 0 {
            self.to_hold = Vec::new();
        }
    }

    /// Whether this process served last.
    pub fn is_served_by(&self, server: &ServerProcess) -> bool {
        self.server == Some(server.id)
    }

    /// The locks that programs have.
    pub fn list_locks(&self) -> Vec<ReclaimedLock> {
        self.files.list_locks()
    }

    /// Whether a request uses an open file whose locks were lost.
    pub fn is_lock_lost(&self, request: &FuseRequest<'_>) -> bool {
        self.files.is_lost(request)
    }

    /// Whether a request is an `fsync` of what the server had answered and its machine has taken along.
    pub fn take_loss(&mut self, header: &RequestHeader) -> bool {
        is_sync(header.opcode) && self.unsynced.take_loss(header.node, || SyncingThread::read(header.pid))
    }

    /// Whether anything was changed since the last `fsync` of any file, or an `fsync` of this node may have to fail.
    pub fn has_to_sync(&self, node: u64) -> bool {
        self.unsynced.has_to_sync(node)
    }

    /// Notes which process serves. Gives the requests that wait for what the process before has taken along to be durable.
    pub fn note_server(&mut self, server: &ServerProcess) -> Vec<EndedOperation> {
        let before = self.server.replace(server.id);
        // The same process has all that it has answered, also in a new session.
        if before.is_none_or(|before| before == server.id) {
            return Vec::new();
        }
        self.unsynced.note_other_server(&server.carried_out);
        let waiting = self.operations.iter().filter(|(_, operation)| is_sync(operation.header.opcode));
        let waiting: Vec<_> = waiting.map(|(number, operation)| (*number, operation.header)).collect();
        let is_lost =
            |header: &RequestHeader| self.unsynced.is_lost(header.node, || SyncingThread::read(header.pid));
        let lost: Vec<_> = waiting.into_iter().filter(|(_, header)| is_lost(header)).collect();
        for (_, header) in &lost {
            // These fail now, so the loss was told to them; their next fsync of the node may succeed.
            self.unsynced.take_loss(header.node, || SyncingThread::read(header.pid));
        }
        let failed = lost.into_iter().filter_map(|(number, _)| self.operations.remove(&number));
        failed.map(ClientOperation::fail).collect()
    }

    /// How the connection stands, and what waits for it.
    pub fn describe_link(&self) -> ClientLinkStatus {
        let changes = self.operations.values().filter(|operation| !operation.changed.is_empty());
        ClientLinkStatus {
            is_connected: self.is_connected(),
            waiting_changes: changes.count(),
            has_unsynced_changes: !self.unsynced.is_empty(),
            kernel_requests: 0,
        }
    }

    /// A program that waits for the answer to a request has got a signal. Only who waits for a lock does not wait on: gives
    /// the request if it was not sent yet, and otherwise has the server told. Who asks for the figures of the filesystem
    /// (`statfs`) while there is no server does not wait on, either: so it is found out whether a mount answers.
    pub fn interrupt_request(&mut self, kernel_unique: u64) -> Option<EndedOperation> {
        let is_connected = self.is_connected();
        let is_meant = |operation: &ClientOperation| {
            let opcode = operation.header.opcode;
            let waits_for_server = opcode == Opcode::Statfs.number() && !is_connected;
            operation.kernel_unique == kernel_unique
                && (opcode == Opcode::Setlkw.number() || waits_for_server)
        };
        let (&number, operation) = self.operations.iter().find(|(_, operation)| is_meant(operation))?;
        if operation.was_sent && operation.header.opcode == Opcode::Setlkw.number() {
            // The server knows the request by the client's number, not by the kernel's, and it answers it in the usual way:
            // either the lock, or EINTR.
            let header = RequestHeader { opcode: Opcode::Interrupt.number(), node: 0, ..operation.header };
            let body = number.to_le_bytes();
            let request = FuseRequest::from_parts(header, &body);
            self.add_request(&request, OperationReply::Nobody);
            return None;
        }
        let operation = self.operations.remove(&number)?;
        // Never sent, or it asks only, so it has changed nothing; what it keeps from being cached would stay so for ever.
        self.cached.end_change(&operation.changed);
        Some(EndedOperation { reply: operation.reply, answer: FuseAnswer::Failed(Errno::INTR) })
    }

    /// The kernel has forgotten a node so often.
    pub fn forget_node(&mut self, node: u64, times: u64) {
        if self.known.forget(node, times) {
            self.cached.forget_node(node);
            self.release_node(node);
        }
    }

    /// Has the server let a node go that nothing here uses.
    fn release_node(&mut self, node: u64) {
        if !self.cached.names_node(node)
            && let Some(counted) = self.known.release(node)
        {
            // Not sent at once: a kernel forgets thousands of nodes in a row, which become one request.
            self.forgotten.push((node, counted));
        }
    }

    /// The next frames to send, as many as may be under way.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        self.add_forgotten();
        // Before the requests: what they change was given back here, and the server need not recall it from this client
        // then.
        let mut frames = self.cached.take_frames();
        while let Some(number) = self.unsent.front() {
            // It may have waited for too long.
            let Some(operation) = self.operations.get_mut(number) else {
                self.unsent.pop_front();
                continue;
            };
            let weight = self.sent.weight + operation.weight;
            if self.sent.count >= IN_FLIGHT_MAX || weight > IN_FLIGHT_BYTES_MAX {
                break;
            }
            self.sent = SentOperations { count: self.sent.count + 1, weight };
            operation.is_sent = true;
            operation.was_sent = true;
            frames.push(encode_request(&operation.header, &operation.body));
            self.unsent.pop_front();
        }
        frames
    }

    /// Makes a request of what was forgotten since the last one: many nodes in one.
    fn add_forgotten(&mut self) {
        for node in self.cached.take_unnamed() {
            self.release_node(node);
        }
        while !self.forgotten.is_empty() && !self.has_ended() {
            // Not as large as a frame may be: a request must stay within the weight that may be under way.
            let rest = self.forgotten.split_off(self.forgotten.len().min(FORGETS_MAX));
            let nodes = std::mem::replace(&mut self.forgotten, rest);
            let body = encode_forgotten(&nodes);
            let opcode = Opcode::BatchForget.number();
            let header = RequestHeader { opcode, unique: 0, node: 0, uid: 0, gid: 0, pid: 0 };
            self.add_request(&FuseRequest::from_parts(header, &body), OperationReply::Nobody);
        }
    }

    /// A request was answered; None: it is not known (any more).
    pub fn end_request(&mut self, answered: AnsweredRequest<'_>) -> Option<EndedOperation> {
        let AnsweredRequest { number, errno, body, is_leased } = answered;
        let mut operation = self.operations.remove(&number)?;
        // An answer may come for a request of which this connection has sent nothing yet: the server had carried it out
        // over the connection before.
        if operation.is_sent {
            self.sent.count -= 1;
            self.sent.weight -= operation.weight;
        }
        if asks_for_bytes(errno) && operation.take_bytes() {
            self.enqueue_operation(operation);
            return None;
        }
        self.cached.end_change(&operation.changed);
        let mut answer = KernelAnswer { errno, body: body.to_vec() };
        if is_leased {
            let request = FuseRequest::from_parts(operation.header, &operation.body);
            self.cached.keep_answer(&request, operation.beginning, &mut answer);
        }
        if errno == 0 {
            // Before the kernel has the answer: it may forget the node at once.
            self.record_success(number, &operation, body);
        }
        Some(EndedOperation { reply: operation.reply, answer: answer.into() })
    }

    fn record_success(&mut self, number: u64, operation: &ClientOperation, body: &[u8]) {
        let header = operation.header;
        self.known.record_answer(header.opcode, body);
        // A file without a name changes no directory that could be synced, and is not marked: the next server would seem
        // to have lost the directory.
        if header.opcode != Opcode::Tmpfile.number() {
            self.unsynced.record_change(number, &operation.changed, operation.added);
        }
        if is_sync(header.opcode) {
            self.unsynced.record_sync(operation.added);
        }
        self.files.record_success(&FuseRequest::from_parts(header, &operation.body));
    }

    /// There is a connection under the session that there was before: what was not answered is sent again.
    pub fn resume(&mut self) {
        // In the order of their numbers, in which they came: a later write must not pass an earlier one.
        self.unsent = self.operations.keys().copied().collect();
        self.operations.values_mut().for_each(|operation| operation.is_sent = false);
        self.sent = SentOperations::default();
        if !self.has_ended() {
            self.link = LinkState::Connected;
        }
    }

    /// There is a connection under a new session, in which these locks could not be taken up. Gives the nodes that the server has to hold; it has let go all others.
    pub fn resume_in_new_session(&mut self, lost: &[ReclaimedLock]) -> Vec<u64> {
        // The new session has counted nothing yet, so there is nothing to count less.
        self.forgotten.clear();
        self.operations.retain(|_, operation| operation.header.opcode != Opcode::BatchForget.number());
        self.resume();
        self.files.lose_locks(lost);
        self.to_hold = self.known.count_anew();
        self.to_hold.clone()
    }

    /// The nodes that the server still has to hold, of which it holds so many.
    pub fn list_unheld(&self, held: u64) -> Vec<u64> {
        let held = usize::try_from(held).unwrap_or(usize::MAX);
        self.to_hold.get(held..).unwrap_or_default().to_vec()
    }

    /// Takes the requests that use open files whose locks were lost while they waited: they must not be carried out.
    pub fn take_unlocked(&mut self) -> Vec<EndedOperation> {
        let files = &self.files;
        let is_unlocked = |_: &u64, operation: &mut ClientOperation| {
            files.is_lost(&FuseRequest::from_parts(operation.header, &operation.body))
        };
        let unlocked: Vec<_> = self.operations.extract_if(.., is_unlocked).collect();
        unlocked.iter().for_each(|(_, operation)| self.cached.end_change(&operation.changed));
        unlocked.into_iter().map(|(_, operation)| operation.fail()).collect()
    }

    /// The connection is lost. Gives what the kernel has to drop before there is another one.
    pub fn note_lost(&mut self) -> Vec<KernelNotice> {
        if self.is_connected() {
            self.link = LinkState::LostSince(Instant::now());
        }
        // The server takes it for granted that a client which connects has kept nothing from before.
        self.cached.clear()
    }

    /// Takes the requests that have waited for a connection for longer than `wait`.
    pub fn take_expired(&mut self, wait: Duration) -> Vec<EndedOperation> {
        let LinkState::LostSince(lost) = self.link else { return Vec::new() };
        let is_expired = |_: &u64, operation: &mut ClientOperation| {
            let is_awaited = !matches!(operation.reply, OperationReply::Nobody);
            // From the loss on: a request that was sent long before and waits for a lock has not waited for a connection.
            is_awaited && operation.since.max(lost).elapsed() >= wait
        };
        let expired: Vec<_> = self.operations.extract_if(.., is_expired).collect();
        for (_, operation) in &expired {
            self.cached.end_change(&operation.changed);
            // Whatever the answer, the descriptor is closed: its locks must not be taken up again.
            self.files.record_end(&FuseRequest::from_parts(operation.header, &operation.body));
        }
        expired.into_iter().map(|(_, operation)| operation.fail()).collect()
    }

    /// The client ends: nothing is sent any more. Requests that were not answered fail when this is dropped.
    pub fn end(&mut self) {
        self.link = LinkState::Ended;
        self.operations.clear();
        self.unsent.clear();
        self.forgotten.clear();
        // The kernel has nothing to drop: its mount has ended.
        let _ = self.cached.clear();
    }
}

impl ClientOperation {
    /// Becomes the write with its bytes, if it is one of chunks that the server does not find: it has changed nothing, and what
    /// it changes is marked still. Otherwise gives false.
    fn take_bytes(&mut self) -> bool {
        if !matches!(self.reply, OperationReply::StoredWrite { .. }) {
            return false;
        }
        let reply = std::mem::replace(&mut self.reply, OperationReply::Nobody);
        let OperationReply::StoredWrite { kernel, body, .. } = reply else { return false };
        self.reply = OperationReply::Kernel(kernel);
        self.header.opcode = Opcode::Write.number();
        self.body = body;
        let request = FuseRequest::from_parts(self.header, &self.body);
        self.weight = weigh_request(&request, request.decode_operation().ok().as_ref());
        self.is_sent = false;
        self.was_sent = false;
        true
    }

    fn fail(self) -> EndedOperation {
        EndedOperation { reply: self.reply, answer: FuseAnswer::Failed(Errno::IO) }
    }
}

fn is_sync(opcode: u32) -> bool {
    [Opcode::Fsync, Opcode::Fsyncdir].map(Opcode::number).contains(&opcode)
}

/// The body of a request by which nodes are forgotten (`fuse_batch_forget_in`).
fn encode_forgotten(nodes: &[(u64, u64)]) -> Vec<u8> {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut body = count.to_le_bytes().to_vec();
    body.extend(0u32.to_le_bytes());
    for (node, times) in nodes {
        body.extend(node.to_le_bytes());
        body.extend(times.to_le_bytes());
    }
    body
}

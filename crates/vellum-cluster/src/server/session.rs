//! One client of a server.
//!
//! A client that has lost its connection comes back, and sends again what was not answered. What was carried out is then
//! answered from what is kept here, and what is still under way is answered when it is done: nothing is done twice.
//!
//! Invariant: a node that an answer has named is held until the client forgets it, or the session ends.

mod late_answers;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use vellum_fs::OperationMark;
use vellum_fuse::NodeReferences;
use vellum_fuse::transport::{AnswerSink, RequestService, answer_forwarded_request};
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest, MalformedRequest, Opcode};

use late_answers::{LockAnswer, MarkedAnswer, is_lock_request};

use super::leases::{FrameSink, LeaseTable, LeasedAnswer, RequestMoment};
use super::outbox::Outbox;
use super::recovery::{ask_service, is_marked_afterwards, is_marked_operation, rebuild_answer};
use super::workers::{SessionWorkers, is_slow_operation};
use super::{SessionServices, SessionStatus};
use crate::error::{ClusterError, Result};
use crate::protocol::frame::{ClientDescription, ClientFrame, ServerFrame, as_leased_answer, encode_answer};
use crate::protocol::lease::{AnswerKey, Lease};
use crate::protocol::reclaim::ReclaimedLock;
use crate::protocol::weight::{is_answer_kept, weigh_request};
use crate::protocol::{
    COMMAND_MAX, COMMAND_OPCODE, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX, MARKS_KEPT, MARKS_SENT_MAX,
    RESULTS_KEPT, SessionId,
};

/// By how much a client may seem to exceed what it may have under way: it has read an answer before the server has noted
/// that it was sent.
const SLACK: usize = 2;
/// Nodes that the kernel of a client may know, a count: some 200 MB here. For more, its requests fail with `ENFILE`.
const NODES_MAX: usize = 1 << 22;
/// The name that finds a node by its number.
const SELF_NAME: &[u8] = b".\0";

/// A client.
pub struct ClientSession {
    service: Arc<dyn RequestService>,
    services: Arc<dyn SessionServices>,
    workers: SessionWorkers,
    leases: Arc<LeaseTable>,
    /// The last requests that an earlier process has carried out.
    carried_out: BTreeSet<u64>,
    state: Mutex<SessionState>,
}

struct SessionState {
    id: SessionId,
    client: ClientDescription,
    address: SocketAddr,
    began: Instant,
    last_heard: Instant,
    /// The connection; None: it is lost.
    outbox: Option<Arc<Outbox>>,
    under_way: HashMap<u64, OperationUnderWay>,
    /// What those weigh.
    weight: usize,
    /// The last answers, the oldest first.
    results: VecDeque<KeptResult>,
    references: NodeReferences,
    /// Whether its client has sent anything since it was told that the session begins.
    is_heard_of: bool,
    /// How many of the nodes that its client has named since then are held, or are gone.
    held: u64,
    /// Requests that an earlier process has carried out.
    recovered: BTreeSet<u64>,
    /// Requests that were marked, the oldest first.
    marked: VecDeque<u64>,
    served: u64,
    /// Nothing is taken from its client any more.
    has_ended: bool,
    /// How often it has ended.
    endings: u64,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct OperationUnderWay {
    opcode: u32,
    came: RequestMoment,
    /// Of an answer that its client may use again.
    key: Option<AnswerKey>,
    weight: usize,
    is_kept: bool,
}

struct KeptResult {
    number: u64,
    opcode: u32,
    frame: Arc<Vec<u8>>,
}

/// How a session stands whose client has lost its connection.
pub struct SessionResumption {
    /// Whether its client knows that it began.
    pub resumed: bool,
    /// How many of the nodes that its client has named are held.
    pub held: u64,
}

/// Who a session is for.
pub struct SessionOrigin {
    /// Its name.
    pub id: SessionId,
    /// What the client says of itself.
    pub client: ClientDescription,
    /// From where it is connected.
    pub address: SocketAddr,
    /// Its requests that an earlier process has carried out.
    pub recovered: BTreeSet<u64>,
}

impl ClientSession {
    /// A new one, without connection.
    pub fn new(
        origin: SessionOrigin,
        service: Arc<dyn RequestService>,
        services: Arc<dyn SessionServices>,
        leases: Arc<LeaseTable>,
    ) -> io::Result<Self> {
        let SessionOrigin { id, client, address, recovered } = origin;
        // A client takes no longer list. The newest ones count.
        let carried_out = recovered.iter().rev().take(MARKS_SENT_MAX).copied().collect();
        let now = Instant::now();
        let state = SessionState {
            id,
            client,
            address,
            began: now,
            last_heard: now,
            outbox: None,
            under_way: HashMap::new(),
            weight: 0,
            results: VecDeque::new(),
            references: NodeReferences::default(),
            is_heard_of: false,
            held: 0,
            // They count as marks of this process, too, so that the oldest ones are removed when there are new ones.
            marked: recovered.iter().copied().collect(),
            recovered,
            served: 0,
            has_ended: false,
            endings: 0,
        };
        let workers = SessionWorkers::start()?;
        Ok(Self { service, services, workers, leases, carried_out, state: Mutex::new(state) })
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.state.lock().id
    }

    /// The last of its requests that an earlier process has carried out.
    pub fn carried_out(&self) -> &BTreeSet<u64> {
        &self.carried_out
    }

    /// Begins anew, after its end: without nodes and locks. Its other last answers are still those of its client.
    pub fn begin_again(&self, client: ClientDescription, address: SocketAddr) {
        let mut state = self.state.lock();
        state.client = client;
        state.address = address;
        state.began = Instant::now();
        state.last_heard = state.began;
        state.has_ended = false;
        state.is_heard_of = false;
        state.held = 0;
    }

    /// Its client comes back. What still arrives over its earlier connection does not count any more.
    pub fn resume(&self) -> SessionResumption {
        let mut state = self.state.lock();
        state.last_heard = Instant::now();
        // Not only when there is a new one: until then, that connection could go on with holding nodes of which the client
        // is told now that they are not held.
        if let Some(earlier) = state.outbox.take() {
            earlier.close();
            self.leases.detach_client(state.id);
        }
        // A client that has not got the welcome goes by how things stood before: nothing of that is held.
        SessionResumption { resumed: state.is_heard_of, held: state.held }
    }

    /// Its answers go to this connection from now on. An earlier connection is closed. Fails if it has ended meanwhile.
    pub fn attach_outbox(&self, outbox: &Arc<Outbox>, address: SocketAddr) -> Result<()> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Err(ClusterError::Violation("the session has ended"));
        }
        state.last_heard = Instant::now();
        state.address = address;
        // The client may have come back before the loss of its old connection was noticed here; the newest one is its own.
        if let Some(earlier) = state.outbox.replace(outbox.clone()) {
            earlier.close();
        }
        // With the session's lock, so that an answer goes with the grants of the connection over which it goes.
        self.leases.attach_client(state.id, outbox.clone());
        Ok(())
    }

    /// A connection is lost. Another one may have taken its place.
    pub fn detach_outbox(&self, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        if state.is_connected_by(outbox) {
            state.outbox = None;
            self.leases.detach_client(state.id);
        }
    }

    /// Whether nothing was heard of its client for so long. A client that is connected is heard of by its connection.
    pub fn is_silent_for(&self, term: Duration) -> bool {
        let state = self.state.lock();
        state.outbox.is_none() && state.last_heard.elapsed() >= term
    }

    /// Whether its client may use for longer what it was granted.
    pub fn may_grant(&self) -> bool {
        self.services.may_grant()
    }

    /// Notes a sign of life.
    pub fn note_heard(&self, outbox: &Arc<Outbox>) {
        let mut state = self.state.lock();
        state.last_heard = Instant::now();
        state.is_heard_of |= state.is_connected_by(outbox);
    }

    /// Its client has given back what it was granted.
    pub fn note_returned(&self, leases: &[Lease]) {
        self.leases.note_returned(self.id(), leases);
    }

    /// Its client has confirmed a recall.
    pub fn note_recalled(&self, number: u64) {
        self.leases.note_recalled(self.id(), number);
    }

    /// Its client uses nothing any more that it was granted.
    pub fn forget_leases(&self) {
        self.leases.remove_client(self.id());
    }

    /// Takes no request any more. What is under way is carried out and answered.
    pub fn stop_requests(&self) {
        self.state.lock().has_ended = true;
    }

    /// Whether nothing is under way but what waits for locks, which may take any time. Its client sends that again.
    pub fn is_idle(&self) -> bool {
        let waits = |operation: &OperationUnderWay| operation.opcode == Opcode::Setlkw.number();
        self.state.lock().under_way.values().all(waits)
    }

    /// Lets go what it holds, and closes its connection. What is under way is carried out. `is_successor` says whether its
    /// client's process serves next.
    pub fn end(&self, is_successor: bool) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.forget_lock_requests();
        let id = state.id;
        let outbox = state.outbox.take();
        // Not removed: a client that is cut off may answer from its cache until its term is over.
        self.leases.detach_client(id);
        drop(state);
        if let Some(outbox) = outbox {
            // Behind the answers that wait in it, so that the client gets those.
            outbox.close_with(&ServerFrame::Gone { is_successor });
        }
        // Without the session's lock: requests that wait for a lock fail by a callback, which takes it.
        self.services.end_session(id);
        self.forget_all_nodes();
    }

    fn forget_all_nodes(&self) {
        // Taken first: forgetting calls the service, which may answer another request of this session meanwhile.
        let references: Vec<_> = self.state.lock().references.take_all().collect();
        references.into_iter().for_each(|(node, times)| self.forget_node(node, times));
    }

    /// How it stands.
    pub fn describe(&self) -> SessionStatus {
        let state = self.state.lock();
        SessionStatus {
            id: state.id,
            client: state.client.clone(),
            address: state.address,
            is_connected: state.outbox.is_some(),
            age: state.began.elapsed(),
            silence: state.last_heard.elapsed(),
            requests: state.served,
            nodes: state.references.len(),
            leases: self.leases.count_leases(state.id),
        }
    }

    /// Holds nodes that the client's kernel knows from an earlier session. What is not there any more is left out: requests
    /// for it fail.
    pub fn hold_nodes(&self, outbox: &Arc<Outbox>, nodes: &[u64]) {
        for node in nodes {
            // Locked for each node anew: there may be millions, and answers of the session need the lock between them.
            let has_room = self.state.lock().references.len() < NODES_MAX;
            let found = has_room.then(|| ask_service(&*self.service, Opcode::Lookup, *node, SELF_NAME));
            let mut state = self.state.lock();
            // Its client has another connection, over which it names this node again.
            let is_counted = state.is_connected_by(outbox);
            if is_counted {
                state.held += 1;
            }
            if let Some(FuseAnswer::Small(entry)) = found {
                if !is_counted {
                    drop(state);
                    self.forget_node(*node, 1);
                    return;
                }
                state.references.record_answer(Opcode::Lookup.number(), entry.answer_body());
            }
        }
    }

    /// Takes up locks that its programs had when an earlier process served. Gives the places of those that are lost.
    pub fn reclaim_locks(&self, locks: &[ReclaimedLock], is_last: bool) -> Vec<u32> {
        let id = self.id();
        let is_set = |lock: &ReclaimedLock| {
            let body = lock.encode_request_body();
            // Without this look, it would be held up like a request of any other session, and not be answered here.
            self.services.may_reclaim(id)
                && matches!(ask_service(&*self.service, Opcode::Setlk, lock.node, &body), FuseAnswer::Done)
        };
        let places = locks.iter().zip(0..).filter(|(lock, _)| !is_set(lock));
        let refused = places.map(|(_, place)| place).collect();
        if is_last {
            self.services.end_reclaim(id);
        }
        refused
    }

    /// Begins a request: has it carried out, unless that has happened already. Fails if the client may not send it.
    pub fn begin_request(self: &Arc<Self>, frame: Vec<u8>, request: &FuseRequest<'_>) -> Result<()> {
        let number = request.header.unique;
        let operation = request.decode_operation();
        let key = operation.as_ref().ok().and_then(|operation| {
            AnswerKey::of_request(request.header.opcode, request.header.node, operation)
        });
        // Before the request is looked at: a change from here on keeps its answer from being granted.
        let came = self.leases.now();
        let endings = {
            let mut state = self.state.lock();
            // The client sends it again, when it has another session.
            if state.has_ended {
                return Ok(());
            }
            // It is being carried out, and its answer goes to the current connection.
            if state.under_way.contains_key(&number) {
                return Ok(());
            }
            if let Some(kept) = state.results.iter().find(|kept| kept.number == number) {
                let frame = kept.frame.clone();
                self.send_answer(&mut state, frame);
                return Ok(());
            }
            state.add_operation(request, operation.as_ref().ok(), came, key)?;
            if state.references.len() >= NODES_MAX && names_nodes(&operation) {
                // Without the lock, which is taken again to answer.
                drop(state);
                self.accept_answer(number, FuseAnswer::Failed(Errno::NFILE));
                return Ok(());
            }
            state.endings
        };
        match operation {
            // The handshake is the client's own affair, and so is the end of its mount.
            Ok(FuseOperation::Init(_) | FuseOperation::Destroy) => {
                return Err(ClusterError::Violation("a request that is not forwarded"));
            }
            Ok(FuseOperation::Forget { times }) => self.forget_counted(request.header.node, times),
            Ok(FuseOperation::BatchForget(forgotten)) => {
                forgotten.iter_nodes().for_each(|(node, times)| self.forget_counted(node, times));
            }
            Ok(_) | Err(_) => {
                let is_slow = request.header.opcode == COMMAND_OPCODE
                    || operation.is_ok_and(|operation| is_slow_operation(&*self.service, &operation));
                let session = self.clone();
                self.workers.enqueue_task(is_slow, Box::new(move || session.carry_out(&frame, endings)));
                return Ok(());
            }
        }
        self.accept_answer(number, FuseAnswer::Done);
        Ok(())
    }

    /// `endings`: how often the session had ended when the request came.
    fn carry_out(self: &Arc<Self>, frame: &[u8], endings: u64) {
        // It was decoded before it was enqueued, so this succeeds.
        if let Ok(ClientFrame::Request(request)) = ClientFrame::decode(frame) {
            if request.header.opcode == COMMAND_OPCODE {
                let answer = Some(self.services.run_command(request.body()));
                let answer = answer.filter(|answer| answer.len() <= COMMAND_MAX);
                let answer = answer.map_or(FuseAnswer::Failed(Errno::MSGSIZE), FuseAnswer::Bytes);
                return self.accept_answer(request.header.unique, answer);
            }
            if is_lock_request(request.header.opcode) {
                return self.answer_lock(&request, endings);
            }
            self.answer_marked(&request);
        }
    }

    /// Has the service set a lock, or unlock, for the session as it was when the request came.
    fn answer_lock(self: &Arc<Self>, request: &FuseRequest<'_>, endings: u64) {
        let session = self.clone();
        // It has waited for its turn until the session had ended. Its client has sent it again, or will.
        if session.state.lock().endings == endings {
            let sink: Arc<dyn AnswerSink> = Arc::new(LockAnswer { session, endings });
            answer_forwarded_request(&*self.service, request, &sink);
        }
    }

    /// Has the service answer a request. What changes the worktree is marked, so that a later process knows of it.
    fn answer_marked(self: &Arc<Self>, request: &FuseRequest<'_>) {
        let number = request.header.unique;
        let sink: Arc<dyn AnswerSink> = self.clone();
        let operation = request.decode_operation();
        if operation.as_ref().is_ok_and(is_marked_afterwards) {
            let mark = self.state.lock().new_mark(number);
            let sink: Arc<dyn AnswerSink> = Arc::new(MarkedAnswer { session: self.clone(), mark });
            return answer_forwarded_request(&*self.service, request, &sink);
        }
        if !operation.is_ok_and(|operation| is_marked_operation(&operation)) {
            return answer_forwarded_request(&*self.service, request, &sink);
        }
        let mut state = self.state.lock();
        // Only once: from here on the answer is among those that are kept.
        if state.recovered.remove(&number) {
            drop(state);
            return self.accept_answer(number, rebuild_answer(&*self.service, request));
        }
        let mark = state.new_mark(number);
        drop(state);
        let _mark = mark.enter();
        answer_forwarded_request(&*self.service, request, &sink);
    }

    fn send_answer(&self, state: &mut SessionState, frame: Arc<Vec<u8>>) {
        if self.services.is_serving() {
            // Without a connection, the client asks again when it is back.
            if let Some(outbox) = &state.outbox {
                outbox.add_answer(frame);
            }
        } else if let Some(outbox) = state.outbox.take() {
            // Another server may have changed what was found here, or this one failed because of that. The client sends the
            // request again, to whoever serves then.
            outbox.close();
        }
    }

    /// The client's kernel has forgotten a node: no more often than it was named to it.
    fn forget_counted(&self, node: u64, times: u64) {
        let times = self.state.lock().references.release(node, times);
        if times > 0 {
            self.forget_node(node, times);
        }
    }

    fn forget_node(&self, node: u64, times: u64) {
        ask_service(&*self.service, Opcode::Forget, node, &times.to_le_bytes());
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        // Those that were named by answers after its end.
        self.forget_all_nodes();
    }
}

/// Whether the answer to a request names nodes that the client's kernel then knows.
fn names_nodes(operation: &std::result::Result<FuseOperation<'_>, MalformedRequest>) -> bool {
    matches!(
        operation,
        Ok(FuseOperation::Lookup { .. }
            | FuseOperation::Readdirplus { .. }
            | FuseOperation::Mknod { .. }
            | FuseOperation::Mkdir { .. }
            | FuseOperation::Symlink { .. }
            | FuseOperation::Link { .. }
            | FuseOperation::Create { .. }
            | FuseOperation::Tmpfile { .. })
    )
}

impl SessionState {
    fn is_connected_by(&self, outbox: &Arc<Outbox>) -> bool {
        self.outbox.as_ref().is_some_and(|current| Arc::ptr_eq(current, outbox))
    }

    /// Whatever was answered, or is about to be, is no longer so: all locks of the session are freed. Its client sends again
    /// what it has no answer to, and a lock that it were said to have would be one that others can get.
    fn forget_lock_requests(&mut self) {
        self.endings += 1;
        self.results.retain(|kept| !is_lock_request(kept.opcode));
        let forgotten = self.under_way.extract_if(|_, operation| is_lock_request(operation.opcode));
        self.weight -= forgotten.map(|(_, operation)| operation.weight).sum::<usize>();
    }

    fn new_mark(&mut self, number: u64) -> OperationMark {
        // All of the last answers may still be asked for.
        let obsolete = if self.marked.len() >= MARKS_KEPT { self.marked.pop_front() } else { None };
        self.marked.push_back(number);
        OperationMark { session: self.id.mark_number(), number, obsolete: obsolete.into_iter().collect() }
    }

    fn add_operation(
        &mut self,
        request: &FuseRequest<'_>,
        decoded: Option<&FuseOperation<'_>>,
        came: RequestMoment,
        key: Option<AnswerKey>,
    ) -> Result<()> {
        let weight = weigh_request(request, decoded);
        let unsent = self.outbox.as_ref().map(|outbox| outbox.unsent_answers()).unwrap_or_default();
        if self.under_way.len() + unsent.count >= SLACK * IN_FLIGHT_MAX
            || self.weight + unsent.bytes + weight > SLACK * IN_FLIGHT_BYTES_MAX
        {
            return Err(ClusterError::Violation("too much is under way"));
        }
        self.weight += weight;
        let opcode = request.header.opcode;
        let is_kept = is_answer_kept(request);
        let operation = OperationUnderWay { opcode, came, key, weight, is_kept };
        self.under_way.insert(request.header.unique, operation);
        Ok(())
    }
}

impl AnswerSink for ClientSession {
    fn accept_answer(&self, unique: u64, answer: FuseAnswer) {
        if let Some(frame) = encode_answer(unique, &answer).map(Arc::new) {
            self.end_operation(self.state.lock(), unique, frame);
        }
    }
}

impl ClientSession {
    /// A request is answered by this frame.
    fn end_operation(&self, mut state: MutexGuard<'_, SessionState>, unique: u64, frame: Arc<Vec<u8>>) {
        let Some(done) = state.under_way.remove(&unique) else { return };
        state.weight -= done.weight;
        state.served += 1;
        let mut leases = None;
        if let Ok(ServerFrame::Answer { errno, body, .. }) = ServerFrame::decode(&frame) {
            if errno == 0 {
                state.references.record_answer(done.opcode, body);
            }
            leases = done.key.as_ref().and_then(|key| key.list_leases(errno, body));
        }
        if done.is_kept {
            if state.results.len() >= RESULTS_KEPT {
                state.results.pop_front();
            }
            state.results.push_back(KeptResult { number: unique, opcode: done.opcode, frame: frame.clone() });
        }
        match leases {
            // With the lock, so that it goes to the connection that the client has now.
            Some(leases) if state.outbox.is_some() && self.services.is_serving() => {
                let leased = Arc::new(as_leased_answer(&frame));
                let answer = LeasedAnswer { plain: frame, leased };
                self.leases.send_answer(state.id, done.came, &leases, answer);
            }
            Some(_) | None => self.send_answer(&mut state, frame),
        }
    }
}

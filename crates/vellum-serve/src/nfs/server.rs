//! Connections: from messages to what the tree answers, and back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use vellum_library::{EntryOwner, Volume};

use super::memory::{MemoryPart, MessageMemory, UNCOUNTED};
use super::mount::MountRequest;
use super::protocol::{MOUNT_PROGRAM, NFS_PROGRAM, NfsProcedure, NfsStatus, TRANSFER_MAX, VERSION};
use super::record::{MessageAnswer, ReceivedMessage, read_message, write_answer};
use super::request::NfsRequest;
use super::rpc::{CallOutcome, RpcCall, RpcFault, begin_answer, parse_call, refuse_call};
use super::sender::NfsSenders;
use super::socket_owner::find_socket_owner;
use super::tree::NfsTree;
use crate::error::{Result, ServeError};
use crate::gateway_listener::{GatewayEnding, GatewayListener, RequestPlaces};
use crate::served_tree::NamedTree;

/// Requests of one connection that are under way at once. Others wait in the kernel.
const PIPELINED: usize = 16;
/// Time in which others have to give memory back that an answer needs. Without it, a short answer will do.
const ANSWER_MEMORY_TIME: Duration = Duration::from_millis(500);

/// Where to listen, what to serve, and to whom.
pub struct NfsSettings {
    /// Where; port 0 stands for a free one.
    pub listen: SocketAddr,
    /// Whether others than this machine may connect.
    pub any_machine: bool,
    /// Whether a worktree may be written.
    pub can_write: bool,
    /// To whom new entries belong.
    pub owner: EntryOwner,
    /// Who is let in.
    pub senders: NfsSenders,
}

/// A gateway that listens.
pub struct NfsServer {
    listener: GatewayListener,
    gateway: Arc<NfsGateway>,
}

/// What all connections use.
struct NfsGateway {
    tree: NfsTree,
    senders: NfsSenders,
    any_machine: bool,
    places: RequestPlaces,
    memory: MessageMemory,
}

/// A connection.
struct Connection {
    gateway: Arc<NfsGateway>,
    peer: SocketAddr,
    /// Whether a refusal was reported: one line is enough.
    has_refused: AtomicBool,
}

/// A call after it was checked.
enum CheckedCall {
    /// There is nothing else to do. None: it has no answer.
    Answered(Option<MessageAnswer>),
    /// The program for mounting is asked.
    Mount {
        /// The call.
        xid: u32,
        /// What is asked.
        request: MountRequest,
    },
    /// The program for files is asked.
    Files(FilesCall),
}

/// A call of the program for files.
#[derive(Clone, Copy)]
struct FilesCall {
    xid: u32,
    procedure: NfsProcedure,
    /// Where its arguments begin in the message.
    start: usize,
    /// Most bytes of the content of its answer.
    answer_bytes: u32,
}

/// An answer that waits to be written, with what is free then.
struct QueuedAnswer {
    answer: MessageAnswer,
    _slot: OwnedSemaphorePermit,
    _memory: Vec<MemoryPart>,
}

impl NfsServer {
    /// Begins to listen. Fails if others than this machine could connect, unless they may.
    pub fn bind(volume: &Volume, named: &NamedTree, settings: NfsSettings) -> Result<Self> {
        if !settings.listen.ip().is_loopback() && !settings.any_machine {
            return Err(ServeError::NfsNotLoopback(settings.listen));
        }
        let can_write = settings.can_write && named.tree.worktree().is_some();
        let gateway = NfsGateway {
            tree: NfsTree::new(volume, named, can_write, settings.owner)?,
            senders: settings.senders,
            any_machine: settings.any_machine,
            places: RequestPlaces::new(),
            memory: MessageMemory::new(),
        };
        Ok(Self { listener: GatewayListener::bind(settings.listen)?, gateway: Arc::new(gateway) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Answers requests until a signal asks it to end.
    pub fn run(self) -> Result<()> {
        let gateway = self.gateway;
        self.listener.run(|stream, ending| serve_connection(gateway.clone(), stream, ending))
    }
}

impl NfsGateway {
    /// Fails with the reason if a connection may not be served. What its messages say of their user is no proof: of a connection
    /// within this machine, the kernel knows whose it is.
    async fn check_owner(&self, peer: SocketAddr, own: SocketAddr) -> std::result::Result<(), &'static str> {
        if self.any_machine {
            return Ok(());
        }
        match spawn_blocking(move || find_socket_owner(peer, own)).await {
            Ok(Some(uid)) if self.senders.allows_owner(uid) => Ok(()),
            Ok(Some(_)) => Err("its user is not allowed; --allow-uid allows others"),
            Ok(None) | Err(_) => Err("it has ended, or is not in /proc/net/tcp, which tells whose it is"),
        }
    }
}

async fn serve_connection(gateway: Arc<NfsGateway>, stream: TcpStream, mut ending: GatewayEnding) {
    // A client that is gone already has nothing to ask.
    let Ok(peer) = stream.peer_addr() else { return };
    let Ok(own) = stream.local_addr() else { return };
    if let Err(reason) = gateway.check_owner(peer, own).await {
        eprintln!("refused: {peer}: {reason}");
        return;
    }
    let connection = Arc::new(Connection { gateway, peer, has_refused: AtomicBool::new(false) });
    let (mut reader, writer) = stream.into_split();
    let (answers, queue) = mpsc::channel(PIPELINED);
    let writing = tokio::spawn(write_answers(writer, queue));
    let slots = Arc::new(Semaphore::new(PIPELINED));
    // A semaphore that nobody closes always gives a permit at last: when an answer was written, or could not be.
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let read = tokio::select! {
            read = read_message(&mut reader, &connection.gateway.memory) => read,
            // What has arrived is answered, and nothing else is read.
            _ = ending.wait_for(|ends| *ends) => break,
            () = answers.closed() => break,
        };
        // A connection that breaks, or says what nobody understands, is the client's affair.
        let Ok(Some(message)) = read else { break };
        let connection = connection.clone();
        let answers = answers.clone();
        tokio::spawn(async move {
            if let Some(answered) = connection.answer(message, slot).await {
                // Nobody is there any more.
                let _ = answers.send(answered).await;
            }
        });
    }
    drop(answers);
    // It ends with the last answer that is under way.
    let _ = writing.await;
}

async fn write_answers(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<QueuedAnswer>) {
    while let Some(queued) = queue.recv().await {
        // The client does not take it: with the queue, the connection ends.
        if write_answer(&mut writer, queued.answer).await.is_err() {
            return;
        }
    }
}

impl Connection {
    /// The answer to a message, if there is one.
    async fn answer(&self, message: ReceivedMessage, slot: OwnedSemaphorePermit) -> Option<QueuedAnswer> {
        let ReceivedMessage { bytes, memory } = message;
        let mut memory: Vec<MemoryPart> = memory.into_iter().collect();
        let answer = match self.check_call(&bytes) {
            CheckedCall::Answered(answer) => answer?,
            CheckedCall::Mount { xid, request } => self.answer_mount(xid, request).await,
            CheckedCall::Files(call) => {
                let part = self.reserve_answer(call).await;
                let max = if part.is_some() { u32::MAX } else { UNCOUNTED as u32 };
                memory.extend(part);
                self.answer_files(bytes, FilesCall { answer_bytes: call.answer_bytes.min(max), ..call }).await
            }
        };
        Some(QueuedAnswer { answer, _slot: slot, _memory: memory })
    }

    /// Checks who calls, and what; nothing of the tree is touched.
    fn check_call(&self, bytes: &[u8]) -> CheckedCall {
        let call = match parse_call(bytes) {
            Ok(call) => call,
            Err(fault) => return CheckedCall::Answered(self.refuse(fault)),
        };
        let xid = call.xid;
        let plain = |outcome| CheckedCall::Answered(Some(plain(xid, outcome)));
        match call.program {
            MOUNT_PROGRAM | NFS_PROGRAM if call.version != VERSION => {
                plain(CallOutcome::ProgramVersion(VERSION))
            }
            MOUNT_PROGRAM => match MountRequest::decode(call.procedure, call.arguments) {
                Ok(Some(request)) => CheckedCall::Mount { xid, request },
                Ok(None) => plain(CallOutcome::NoProcedure),
                Err(_) => plain(CallOutcome::BadArguments),
            },
            NFS_PROGRAM => self.check_files_call(bytes, &call),
            _ => plain(CallOutcome::NoProgram),
        }
    }

    fn check_files_call(&self, bytes: &[u8], call: &RpcCall<'_>) -> CheckedCall {
        let xid = call.xid;
        let plain = |outcome| CheckedCall::Answered(Some(plain(xid, outcome)));
        let Some(procedure) = NfsProcedure::from_number(call.procedure) else {
            return plain(CallOutcome::NoProcedure);
        };
        // Whether anybody answers may be asked by everybody, and has an answer without a status.
        if procedure == NfsProcedure::Null {
            return plain(CallOutcome::Success);
        }
        if let Err(reason) = self.gateway.senders.check_sender(call.sender) {
            return CheckedCall::Answered(self.refuse(RpcFault::Credential { xid, reason }));
        }
        match NfsRequest::decode(procedure, call.arguments) {
            Ok(mut request) => CheckedCall::Files(FilesCall {
                xid,
                procedure,
                start: bytes.len() - call.arguments.len(),
                answer_bytes: request.answer_count().map_or(0, |count| (*count).min(TRANSFER_MAX)),
            }),
            Err(_) => plain(CallOutcome::BadArguments),
        }
    }

    async fn answer_mount(&self, xid: u32, request: MountRequest) -> MessageAnswer {
        let gateway = self.gateway.clone();
        let answer = spawn_blocking(move || {
            let mut out = begin_answer(xid, CallOutcome::Success);
            request.answer(&gateway.tree, &mut out);
            MessageAnswer { head: out.into_bytes(), body: Vec::new() }
        });
        answer.await.unwrap_or_else(|_| plain(xid, CallOutcome::BadArguments))
    }

    /// Memory for the content of an answer. None: there is so little left that the answer has to be short.
    async fn reserve_answer(&self, call: FilesCall) -> Option<MemoryPart> {
        let counted = (call.answer_bytes as usize).saturating_sub(UNCOUNTED);
        self.gateway.memory.reserve(counted, ANSWER_MEMORY_TIME).await
    }

    async fn answer_files(&self, bytes: Vec<u8>, call: FilesCall) -> MessageAnswer {
        let Some(place) = self.gateway.places.acquire().await else {
            return failed(call.xid, call.procedure, NfsStatus::JukeBox);
        };
        let gateway = self.gateway.clone();
        let answer = spawn_blocking(move || {
            let answer = answer_request(&gateway.tree, &bytes, call);
            drop(place);
            answer
        });
        answer.await.unwrap_or_else(|_| failed(call.xid, call.procedure, NfsStatus::ServerFault))
    }

    /// The answer to a call that is not let in, if it can have one, and a line that says so.
    fn refuse(&self, fault: RpcFault) -> Option<MessageAnswer> {
        if !self.has_refused.swap(true, Ordering::Relaxed) {
            eprintln!("refused: {}: {fault}", self.peer);
        }
        refuse_call(fault).map(|head| MessageAnswer { head, body: Vec::new() })
    }
}

/// What a call is answered that was let in.
fn answer_request(tree: &NfsTree, bytes: &[u8], call: FilesCall) -> MessageAnswer {
    let mut out = begin_answer(call.xid, CallOutcome::Success);
    out.put_u32(0);
    // It was parsed before; as its parts are those of the message, it could not be kept.
    let request = NfsRequest::decode(call.procedure, bytes.get(call.start..).unwrap_or_default());
    let answered = request.map_err(|_| NfsStatus::ServerFault).and_then(|mut request| {
        if let Some(count) = request.answer_count() {
            *count = (*count).min(call.answer_bytes);
        }
        tree.answer(&request, &mut out)
    });
    match answered {
        Ok(body) => MessageAnswer { head: out.into_bytes(), body },
        Err(status) => failed(call.xid, call.procedure, status),
    }
}

/// An answer of a head alone.
fn plain(xid: u32, outcome: CallOutcome) -> MessageAnswer {
    MessageAnswer { head: begin_answer(xid, outcome).into_bytes(), body: Vec::new() }
}

/// The answer to a request that failed.
fn failed(xid: u32, procedure: NfsProcedure, status: NfsStatus) -> MessageAnswer {
    let mut out = begin_answer(xid, CallOutcome::Success);
    out.put_u32(status as u32);
    for _ in 0..procedure.failure_words() {
        out.put_u32(0);
    }
    MessageAnswer { head: out.into_bytes(), body: Vec::new() }
}

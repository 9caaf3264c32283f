//! The client of a shared worktree: forwards the requests of one mount to the server, and the answers to the kernel.
//!
//! - `service` takes requests from the kernel; no thread waits for an answer.
//! - `cached_answers` are those that are given again, as the server has granted.
//! - `kernel_grants` is what the kernel may have cached of those; `notices` has it drop that.
//! - `queue` holds requests until they are answered, and knows which nodes the kernel knows.
//! - `stored_writes` puts large writes into the store, and has the server told where they are.
//! - `unsynced` knows what a server that is lost may have taken along.
//! - `link` is the connection: made, used, lost, made again.
//!
//! Invariants: a request that was not answered is sent again over the next connection, under the same number; a request
//! that has waited longer than [`ClientOptions::wait`] for a connection fails with `EIO`.

mod cached_answers;
mod kernel_grants;
mod known_nodes;
mod link;
mod locked_files;
mod notices;
mod queue;
mod service;
mod stored_writes;
mod unsynced;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vellum_fuse::transport::PendingAnswer;
use vellum_fuse::wire::{FuseAnswer, FuseRequest, RequestHeader};

use crate::connection::ConnectionIdentity;
use crate::error::{ClusterError, Result};
use crate::protocol::frame::ClientDescription;
use crate::protocol::lease::Lease;
use crate::protocol::{COMMAND_MAX, COMMAND_OPCODE, SessionId};
use kernel_grants::KernelGrants;
use link::{open_link, run_links};
pub use notices::KernelCaches;
use notices::{NoticeQueue, NoticeTask, WaitingChange, run_notices};
use queue::{EndedOperation, OperationReply, RequestQueue};
pub use service::ForwardingService;
pub use stored_writes::{StoredWrites, WriteStore};
use stored_writes::{WriteUploads, run_uploads};

/// How long a request waits for a server that is away, unless another time is given: longer than a server takes to come
/// back, or another one to take its place.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(120);

/// For how long a kernel caches no names after it has dropped them, unless another time is given: so seldom that what that
/// does to other programs is not met.
pub const DEFAULT_NAMES_PAUSE: Duration = Duration::from_secs(1);

/// Finds the server of a worktree.
pub trait ServerLocator: Send + Sync + 'static {
    /// Where the server is now, as `HOST:PORT`. Called before each attempt to connect.
    fn find_server(&self) -> Result<String>;
}

/// A server that is always at the same address.
pub struct FixedServer(pub String);

impl ServerLocator for FixedServer {
    fn find_server(&self) -> Result<String> {
        Ok(self.0.clone())
    }
}

/// What `close(2)` of a file promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CloseGuarantee {
    /// The server has every change, and all clients see it.
    #[default]
    Applied,
    /// As after `fsync`: nothing of it is lost with the server's machine.
    Durable,
}

/// Whose client it is, and how patient.
pub struct ClientOptions {
    /// Where the server is.
    pub locator: Box<dyn ServerLocator>,
    /// What the server must have in common with it.
    pub identity: ConnectionIdentity,
    /// What it tells of itself.
    pub description: ClientDescription,
    /// How long a request waits for a connection.
    pub wait: Duration,
    /// What closing a file promises.
    pub close: CloseGuarantee,
    /// Called with what a user should know.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called when the server ends, and this process is to serve next.
    pub named_successor: Arc<dyn Fn() + Send + Sync>,
    /// Writes whose bytes it puts into the store by itself; None: it sends them all.
    pub stored_writes: Option<StoredWrites>,
}

/// A client that is connected, or tries to be. It ends when this is dropped.
pub struct WorktreeClient {
    shared: Arc<ClientShared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a client share.
struct ClientShared {
    options: ClientOptions,
    queue: Mutex<RequestQueue>,
    /// None: all writes are sent.
    uploads: Option<WriteUploads>,
    /// There is something to send, or the client ends.
    changed: Condvar,
    session: Mutex<SessionId>,
    notices: NoticeQueue,
    /// Requests of the kernel, a count.
    kernel_requests: AtomicU64,
}

impl ClientShared {
    /// Takes a recall, which is confirmed when the kernel has dropped what it names.
    fn take_recall(&self, number: u64, leases: &[Lease]) -> Result<()> {
        let mut queue = self.queue.lock();
        let confirmation = queue.recall(number, leases)?;
        if confirmation.notices.is_empty() && self.notices.is_idle() {
            queue.confirm_recall(&confirmation);
            drop(queue);
            self.changed.notify_one();
        } else {
            // With the lock of the queue, which takes it that the kernel has dropped this: whoever relies on that finds the
            // task.
            self.notices.enqueue_task(NoticeTask::Recall(confirmation));
        }
        Ok(())
    }

    /// The connection is lost.
    /// Whether the bytes of a write, so many, are put into the store from here.
    fn stores_write(&self, len: usize) -> bool {
        self.uploads.as_ref().is_some_and(|uploads| uploads.takes_write(len))
    }

    fn enqueue_upload(&self, request: &FuseRequest<'_>, reply: PendingAnswer) {
        if let Some(uploads) = &self.uploads {
            uploads.add_write(request, reply);
        }
    }

    /// Has a request carried out that changes something. Gives it if it must not be.
    fn forward_change(&self, request: &FuseRequest<'_>, reply: OperationReply) -> Option<EndedOperation> {
        let mut queue = self.queue.lock();
        // In one step with adding the request: a loss that is noted in between finds it among those that wait.
        let operation = request.decode_operation().ok().filter(|_| !queue.refuses(request));
        let Some(operation) = operation else { return Some(EndedOperation::failed(reply)) };
        let change = queue.begin_change(request, &operation);
        // What the kernel is about to drop, the queue takes to be dropped.
        if change.notices.is_empty() && self.notices.is_idle() {
            queue.add_change(request, Some(&operation), change, reply);
            drop(queue);
            self.changed.notify_one();
        } else {
            self.notices.enqueue_task(NoticeTask::Change(WaitingChange::new(request, change, reply)));
        }
        None
    }

    fn note_lost(&self) {
        let mut queue = self.queue.lock();
        let notices = queue.note_lost();
        if !notices.is_empty() {
            self.notices.enqueue_task(NoticeTask::Loss(notices));
        }
    }
}

impl WorktreeClient {
    /// Connects. Fails if the server cannot be reached, or does not take this client.
    pub fn connect(mut options: ClientOptions) -> Result<Self> {
        let uploads = options.stored_writes.take().map(WriteUploads::new);
        let shared = Arc::new(ClientShared {
            options,
            queue: Mutex::new(RequestQueue::new()),
            uploads,
            changed: Condvar::new(),
            session: Mutex::new(SessionId::NONE),
            notices: NoticeQueue::default(),
            kernel_requests: AtomicU64::new(0),
        });
        // In the caller's thread: a wrong key or address fails the mount at once, instead of leaving one that only waits.
        let first = open_link(&shared)?;
        let for_thread = shared.clone();
        let links = std::thread::Builder::new()
            .name("cluster-link".into())
            .spawn(move || run_links(&for_thread, first))?;
        let for_thread = shared.clone();
        // Dropped if this fails, the client would not end its thread.
        let mut client = Self { shared, threads: vec![links] };
        let notices = std::thread::Builder::new()
            .name("cluster-notices".into())
            .spawn(move || run_notices(&for_thread))?;
        client.threads.push(notices);
        if client.shared.uploads.is_some() {
            let for_thread = client.shared.clone();
            let uploads = std::thread::Builder::new().name("cluster-uploads".into()).spawn(move || {
                if let Some(uploads) = &for_thread.uploads {
                    run_uploads(&for_thread, uploads);
                }
            })?;
            client.threads.push(uploads);
        }
        Ok(client)
    }

    /// Lets the kernel of the mount cache what the server grants. Without this, it is told to cache nothing. `names_pause`:
    /// for how long it caches no names, at least, after it has dropped them.
    pub fn attach_kernel(&self, kernel: Arc<dyn KernelCaches>, names_pause: Duration) {
        let grants = KernelGrants::new(kernel.can_drop_names(), names_pause);
        // First: whatever the kernel may cache from then on, it can be told to drop.
        self.shared.notices.attach_kernel(kernel);
        self.shared.queue.lock().attach_kernel(grants);
    }

    /// What forwards the requests of a mount.
    #[must_use]
    pub fn new_service(&self) -> ForwardingService {
        ForwardingService::new(self.shared.clone())
    }

    /// What sends commands to the server.
    #[must_use]
    pub fn command_sender(&self) -> CommandSender {
        CommandSender(self.shared.clone())
    }

    /// The session under which requests are carried out.
    #[must_use]
    pub fn session(&self) -> SessionId {
        *self.shared.session.lock()
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.queue.lock().is_connected()
    }
}

/// How the connection of a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLinkStatus {
    /// Whether there is one.
    pub is_connected: bool,
    /// Requests for changes that are not answered, a count.
    pub waiting_changes: usize,
    /// Whether something was changed and not made durable by an `fsync` since.
    pub has_unsynced_changes: bool,
    /// Requests of the kernel of the mount so far, but for those that say what it has forgotten, a count.
    pub kernel_requests: u64,
}

/// Sends commands to the server of a client.
#[derive(Clone)]
pub struct CommandSender(Arc<ClientShared>);

impl CommandSender {
    /// How the client's connection stands.
    #[must_use]
    pub fn describe_link(&self) -> ClientLinkStatus {
        let kernel_requests = self.0.kernel_requests.load(Ordering::Relaxed);
        ClientLinkStatus { kernel_requests, ..self.0.queue.lock().describe_link() }
    }

    /// Has the server carry out a command, and waits for the answer. It waits for a server that is away like any request.
    pub fn send_command(&self, command: &[u8]) -> Result<Vec<u8>> {
        if command.len() > COMMAND_MAX {
            return Err(ClusterError::Violation("a command is too long"));
        }
        // Room for the one answer, so that whoever delivers it never waits for the thread here.
        let (reply, answer) = sync_channel(1);
        let header = RequestHeader { opcode: COMMAND_OPCODE, unique: 0, node: 0, uid: 0, gid: 0, pid: 0 };
        let request = FuseRequest::from_parts(header, command);
        self.0.queue.lock().add_request(&request, OperationReply::Command(reply));
        self.0.changed.notify_one();
        match answer.recv() {
            Ok(FuseAnswer::Bytes(answer)) => Ok(answer),
            Ok(FuseAnswer::Failed(errno)) => Err(ClusterError::Io(errno.into())),
            // The client has ended, and has dropped the command.
            Ok(_) | Err(_) => Err(ClusterError::Violation("the command was not answered")),
        }
    }
}

impl Drop for WorktreeClient {
    fn drop(&mut self) {
        // First: a notice may wait until the kernel has the answer to a request, which fails by this.
        self.shared.queue.lock().end();
        self.shared.notices.end();
        if let Some(uploads) = &self.shared.uploads {
            uploads.end();
        }
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

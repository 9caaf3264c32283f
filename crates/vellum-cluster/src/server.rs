//! The server of a shared worktree: carries out the requests of all clients.
//!
//! - `listener` takes connections, and has their peers prove that they have the key.
//! - `session` is one client: its requests under way, its last answers, the nodes that its kernel knows.
//! - `leases` is what clients may keep of answers, and how changes wait until they do not.
//! - `outbox` sends what a session has to say.
//! - `workers` are the threads that carry out requests.
//!
//! Invariants: of a session, at most so many requests and bytes are under way as the protocol allows; what a session
//! holds is let go when it ends, and a session ends when nothing was heard of its client for [`SESSION_TERM`].

mod leases;
mod listener;
mod outbox;
mod recovery;
mod session;
mod sessions;
mod workers;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use vellum_fs::OperationMark;
use vellum_fuse::transport::RequestService;

use crate::connection::ConnectionIdentity;
use crate::protocol::SessionId;
use crate::protocol::frame::ClientDescription;
pub use leases::{ChangeUnderWay, LeaseGate, LeaseTable};
use listener::ListenerThreads;
use sessions::SessionTable;

#[cfg(doc)]
use crate::protocol::{COMMAND_MAX, RECALL_TIME, SESSION_TERM};

/// Starts what answers the requests of a client.
pub trait SessionServices: Send + Sync + 'static {
    /// Starts the service for a client. Its session begins later, and may end and begin again.
    fn start_service(
        &self,
        session: SessionId,
        client: &ClientDescription,
    ) -> io::Result<Arc<dyn RequestService>>;

    /// A session begins: programs of its client can lock files.
    fn begin_session(&self, session: SessionId);

    /// A session has ended: what programs of its client have locked is free.
    fn end_session(&self, session: SessionId);

    /// Whether programs of a session had locks when an earlier process served, which they may take up now.
    fn may_reclaim(&self, session: SessionId) -> bool;

    /// A session has taken up its locks.
    fn end_reclaim(&self, session: SessionId);

    /// Called once when clients of an earlier process have had time to take up their locks: others may have those now.
    fn end_lock_grace(&self);

    /// The server ends: nobody gets a lock any more, and sessions that end from now on keep theirs for the next process.
    fn suspend_locks(&self);

    /// The requests of a session that an earlier process has carried out, by the marks that it has left.
    fn find_marked(&self, session: SessionId) -> io::Result<BTreeSet<u64>>;

    /// Marks a request that was carried out in several steps.
    fn put_mark(&self, mark: &OperationMark) -> io::Result<()>;

    /// Removes marks that nobody will ask for.
    fn remove_marks(&self, removed: MarkRemoval<'_>) -> io::Result<()>;

    /// Called once when clients of an earlier process have had time to come back: what only they had open can go.
    fn end_reconnect_time(&self) -> io::Result<()>;

    /// Whether no other server can have changed the worktree by now. What was done is only answered then.
    fn is_serving(&self) -> bool;

    /// Whether no other server can change the worktree within [`RECALL_TIME`]. Until then clients may use what they were
    /// granted.
    fn may_grant(&self) -> bool;

    /// Carries out a command that a client has forwarded. What has more than [`COMMAND_MAX`] bytes is not answered.
    fn run_command(&self, command: &[u8]) -> Vec<u8>;
}

/// Which marks are removed.
#[derive(Debug, Clone, Copy)]
pub enum MarkRemoval<'a> {
    /// Those of a session that has ended.
    Session(SessionId),
    /// Those of all sessions but these.
    AllBut(&'a [SessionId]),
}

/// What a server serves, and to whom.
pub struct ServerOptions {
    /// What clients must have in common with it.
    pub identity: ConnectionIdentity,
    /// What answers.
    pub services: Arc<dyn SessionServices>,
    /// Called with what an administrator should know.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
    /// What clients may keep of answers. The server's own mount changes the worktree through a [`LeaseGate`] of it.
    pub leases: Arc<LeaseTable>,
    /// After how long without a word a session ends: [`SESSION_TERM`], unless a test has no time.
    pub term: Duration,
}

/// A client as the server sees it.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// Its session.
    pub id: SessionId,
    /// What it says of itself.
    pub client: ClientDescription,
    /// From where it is connected, or was last.
    pub address: SocketAddr,
    /// Whether it is connected.
    pub is_connected: bool,
    /// How long the session has existed.
    pub age: Duration,
    /// How long nothing was heard of it.
    pub silence: Duration,
    /// Requests that were answered.
    pub requests: u64,
    /// Nodes that its kernel knows.
    pub nodes: usize,
    /// What it was granted, and may answer from its cache.
    pub leases: usize,
}

/// A server at work. It ends when this is dropped.
pub struct WorktreeServer {
    address: SocketAddr,
    sessions: Arc<SessionTable>,
    // Dropping it ends the threads.
    _threads: ListenerThreads,
}

impl WorktreeServer {
    /// Starts the threads.
    pub fn start(listener: TcpListener, options: ServerOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let sessions = Arc::new(SessionTable::new(options));
        let threads = ListenerThreads::start(listener, &sessions)?;
        Ok(Self { address, sessions, _threads: threads })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its clients, in the order in which they came.
    #[must_use]
    pub fn list_sessions(&self) -> Vec<SessionStatus> {
        self.sessions.list_sessions()
    }

    /// Says whose process is to serve next: it is told so when this server ends.
    pub fn name_successor(&self, id: SessionId) {
        self.sessions.name_successor(id);
    }

    /// Ends a session: what it holds is let go. Its client has to begin a new one. False: there is no such session.
    pub fn evict_session(&self, id: SessionId) -> bool {
        self.sessions.evict_session(id)
    }
}

//! A worktree that several machines mount at once: the server in the process that has the worktree open, and what a
//! client's process needs.
//!
//! Invariant: when [`SharingServer::stop`] returns, no client changes the worktree any more.

pub mod client;
pub mod kernel;
mod lock_holders;
pub mod standby;
pub mod term;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use vellum_cluster::client::{FixedServer, ServerLocator};
use vellum_cluster::connection::ConnectionIdentity;
use vellum_cluster::locks::{LockLimits, LockSession, LockTable};
use vellum_cluster::protocol::frame::ClientDescription;
use vellum_cluster::protocol::{RECALL_TIME, SESSION_TERM, SessionId};
use vellum_cluster::server::{
    ChangeUnderWay, LeaseGate, LeaseTable, MarkRemoval, ServerOptions, SessionServices, SessionStatus,
    WorktreeServer,
};
use vellum_cluster::{ClusterError, SessionFileLocks};
use vellum_fs::{LiveFilesystem, OperationMark};
use vellum_fuse::mount::{ForwardedMount, start_forwarded_service};
use vellum_fuse::transport::{ChangeGate, RequestService};
use vellum_fuse::{FileLocks, MountFile};
use vellum_host::error_chain::format_error_chain;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_library::live::{self, LogOwnership};
use vellum_shared_log::{ServerRecord, ServerSighting};
use vellum_volume::Volume;

use self::lock_holders::LockHolders;
use super::MountingError;
use super::control::ControlService;
use super::log::MountLog;
use crate::error::{CliError, Result};

/// What a process is for a shared worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharingRole {
    /// It serves the worktree at an address.
    Server(SocketAddr),
    /// It is a client of the process that does.
    Client {
        /// Where that is; None: it is to be found out.
        server: Option<String>,
    },
}

/// Parses `HOST:PORT`.
pub fn parse_server_address(typed: &str) -> Result<String, String> {
    let is_address = typed
        .rsplit_once(':')
        // The last colon separates the port, because addresses of IPv6 have colons of their own.
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    if is_address { Ok(typed.into()) } else { Err("write HOST:PORT, such as 10.0.0.1:7788".into()) }
}

/// Chooses how the process is found that serves a worktree: at the address that the user has named, or by the worktree's
/// shared log, which knows it also after another machine has taken the worktree over.
pub fn choose_server_locator(
    given: Option<&str>,
    volume: &Arc<Volume>,
    worktree: &str,
) -> Result<Box<dyn ServerLocator>> {
    if let Some(address) = given {
        return Ok(Box::new(FixedServer(address.into())));
    }
    let serving = "serve the worktree from this process with --listen ADDRESS:PORT";
    let head = live::find_live_worktree(volume, worktree)?;
    // Without a log nothing outside of the serving process knows where it is.
    if head.is_none_or(|head| head.log.is_none()) {
        return Err(CliError::usage_error(
            format!("the worktree '{worktree}' has no shared log that says which process serves it"),
            format!("name the process with --server HOST:PORT, or {serving}"),
        ));
    }
    match live::find_worktree_server(volume, worktree)? {
        Some(ServerSighting { server: ServerRecord { address: Some(_), .. }, .. }) => {
            Ok(Box::new(LoggedServer { volume: volume.clone(), worktree: worktree.into() }))
        }
        Some(ServerSighting { server: ServerRecord { address: None, host, .. }, .. }) => {
            Err(CliError::usage_error(
                format!("the worktree '{worktree}' is mounted on {host}, which serves no other machine"),
                format!("mount it there with --listen ADDRESS:PORT; or end that mount, and {serving}"),
            ))
        }
        None => Err(CliError::usage_error(format!("nobody serves the worktree '{worktree}'"), serving)),
    }
}

/// The server that the worktree's shared log names.
struct LoggedServer {
    volume: Arc<Volume>,
    worktree: String,
}

impl ServerLocator for LoggedServer {
    fn find_server(&self) -> vellum_cluster::Result<String> {
        // Read for each attempt to connect: while this client was cut off, another machine may have taken the worktree
        // over.
        let found = live::find_worktree_server(&self.volume, &self.worktree)
            .map_err(|error| ClusterError::NotFound { reason: format_error_chain(&error) })?;
        let serving = found.filter(|found| !found.released).and_then(|found| found.server.address);
        serving.ok_or_else(|| ClusterError::NotFound { reason: "nobody serves the worktree now".into() })
    }
}

/// Listens for clients of a volume's worktree. Fails for a volume without a key, if others than this machine can connect.
pub fn listen_for_clients(volume: &Volume, address: SocketAddr) -> Result<TcpListener> {
    // The handshake proves the volume's key. Without one it proves nothing, and only this machine's users may connect.
    if volume.keys.is_plain() && !address.ip().is_loopback() {
        return Err(CliError::usage_error(
            format!("the volume has no key, so anybody who reaches {address} could change the worktree"),
            "listen on 127.0.0.1, or make a volume with a key: 'vellum init' without --plain",
        ));
    }
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => MountingError::AddressInUse(address).into(),
        _ => CliError::io_error("listen on", address.to_string())(error),
    })
}

/// What must be equal on both sides of a connection.
pub fn connection_identity(volume: &Volume, worktree: &str) -> ConnectionIdentity {
    ConnectionIdentity { keys: volume.keys.clone(), worktree: worktree.into() }
}

/// The server in this process, while there is one.
pub struct SharingServer {
    server: Mutex<Option<WorktreeServer>>,
    locks: Arc<LockTable>,
    leases: Arc<LeaseTable>,
    /// How the worktree is handed over, if it can be.
    hand_over: Option<WorktreeHandOver>,
}

/// How a worktree is handed over to the process that serves next.
pub struct WorktreeHandOver {
    /// Tells whether this process has the worktree's log still.
    pub ownership: LogOwnership,
    /// Has the server end, for the client with this session.
    pub begin: Box<dyn Fn(SessionId) + Send + Sync>,
}

impl Default for SharingServer {
    fn default() -> Self {
        Self::new(None)
    }
}

/// The server of a worktree, as commands show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The name of its host.
    pub host: String,
    /// Where clients connect.
    pub address: String,
}

/// A client, as commands show it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its session, in hexadecimal.
    pub session: String,
    /// The name of its host.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Where the worktree is mounted there, escaped as paths are shown; empty: nowhere.
    pub mountpoint: String,
    /// Where its process would serve the worktree next; None: it never would.
    #[serde(default)]
    pub stands_by: Option<String>,
    /// From where it is connected, or was last.
    pub address: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Requests that were answered.
    pub requests: u64,
    /// Inodes that its kernel knows.
    pub inodes: u64,
    /// Inodes and directories of which it answers from its cache.
    pub cached: u64,
    /// For how long the session has existed, seconds.
    pub seconds: f64,
    /// For how long nothing was heard of it, seconds.
    pub silent_seconds: f64,
}

impl SharingServer {
    /// One that serves nobody yet.
    pub fn new(hand_over: Option<WorktreeHandOver>) -> Self {
        let locks = Arc::new(LockTable::new(LockLimits::default()));
        Self { server: Mutex::default(), locks, leases: Arc::default(), hand_over }
    }

    /// The locks of programs that use this process's own mount.
    pub fn new_local_locks(&self) -> Arc<dyn FileLocks> {
        // A session like those of clients, in the same table: locks of programs here and on other machines exclude each
        // other.
        let session = LockSession(SessionId::generate().0);
        self.locks.open_session(session);
        Arc::new(SessionFileLocks::new(self.locks.clone(), session))
    }

    /// Where the changes of this process's own mount wait for what clients have cached.
    pub fn new_gate(&self) -> Arc<dyn ChangeGate> {
        Arc::new(LeaseGate { table: self.leases.clone(), session: None })
    }

    /// Begins what may change anything, after all clients have forgotten what they have cached. They cache nothing until
    /// what this gives is dropped.
    pub fn begin_change_of_all(&self) -> ChangeUnderWay {
        self.leases.begin_change_of_all()
    }

    /// Begins to serve.
    pub fn start(&self, listener: TcpListener, service: &Arc<ControlService>) -> Result<SocketAddr> {
        let log = service.log.clone();
        let holders = LockHolders::open(service.fs.clone(), self.locks.clone(), log.clone());
        let unread = CliError::io_error("read", "which sessions have locks");
        let holders = holders.map_err(|error| unread(io::Error::other(error)))?;
        let identity = connection_identity(service.fs.volume(), service.claim.worktree_name());
        let options = ServerOptions {
            identity,
            services: Arc::new(LiveSessions {
                service: service.clone(),
                locks: self.locks.clone(),
                holders: Arc::new(holders),
                ownership: self.hand_over.as_ref().map(|hand_over| hand_over.ownership.clone()),
            }),
            report: Arc::new(move |text: &str| log.write_line(text)),
            // The locks and leases outlive a server of this process: its own mount uses them, with clients or without.
            leases: self.leases.clone(),
            term: SESSION_TERM,
        };
        let failed = CliError::io_error("start", "the server");
        let server = WorktreeServer::start(listener, options).map_err(failed)?;
        let address = server.address();
        *self.server.lock() = Some(server);
        Ok(address)
    }

    /// Answers what is under way, and ends.
    pub fn stop(&self) {
        // Dropped without the lock: its end waits for requests, of which one may ask for the list of clients.
        let server = self.server.lock().take();
        drop(server);
    }

    /// The clients; None: nothing is served.
    pub fn list_clients(&self) -> Option<Vec<ClientStatus>> {
        self.server
            .lock()
            .as_ref()
            .map(|server| server.list_sessions().into_iter().map(describe_client).collect())
    }

    /// What serves them; None: nothing does.
    pub fn describe_server(&self) -> Option<ServerStatus> {
        let address = self.server.lock().as_ref()?.address();
        Some(ServerStatus { host: host_name(), address: live::advertise_address(address) })
    }

    /// The session of a client whose process could serve next.
    pub fn find_standby(&self) -> Option<SessionId> {
        let server = self.server.lock();
        let server = server.as_ref()?;
        let own = live::advertise_address(server.address());
        let mut sessions = server.list_sessions().into_iter();
        sessions.find(|session| is_standby(session, &own)).map(|session| session.id)
    }

    /// Hands the worktree over to the process of a client. False: that one does not stand by, or this worktree has no log.
    pub fn hand_over_to(&self, session: &str) -> bool {
        let Some(hand_over) = &self.hand_over else { return false };
        // A block of its own, so that the lock is released before `begin` is called.
        let stands_by = {
            let server = self.server.lock();
            let sessions = server.as_ref().map(WorktreeServer::list_sessions).unwrap_or_default();
            let own = server.as_ref().map(|server| live::advertise_address(server.address()));
            let own = own.unwrap_or_default();
            let mut sessions = sessions.into_iter().filter(|status| is_standby(status, &own));
            sessions.find(|status| status.id.to_string() == session).map(|status| status.id)
        };
        // Only begun: the end of the server waits for requests that are under way, of which this is one if a client
        // forwarded it.
        stands_by.inspect(|id| (hand_over.begin)(*id)).is_some()
    }

    /// Says whose process serves next, once this one has ended.
    pub fn name_successor(&self, session: SessionId) {
        if let Some(server) = &*self.server.lock() {
            server.name_successor(session);
        }
    }

    /// Ends the session of a client. False: there is none of this name.
    pub fn evict_client(&self, session: SessionId) -> bool {
        self.server.lock().as_ref().is_some_and(|server| server.evict_session(session))
    }
}

/// Whether the process of a client could serve in place of the one at the address `own`.
fn is_standby(status: &SessionStatus, own: &str) -> bool {
    // The process that serves is a client of itself, and announces the same address: it cannot take over from itself.
    let place = &status.client.stands_by;
    status.is_connected && !place.is_empty() && place != own
}

fn describe_client(status: SessionStatus) -> ClientStatus {
    let SessionStatus { id, client, address, is_connected, age, silence, requests, nodes, leases } = status;
    let mountpoint = client.mountpoint;
    // Of none, it would show a directory.
    let mountpoint = if mountpoint.is_empty() { String::new() } else { format_path(&mountpoint) };
    ClientStatus {
        session: id.to_string(),
        host: client.host,
        pid: client.pid,
        mountpoint,
        stands_by: Some(client.stands_by).filter(|place| !place.is_empty()),
        address: address.to_string(),
        connected: is_connected,
        requests,
        inodes: nodes as u64,
        cached: leases as u64,
        seconds: age.as_secs_f64(),
        silent_seconds: silence.as_secs_f64(),
    }
}

/// Answers clients from the worktree that this process has open.
struct LiveSessions {
    service: Arc<ControlService>,
    locks: Arc<LockTable>,
    holders: Arc<LockHolders>,
    /// None: the worktree has no log, and nobody else can serve it.
    ownership: Option<LogOwnership>,
}

impl LiveSessions {
    fn fs(&self) -> &Arc<LiveFilesystem> {
        &self.service.fs
    }

    fn report_for(&self, client: &ClientDescription) -> Arc<dyn Fn(&str) + Send + Sync> {
        let log: Arc<MountLog> = self.service.log.clone();
        // The name comes from another machine: control characters in it must not reach the log.
        let host = client.host.escape_debug().to_string();
        Arc::new(move |text: &str| log.write_warning(&format!("{host}: {text}")))
    }
}

impl SessionServices for LiveSessions {
    fn start_service(
        &self,
        session: SessionId,
        client: &ClientDescription,
    ) -> io::Result<Arc<dyn RequestService>> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let file = MountFile {
            pid: client.pid,
            worktree: Some(self.service.claim.worktree_name().into()),
            snapshot: None,
            state: text(&client.state),
            // The file describes the client's mount, so that commands on that machine find the socket there, and not one
            // of this machine.
            control: (!client.control.is_empty()).then(|| text(&client.control)),
            store: client.store.clone(),
        };
        // Nothing is written there: a client keeps no access log.
        let access_log = PathBuf::from(std::ffi::OsString::from_vec(client.state.clone())).join("accesslog");
        let report = self.report_for(client);
        let locks = SessionFileLocks::new(self.locks.clone(), LockSession(session.0));
        let locks = Arc::new(locks.with_recorder(self.holders.new_recorder(session)));
        let mount = ForwardedMount { fs: self.fs().clone(), file, access_log, report, locks };
        Ok(Arc::new(start_forwarded_service(mount)?))
    }

    fn begin_session(&self, session: SessionId) {
        self.locks.open_session(LockSession(session.0));
    }

    fn end_session(&self, session: SessionId) {
        self.holders.remove(session);
        self.locks.end_session(LockSession(session.0));
    }

    fn may_reclaim(&self, session: SessionId) -> bool {
        self.locks.may_reclaim(LockSession(session.0))
    }

    fn end_reclaim(&self, session: SessionId) {
        self.locks.end_reclaim(LockSession(session.0));
    }

    fn end_lock_grace(&self) {
        self.holders.end_grace();
    }

    fn suspend_locks(&self) {
        self.holders.suspend();
    }

    fn find_marked(&self, session: SessionId) -> io::Result<BTreeSet<u64>> {
        self.fs().marked_operations(session.mark_number()).map_err(io::Error::other)
    }

    fn put_mark(&self, mark: &OperationMark) -> io::Result<()> {
        self.fs().put_operation_mark(mark).map_err(io::Error::other)
    }

    fn remove_marks(&self, removed: MarkRemoval<'_>) -> io::Result<()> {
        let fs = self.fs();
        let remove = || match removed {
            MarkRemoval::Session(session) => fs.remove_operation_marks(session.mark_number()),
            // The worktree knows sessions only by the number in their marks, so what is left is found from there.
            MarkRemoval::AllBut(known) => {
                let known: BTreeSet<_> = known.iter().map(|session| session.mark_number()).collect();
                let left = fs.marked_sessions()?;
                left.difference(&known).try_for_each(|session| fs.remove_operation_marks(*session))
            }
        };
        remove().map_err(io::Error::other)
    }

    fn end_reconnect_time(&self) -> io::Result<()> {
        self.fs().remove_unheld_orphans().map_err(io::Error::other)
    }

    fn is_serving(&self) -> bool {
        // Without a log nobody else can serve the worktree, so there is nothing to be unsure of.
        self.ownership.as_ref().is_none_or(LogOwnership::is_sure)
    }

    fn may_grant(&self) -> bool {
        // What is granted now may have to be recalled, for which the claim must last.
        self.ownership.as_ref().is_none_or(|ownership| ownership.has_claim_for(RECALL_TIME))
    }

    fn run_command(&self, command: &[u8]) -> Vec<u8> {
        self.service.answer_forwarded(command)
    }
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        MountingError::from(error).into()
    }
}

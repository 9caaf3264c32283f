//! A server of directories that only count, and clients of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use vellum_cluster::client::{ClientOptions, CloseGuarantee, FixedServer, KernelCaches, WorktreeClient};
use vellum_cluster::connection::ConnectionIdentity;
use vellum_cluster::protocol::frame::ClientDescription;
use vellum_cluster::protocol::{SESSION_TERM, SessionId};
use vellum_cluster::server::{LeaseTable, MarkRemoval, ServerOptions, SessionServices, WorktreeServer};
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_fs::OperationMark;
use vellum_fuse::transport::{AnswerSink, DeferredReply, RequestService, answer_forwarded_request};
use vellum_fuse::wire::{
    EntryAnswer, FuseAnswer, FuseOperation, FuseRequest, NodeAttributes, RequestHeader, SmallAnswer,
};
use vellum_types::{UnixTime, VolumeId};

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RENAME: u32 = 12;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const SETLKW: u32 = 33;

/// A node whose chunks the server does not find.
pub const UNKNOWN_CHUNKS: u64 = 77;

/// The longest time that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What all clients see.
#[derive(Default)]
pub struct Shared {
    state: Mutex<SharedState>,
    changed: Condvar,
}

#[derive(Default)]
struct SharedState {
    /// Names in the order in which they were made and removed.
    done: Vec<String>,
    held: BTreeMap<u64, u64>,
    /// Operations that are marked, by session.
    marks: BTreeSet<(SessionId, u64)>,
    /// Whether directories are made only when the test says so.
    is_closed: bool,
    /// Whether another server may have the worktree.
    is_fenced: bool,
    waiting: usize,
    /// Sessions that have begun, a count.
    begun: usize,
}

impl Shared {
    pub fn done(&self) -> Vec<String> {
        self.state.lock().done.clone()
    }

    pub fn held(&self) -> Vec<(u64, u64)> {
        self.state.lock().held.iter().map(|(node, count)| (*node, *count)).collect()
    }

    pub fn begun(&self) -> usize {
        self.state.lock().begun
    }

    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    pub fn open(&self) {
        self.state.lock().is_closed = false;
        self.changed.notify_all();
    }

    /// Notes that an earlier process has carried out an operation.
    pub fn mark(&self, session: SessionId, number: u64) {
        self.state.lock().marks.insert((session, number));
    }

    /// Another server may have the worktree from now on.
    pub fn fence(&self) {
        self.state.lock().is_fenced = true;
    }

    pub fn wait_until_waiting(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "nothing waits");
        }
    }

    fn change(&self, name: &str) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_closed {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "nobody opens");
        }
        state.waiting -= 1;
        state.done.push(name.into());
    }
}

/// A name that is not there, whoever has made it.
pub const GONE: &str = "gone";

/// The service of one client.
struct CountingService(Arc<Shared>);

/// The node of a name: its first byte, or the number behind a `#`.
fn node_of(name: &[u8]) -> u64 {
    let number = name.strip_prefix(b"#").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    if let Some(number) = number {
        return number;
    }
    u64::from(name.first().copied().unwrap_or(1))
}

fn entry(node: u64) -> SmallAnswer {
    SmallAnswer::for_entry(&directory(node))
}

fn directory(node: u64) -> EntryAnswer {
    let time = UnixTime { secs: 1, nanos: 0 };
    let attr = NodeAttributes {
        ino: node,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        mode: 0o040_755,
        nlink: 1,
        uid: 0,
        gid: 0,
        device: (0, 0),
        block_size: 4096,
    };
    EntryAnswer { attr, generation: 0, timeout: Duration::ZERO }
}

impl RequestService for CountingService {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        _later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let hold = |node| *self.0.state.lock().held.entry(node).or_default() += 1;
        match operation {
            FuseOperation::Lookup { name } if name == GONE.as_bytes() => FuseAnswer::Failed(Errno::NOENT),
            FuseOperation::Lookup { name } => {
                let node = if name == b"." { request.header.node } else { node_of(name) };
                hold(node);
                FuseAnswer::Small(entry(node))
            }
            FuseOperation::Forget { times } => {
                let mut state = self.0.state.lock();
                let count = state.held.get_mut(&request.header.node).unwrap();
                *count = count.checked_sub(times).expect("more is forgotten than was held");
                if *count == 0 {
                    state.held.remove(&request.header.node);
                }
                FuseAnswer::None
            }
            FuseOperation::Getattr => {
                FuseAnswer::Small(SmallAnswer::for_attributes(&directory(request.header.node)))
            }
            FuseOperation::Mkdir { name, .. } => {
                self.0.change(&format!("+{}", String::from_utf8_lossy(name)));
                hold(node_of(name));
                FuseAnswer::Small(entry(node_of(name)))
            }
            FuseOperation::Unlink { name } => {
                self.0.change(&format!("-{}", String::from_utf8_lossy(name)));
                FuseAnswer::Done
            }
            FuseOperation::Write { data, offset, .. } => {
                self.0.change(&format!("{}+{} as bytes", offset, data.len()));
                FuseAnswer::Small(SmallAnswer::for_byte_count(data.len() as u32))
            }
            FuseOperation::WriteStored { .. } if request.header.node == UNKNOWN_CHUNKS => {
                FuseAnswer::Failed(Errno::NODATA)
            }
            FuseOperation::WriteStored { offset, chunks, .. } => {
                let count = chunks.iter_chunks().count();
                self.0.change(&format!("{offset}+{} in {count} chunks", chunks.count_bytes()));
                FuseAnswer::Small(SmallAnswer::for_byte_count(chunks.count_bytes() as u32))
            }
            FuseOperation::Setlk { .. } => {
                self.0.change("locked");
                FuseAnswer::Done
            }
            FuseOperation::Read { len, .. } => FuseAnswer::Bytes(vec![7; (len as usize).min(1 << 20)]),
            _ => FuseAnswer::Failed(Errno::NOSYS),
        }
    }
}

struct CountingServices(Arc<Shared>);

impl SessionServices for CountingServices {
    fn start_service(
        &self,
        _session: SessionId,
        _client: &ClientDescription,
    ) -> io::Result<Arc<dyn RequestService>> {
        Ok(Arc::new(CountingService(self.0.clone())))
    }

    fn begin_session(&self, _session: SessionId) {
        self.0.state.lock().begun += 1;
    }

    fn end_session(&self, _session: SessionId) {}

    fn may_reclaim(&self, _session: SessionId) -> bool {
        false
    }

    fn end_reclaim(&self, _session: SessionId) {}

    fn end_lock_grace(&self) {}

    fn suspend_locks(&self) {}

    fn find_marked(&self, session: SessionId) -> io::Result<BTreeSet<u64>> {
        let state = self.0.state.lock();
        Ok(state.marks.iter().filter(|(of, _)| *of == session).map(|(_, number)| *number).collect())
    }

    fn put_mark(&self, _mark: &OperationMark) -> io::Result<()> {
        Ok(())
    }

    fn remove_marks(&self, _removed: MarkRemoval<'_>) -> io::Result<()> {
        Ok(())
    }

    fn end_reconnect_time(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_serving(&self) -> bool {
        !self.0.state.lock().is_fenced
    }

    fn may_grant(&self) -> bool {
        self.is_serving()
    }

    fn run_command(&self, command: &[u8]) -> Vec<u8> {
        [b"did ", command].concat()
    }
}

pub fn identity(key: u8, worktree: &str) -> ConnectionIdentity {
    let keys = VolumeKeys::for_encrypted(&MasterKey::from_bytes([key; 32]), VolumeId([1; VolumeId::LEN]));
    ConnectionIdentity { keys: Arc::new(keys), worktree: worktree.into() }
}

/// Starts a server.
pub fn serve(shared: &Arc<Shared>) -> WorktreeServer {
    serve_for(shared, SESSION_TERM)
}

pub fn serve_for(shared: &Arc<Shared>, term: Duration) -> WorktreeServer {
    serve_with(shared, term, Arc::default())
}

pub fn serve_with(shared: &Arc<Shared>, term: Duration, leases: Arc<LeaseTable>) -> WorktreeServer {
    let options = ServerOptions {
        identity: identity(1, "w"),
        services: Arc::new(CountingServices(shared.clone())),
        report: Arc::new(|_| {}),
        leases,
        term,
    };
    WorktreeServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), options).unwrap()
}

pub fn client_options(server: SocketAddr) -> ClientOptions {
    ClientOptions {
        locator: Box::new(FixedServer(server.to_string())),
        identity: identity(1, "w"),
        description: ClientDescription { host: "h1".into(), ..ClientDescription::default() },
        wait: PATIENCE,
        close: CloseGuarantee::Applied,
        report: Arc::new(|_| {}),
        named_successor: Arc::new(|| {}),
        stored_writes: None,
    }
}

/// A client, and what stands for its kernel.
pub struct Kernel {
    pub client: WorktreeClient,
    service: Arc<dyn RequestService>,
}

/// What a kernel was told to drop.
#[derive(Default)]
pub struct ToldKernel {
    told: Mutex<Vec<Option<u64>>>,
    is_held: Mutex<bool>,
    changed: Condvar,
    holds_mounts: Mutex<bool>,
}

impl ToldKernel {
    /// From now on, something is mounted in its mount.
    pub fn add_mount(&self) {
        *self.holds_mounts.lock() = true;
    }

    /// Takes what it was told: a node, or none for all names.
    pub fn take_told(&self) -> Vec<Option<u64>> {
        std::mem::take(&mut self.told.lock())
    }

    /// Holds up whoever tells it something.
    pub fn hold(&self) {
        *self.is_held.lock() = true;
    }

    pub fn let_go(&self) {
        *self.is_held.lock() = false;
        self.changed.notify_all();
    }

    fn tell(&self, what: Option<u64>) {
        let mut is_held = self.is_held.lock();
        while *is_held {
            assert!(!self.changed.wait_for(&mut is_held, PATIENCE).timed_out(), "nobody lets it go");
        }
        self.told.lock().push(what);
    }
}

impl KernelCaches for ToldKernel {
    fn can_drop_names(&self) -> bool {
        true
    }

    fn holds_mounts(&self) -> bool {
        *self.holds_mounts.lock()
    }

    fn note_names_end(&self) {}

    fn drop_names(&self) {
        self.tell(None);
    }

    fn drop_attributes(&self, node: u64) {
        self.tell(Some(node));
    }
}

/// The answer to come.
pub struct Pending(Receiver<FuseAnswer>);

struct Answers(Mutex<Sender<FuseAnswer>>);

impl AnswerSink for Answers {
    fn accept_answer(&self, _unique: u64, answer: FuseAnswer) {
        let _ = self.0.lock().send(answer);
    }
}

impl Kernel {
    pub fn connect(options: ClientOptions) -> Self {
        let client = WorktreeClient::connect(options).unwrap();
        let service = Arc::new(client.new_service());
        Self { client, service }
    }

    /// The same, with a kernel that caches something.
    pub fn connect_caching(options: ClientOptions) -> (Self, Arc<ToldKernel>) {
        let kernel = Self::connect(options);
        let told = Arc::new(ToldKernel::default());
        kernel.client.attach_kernel(told.clone(), Duration::ZERO);
        (kernel, told)
    }

    pub fn send(&self, opcode: u32, node: u64, body: &[u8]) -> Pending {
        let header = RequestHeader { opcode, unique: 99, node, uid: 0, gid: 0, pid: 1 };
        let (sender, receiver) = channel();
        let sink: Arc<dyn AnswerSink> = Arc::new(Answers(Mutex::new(sender)));
        answer_forwarded_request(&*self.service, &FuseRequest::from_parts(header, body), &sink);
        Pending(receiver)
    }

    pub fn lookup(&self, name: &str) -> Pending {
        self.send(LOOKUP, 1, format!("{name}\0").as_bytes())
    }

    pub fn mkdir(&self, name: &str) -> Pending {
        self.send(MKDIR, 1, &[&[0; 8][..], name.as_bytes(), b"\0"].concat())
    }

    /// Moves a name from the root to another directory.
    pub fn rename_away(&self, name: &str, to: u64) -> Pending {
        self.send(
            RENAME,
            1,
            &[&to.to_le_bytes()[..], name.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat(),
        )
    }

    pub fn attributes(&self, node: u64) -> Pending {
        self.send(GETATTR, node, &[0; 16])
    }

    pub fn unlink(&self, name: &str) -> Pending {
        self.send(UNLINK, 1, format!("{name}\0").as_bytes())
    }

    pub fn forget(&self, node: u64, times: u64) {
        assert!(matches!(self.send(FORGET, node, &times.to_le_bytes()).wait(), FuseAnswer::None));
    }

    pub fn write(&self, node: u64, offset: u64, data: &[u8]) -> Pending {
        let mut body = [0; 40];
        body[8..16].copy_from_slice(&offset.to_le_bytes());
        body[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
        self.send(WRITE, node, &[&body[..], data].concat())
    }

    /// Waits for an exclusive lock on all of a file.
    pub fn lock(&self, node: u64) -> Pending {
        let mut body = [0; 48];
        body[24..32].copy_from_slice(&i64::MAX.to_le_bytes());
        body[32..36].copy_from_slice(&1_u32.to_le_bytes());
        self.send(SETLKW, node, &body)
    }

    pub fn read(&self, len: u32) -> Pending {
        let mut body = [0; 40];
        body[16..20].copy_from_slice(&len.to_le_bytes());
        self.send(READ, 1, &body)
    }
}

impl Pending {
    pub fn wait(self) -> FuseAnswer {
        self.0.recv_timeout(PATIENCE).expect("an answer")
    }

    /// For how many seconds the kernel may cache the name that was looked up; None: no entry.
    pub fn entry_seconds(self) -> Option<u64> {
        self.number_at(16)
    }

    /// The same of attributes.
    pub fn attribute_seconds(self) -> Option<u64> {
        self.number_at(0)
    }

    fn number_at(self, place: usize) -> Option<u64> {
        let FuseAnswer::Bytes(bytes) = self.wait() else { return None };
        Some(u64::from_le_bytes(bytes.get(place..place + 8)?.try_into().unwrap()))
    }

    /// How many bytes were written; None: it has failed.
    pub fn written(self) -> Option<u32> {
        let FuseAnswer::Bytes(bytes) = self.wait() else { return None };
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    }

    pub fn gives_entry(self) -> bool {
        matches!(self.wait(), FuseAnswer::Bytes(bytes) if bytes.len() == 128)
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

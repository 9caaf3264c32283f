//! A relay in front of a service, which makes the way to it as long as that to another site, or answers in its place that it
//! is too busy, or loses answers.
//!
//! Invariant: no byte is changed or lost unless answers are to be, those of one connection arrive in their order; the delay
//! does not limit how much is under way.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::host::ClusterHost;

/// Most bytes that are passed on at once.
const PIECE: usize = 64 << 10;
/// Most pieces under way in one direction of a connection: with small pieces a window as large as TCP's.
const PIECES: usize = 1024;

/// One in so many pieces of answers is lost, with its connection.
const LOSSES: u64 = 5;
/// What is answered in the place of a service of objects that is too busy.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 60\r\nConnection: close\r\n\r\n\
    <Error><Code>SlowDown</Code><Message>Busy</Message></Error>\n";
/// How long a client may take for a request that is refused.
const REFUSED_MAX: Duration = Duration::from_millis(300);

/// What a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayMode {
    /// It passes everything on.
    Pass,
    /// It answers each request with 503, and passes nothing on.
    Refuse,
    /// It passes requests on; some connections break before their answer comes: nobody knows whether it was carried out.
    LoseAnswers,
}

/// The relay. It ends when it is dropped; connections through it end with their own ends.
pub struct DelayingRelay {
    address: SocketAddr,
    shared: Arc<DelayShared>,
}

struct DelayShared {
    target: SocketAddr,
    /// One way, nanoseconds.
    delay: AtomicU64,
    mode: AtomicU8,
    /// Pieces of answers so far.
    answers: AtomicU64,
    /// Connections that were refused or broken so far.
    faults: AtomicU64,
    is_over: AtomicBool,
}

/// A piece, and when it is to arrive.
struct DelayedPiece {
    due: Instant,
    bytes: Vec<u8>,
}

impl DelayingRelay {
    /// Starts a relay on a port of a host (0: any), to a server that is reached from there. `delay` is that of one way.
    ///
    /// # Panics
    /// Panics if the port is taken.
    #[must_use]
    pub fn start(host: &ClusterHost, port: u16, target: SocketAddr, delay: Duration) -> Self {
        // All of its threads descend from one that entered the network of the host.
        let relay = host.run_in_network(|| Self::listen((host.address(), port).into(), target));
        relay.set_delay(delay);
        relay
    }

    /// Starts a relay without a delay on the loopback address of this machine, to a server of this machine.
    ///
    /// # Panics
    /// Panics if there is no free port.
    #[must_use]
    pub fn start_local(target: SocketAddr) -> Self {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), target)
    }

    fn listen(at: SocketAddr, target: SocketAddr) -> Self {
        let shared = Arc::new(DelayShared {
            target,
            delay: AtomicU64::default(),
            mode: AtomicU8::default(),
            answers: AtomicU64::default(),
            faults: AtomicU64::default(),
            is_over: AtomicBool::default(),
        });
        let accepting = Arc::clone(&shared);
        let listener = TcpListener::bind(at).expect("a free port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// How many connections were refused so far, or broken in place of an answer.
    #[must_use]
    pub fn count_faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on each way takes this long.
    pub fn set_delay(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).expect("less than a century");
        self.shared.delay.store(nanos, Ordering::Relaxed);
    }

    /// From now on it does this, also with connections that are there.
    pub fn set_mode(&self, mode: RelayMode) {
        self.shared.mode.store(mode as u8, Ordering::Relaxed);
    }
}

impl Drop for DelayingRelay {
    fn drop(&mut self) {
        // The thread that accepts looks at it after the next connection.
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl DelayShared {
    fn is_in(&self, mode: RelayMode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }

    /// Whether this piece of an answer is to be lost.
    fn loses_answer(&self) -> bool {
        self.is_in(RelayMode::LoseAnswers)
            && self.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOSSES)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let shared = Arc::clone(self);
            // A server that cannot be reached: the client sees that its connection is closed.
            std::thread::spawn(move || shared.relay_connection(client));
        }
    }

    fn relay_connection(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        if self.is_in(RelayMode::Refuse) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            return refuse_request(client);
        }
        let server = TcpStream::connect(self.target)?;
        let ends = [(client.try_clone()?, server.try_clone()?, false), (server, client, true)];
        for (from, to, is_answer) in ends {
            // Otherwise small pieces would wait for acknowledgements, which takes longer than the delay that
            // is asked for.
            to.set_nodelay(true)?;
            let shared = Arc::clone(self);
            let (send, receive) = sync_channel(PIECES);
            std::thread::spawn(move || shared.read_pieces(from, &send, is_answer));
            std::thread::spawn(move || write_pieces(to, &receive));
        }
        Ok(())
    }

    fn read_pieces(
        &self,
        mut from: TcpStream,
        send: &SyncSender<DelayedPiece>,
        is_answer: bool,
    ) -> io::Result<()> {
        loop {
            let mut bytes = vec![0; PIECE];
            let len = from.read(&mut bytes)?;
            bytes.truncate(len);
            // A request that comes on a connection from before is not carried out; the client tries again with a new one.
            let is_refused = !is_answer && self.is_in(RelayMode::Refuse);
            if len > 0 && (is_refused || is_answer && self.loses_answer()) {
                self.faults.fetch_add(1, Ordering::Relaxed);
                // Both of its ends see that the connection is over.
                return from.shutdown(Shutdown::Both);
            }
            let delay = Duration::from_nanos(self.delay.load(Ordering::Relaxed));
            // Counted from when it came and not from when the one before it left: pieces that are under way
            // together are delayed only once.
            let piece = DelayedPiece { due: Instant::now() + delay, bytes };
            // The other end is gone: so is what it would have been sent.
            if send.send(piece).is_err() || len == 0 {
                return Ok(());
            }
        }
    }
}

/// Answers that the service is too busy, once the client has sent its request, or as much as it sends without an answer.
fn refuse_request(mut client: TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(REFUSED_MAX))?;
    let mut bytes = vec![0; PIECE];
    // A client that is answered while it sends would see a broken connection instead of the answer.
    while client.read(&mut bytes).is_ok_and(|len| len > 0) {}
    client.write_all(REFUSAL)?;
    client.shutdown(Shutdown::Both)
}

fn write_pieces(mut to: TcpStream, receive: &Receiver<DelayedPiece>) -> io::Result<()> {
    for DelayedPiece { due, bytes } in receive {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // An empty piece stands for the end, which arrives as late as everything else.
        if bytes.is_empty() {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&bytes)?;
    }
    // What is read from failed: the connection does not end as if all had arrived.
    to.shutdown(Shutdown::Both)
}

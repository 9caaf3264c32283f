//! Connections to a server, from the first byte to their end.
//!
//! Invariant: a peer that has not proved that it has the key takes a thread for [`HANDSHAKE_TIME`] at most, and no more
//! memory than its connection; a peer that breaks the protocol loses its connection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::leases::FrameSink;
use super::outbox::Outbox;
use super::sessions::{FoundSession, SessionTable};
use crate::connection::{Connection, FrameReader, accept_stream};
use crate::error::{ClusterError, Result};
use crate::protocol::SESSION_TERM;
use crate::protocol::frame::{ClientFrame, ServerFrame};

#[cfg(doc)]
use crate::protocol::HANDSHAKE_TIME;

/// Handshakes at once, a count: those of all clients that a server takes, which come back together after it was away.
const HANDSHAKES_MAX: usize = 128;
/// How often it is looked for sessions that have ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause after a connection that could not be accepted: descriptors may be scarce.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The threads of a server. They end when this is dropped.
pub struct ListenerThreads {
    is_over: Arc<AtomicBool>,
    address: SocketAddr,
    sessions: Arc<SessionTable>,
    threads: Vec<JoinHandle<()>>,
}

impl ListenerThreads {
    /// Starts the threads.
    pub fn start(listener: TcpListener, sessions: &Arc<SessionTable>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let accept_sessions = sessions.clone();
        let accept_over = is_over.clone();
        let look_sessions = sessions.clone();
        let look_over = is_over.clone();
        let accept = move || accept_connections(&listener, &accept_sessions, &accept_over);
        let look = move || {
            while !look_over.load(Ordering::Acquire) {
                // Parked instead of asleep, so that the end of the server need not wait for the pause.
                std::thread::park_timeout(LOOK_EVERY);
                look_sessions.end_silent_sessions();
            }
        };
        let threads = vec![
            std::thread::Builder::new().name("cluster-listen".into()).spawn(accept)?,
            std::thread::Builder::new().name("cluster-sessions".into()).spawn(look)?,
        ];
        Ok(Self { is_over, address, sessions: sessions.clone(), threads })
    }
}

impl Drop for ListenerThreads {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // A connection wakes the thread that waits for one.
        let _ = TcpStream::connect_timeout(&reachable_address(self.address), Duration::from_secs(1));
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic there has been reported already.
            let _ = thread.join();
        }
        // After both threads have ended: nothing is accepted any more, and what is still in its handshake finds the table
        // closed.
        self.sessions.end_all();
    }
}

/// The address by which this machine reaches what listens on `address`.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}

fn accept_connections(listener: &TcpListener, sessions: &Arc<SessionTable>, is_over: &AtomicBool) {
    let handshakes = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if is_over.load(Ordering::Acquire) {
            return;
        }
        // Without the pause, a process without free descriptors would spin: the connection stays in the queue.
        let Ok((stream, address)) = accepted else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let sessions = sessions.clone();
        // Those that are left out see their connection closed, and try again.
        let Some(permit) = HandshakePermit::acquire(&handshakes) else { continue };
        // Without a thread for it the client sees the connection closed, and tries again.
        let _ = std::thread::Builder::new().name("cluster-client".into()).spawn(move || {
            if let Err(error) = serve_connection(stream, address, &sessions, permit) {
                tracing::debug!(%address, %error, "a connection ended");
            }
        });
    }
}

/// Counts a handshake until it is dropped.
struct HandshakePermit(Arc<AtomicUsize>);

impl HandshakePermit {
    /// None: there are as many handshakes as there may be.
    fn acquire(handshakes: &Arc<AtomicUsize>) -> Option<Self> {
        // Before the count is looked at: dropping the permit takes back what was counted, whatever the outcome.
        let permit = Self(handshakes.clone());
        let before = handshakes.fetch_add(1, Ordering::AcqRel);
        (before < HANDSHAKES_MAX).then_some(permit)
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve_connection(
    stream: TcpStream,
    address: SocketAddr,
    sessions: &Arc<SessionTable>,
    permit: HandshakePermit,
) -> Result<()> {
    let Connection { mut reader, mut writer, stream } = accept_stream(stream, &sessions.options.identity)?;
    let mut frame = Vec::new();
    reader.read_frame(&mut frame)?;
    // The peer has the key, but its timeout is still that of the handshake: who sends no hello is gone after it.
    let ClientFrame::Hello { session: earlier, client } = ClientFrame::decode(&frame)? else {
        return Err(ClusterError::Violation("the first frame is not that of a client"));
    };
    let found = sessions.find_or_begin(earlier, client, address).inspect_err(|_| {
        // The client learns that it is not taken. If it is gone already, it need not.
        let _ = writer
            .write_frame(&ServerFrame::Gone { is_successor: false }.encode())
            .and_then(|()| writer.flush());
    })?;
    // From here on it counts as one of SESSIONS_MAX.
    drop(permit);
    let FoundSession { session, id, resumed, held, may_reclaim } = found;
    let server = sessions.describe_process(&session);
    let welcome = ServerFrame::Welcome { session: id, resumed, may_reclaim, held, server };
    writer.write_frame(&welcome.encode())?;
    writer.flush()?;
    stream.set_read_timeout(Some(SESSION_TERM))?;
    stream.set_write_timeout(Some(SESSION_TERM))?;
    let outbox = Arc::new(Outbox::new(stream));
    // After the welcome was sent: an answer before it would break the protocol, and here the session may already have
    // answers for this client.
    session.attach_outbox(&outbox, address)?;
    let sending = outbox.clone();
    let sender = std::thread::Builder::new().name("cluster-answers".into());
    sender.spawn(move || sending.send_frames(writer))?;
    let ended = receive_frames(&mut reader, frame, &session, &outbox);
    // Closed first, so that the sender ends also if another connection has taken the session over: detaching does nothing
    // then.
    outbox.close();
    session.detach_outbox(&outbox);
    // A connection that is only lost leaves the session, so that the client can come back.
    if let Ok(ConnectionEnd::Dismissed) = ended {
        sessions.dismiss_session(session.id());
    }
    ended.map(drop)
}

/// How a connection ended.
enum ConnectionEnd {
    /// The client ends.
    Dismissed,
}

fn receive_frames(
    reader: &mut FrameReader,
    mut frame: Vec<u8>,
    session: &Arc<super::session::ClientSession>,
    outbox: &Arc<Outbox>,
) -> Result<ConnectionEnd> {
    loop {
        reader.read_frame(&mut frame)?;
        session.note_heard(outbox);
        match ClientFrame::decode(&frame)? {
            ClientFrame::Request(request) => {
                // Only begun: a request that waits for a recall would otherwise keep the confirmation of that recall from
                // being read.
                session.begin_request(frame.clone(), &request)?;
            }
            // 0 is a sign of life, which lets the client use nothing for longer.
            ClientFrame::Ping { number } => {
                outbox.request_pong(if session.may_grant() { number } else { 0 });
            }
            ClientFrame::Return(leases) => session.note_returned(&leases),
            ClientFrame::Recalled { number } => session.note_recalled(number),
            ClientFrame::Hold(nodes) => {
                session.hold_nodes(outbox, &nodes);
                // Of many nodes it takes long, and the client waits for a sign of life.
                outbox.request_pong(0);
            }
            ClientFrame::Reclaim { locks, is_last } => {
                // At once, so that no request of this client is carried out before it.
                let refused = session.reclaim_locks(&locks, is_last);
                outbox.add_notice(ServerFrame::Reclaimed { refused }.encode());
            }
            ClientFrame::Bye => return Ok(ConnectionEnd::Dismissed),
            ClientFrame::Hello { .. } => {
                return Err(ClusterError::Violation("a client introduces itself twice"));
            }
        }
    }
}

//! The connection of a client: one thread connects, receives answers, and connects again; another one sends.
//!
//! Invariant: while the client exists and is not connected, it tries to connect.

use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ClientShared;
use super::queue::AnsweredRequest;
use crate::connection::{Connection, FrameReader, FrameWriter, connect_stream};
use crate::error::{ClusterError, Result};
use crate::protocol::frame::{ClientFrame, HELD_NODES_MAX, ServerFrame, ServerProcess};
use crate::protocol::reclaim::{RECLAIMED_LOCKS_MAX, ReclaimedLock};
use crate::protocol::{HEARTBEAT, LEASE_TERM, SESSION_TERM, SessionId};

/// Time for an address to answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The pause before the first further attempt to connect. Each pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A connection whose server has taken this client.
pub struct OpenLink {
    connection: Connection,
    session: SessionId,
    resumed: bool,
    /// How many of the nodes that the kernel knows the server holds in this session.
    held: u64,
    server: ServerProcess,
    /// Locks that could not be taken up in a new session.
    lost: Vec<ReclaimedLock>,
}

/// Connects, and introduces this client.
pub fn open_link(shared: &ClientShared) -> Result<OpenLink> {
    // Each time anew: another machine may serve by now.
    let address = shared.options.locator.find_server()?;
    let stream = connect_to(&address)?;
    let mut connection = connect_stream(stream, &shared.options.identity)?;
    let earlier = *shared.session.lock();
    let hello = ClientFrame::Hello { session: earlier, client: shared.options.description.clone() };
    connection.writer.write_frame(&hello.encode())?;
    connection.writer.flush()?;
    let mut frame = Vec::new();
    connection.reader.read_frame(&mut frame)?;
    let ServerFrame::Welcome { session, resumed, may_reclaim, held, server } = expect_greeting(&frame)?
    else {
        return Err(ClusterError::Violation("an answer before the welcome"));
    };
    let (is_same, locks) = {
        let queue = shared.queue.lock();
        (queue.is_served_by(&server), queue.list_locks())
    };
    // A session can have been begun over a connection that broke before this client knew of it.
    let resumed = resumed && is_same;
    // Before any request, which may rely on a lock that another machine has by now.
    let lost = match may_reclaim {
        true => reclaim_locks(&mut connection, &locks)?,
        false if resumed => Vec::new(),
        false => locks,
    };
    // From here on the server answers heartbeats, so silence means that it is gone. Before, the time of the handshake
    // holds.
    connection.stream.set_read_timeout(Some(SESSION_TERM))?;
    connection.stream.set_write_timeout(Some(SESSION_TERM))?;
    Ok(OpenLink { connection, session, resumed, held, server, lost })
}

/// Decodes what a server sends while a connection begins.
fn expect_greeting(frame: &[u8]) -> Result<ServerFrame<'_>> {
    match ServerFrame::decode(frame)? {
        ServerFrame::Gone { .. } => Err(ClusterError::Full),
        greeting @ (ServerFrame::Welcome { .. } | ServerFrame::Reclaimed { .. }) => Ok(greeting),
        ServerFrame::Answer { .. } | ServerFrame::Recall { .. } | ServerFrame::Pong { .. } => {
            Err(ClusterError::Violation("an answer before the welcome"))
        }
    }
}

/// Takes up locks at another process. Gives those that are lost.
fn reclaim_locks(connection: &mut Connection, locks: &[ReclaimedLock]) -> Result<Vec<ReclaimedLock>> {
    let mut lost = Vec::new();
    let mut rest = locks;
    loop {
        let (part, later) = rest.split_at(rest.len().min(RECLAIMED_LOCKS_MAX));
        // Also without any lock: the server waits for the last part.
        let frame = ClientFrame::Reclaim { locks: part.to_vec(), is_last: later.is_empty() };
        connection.writer.write_frame(&frame.encode())?;
        connection.writer.flush()?;
        let mut answer = Vec::new();
        connection.reader.read_frame(&mut answer)?;
        let ServerFrame::Reclaimed { refused } = expect_greeting(&answer)? else {
            return Err(ClusterError::Violation("a second welcome"));
        };
        let refused = refused.into_iter().filter_map(|place| part.get(usize::try_from(place).ok()?));
        lost.extend(refused.copied());
        if later.is_empty() {
            return Ok(lost);
        }
        rest = later;
    }
}

fn connect_to(address: &str) -> Result<TcpStream> {
    let no_address = |source| ClusterError::NoAddress { address: address.into(), source };
    let mut failure = std::io::Error::other("the name has no address");
    // A name may have an IPv6 address that leads nowhere from here, and an IPv4 address that does.
    for place in address.to_socket_addrs().map_err(no_address)? {
        match TcpStream::connect_timeout(&place, CONNECT_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(ClusterError::Unreachable { address: address.into(), source: failure })
}

/// Uses a connection, and the ones after it, until the client ends.
pub fn run_links(shared: &Arc<ClientShared>, first: OpenLink) {
    let mut link = Some(first);
    while let Some(open) = link {
        let outcome = use_link(shared, open);
        // Also if it broke before requests were sent over it.
        shared.note_lost();
        let has_ended = shared.queue.lock().has_ended();
        // The sender looks again, and ends with its connection.
        shared.changed.notify_all();
        if has_ended {
            return;
        }
        (shared.options.report)(&format!(
            "the connection to the server is lost, and requests wait: {outcome}"
        ));
        // The next server takes it for granted that nothing is in use. Whatever holds a notice up, the kernel uses nothing
        // for longer than this.
        shared.notices.wait_until_idle(LEASE_TERM);
        link = reopen_link(shared);
    }
}

/// Connects again; None: the client has ended.
fn reopen_link(shared: &ClientShared) -> Option<OpenLink> {
    let mut pause = PAUSE_MIN;
    let mut reported = String::new();
    loop {
        match open_link(shared) {
            Ok(link) => {
                let how = if link.resumed { "in the same session" } else { "in a new session" };
                (shared.options.report)(&format!("the server is connected again, {how}"));
                return Some(link);
            }
            // A reason is reported once, not with each attempt.
            Err(error) if error.to_string() != reported => {
                reported = error.to_string();
                (shared.options.report)(&format!("the server cannot be used: {reported}"));
            }
            Err(_) => {}
        }
        // Answered without the lock: the kernel may send its next request in the same moment.
        let expired = {
            let mut queue = shared.queue.lock();
            if queue.has_ended() {
                return None;
            }
            queue.take_expired(shared.options.wait)
        };
        expired.into_iter().for_each(super::queue::EndedOperation::send_answer);
        // Parked: the end of the client unparks it, and does not wait for the pause.
        std::thread::park_timeout(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Uses a connection until it breaks; gives why it did.
fn use_link(shared: &Arc<ClientShared>, open: OpenLink) -> ClusterError {
    let OpenLink { connection, session, resumed, held, server, lost } = open;
    let Connection { mut reader, mut writer, stream } = connection;
    *shared.session.lock() = session;
    // Before anything is sent again: an fsync that is sent to the new server would succeed, although what it is for is
    // gone.
    let failed = shared.queue.lock().note_server(&server);
    failed.into_iter().for_each(super::queue::EndedOperation::send_answer);
    let (to_hold, unlocked) = {
        let mut queue = shared.queue.lock();
        if resumed {
            queue.resume();
            // The connection before may have been lost while these were named.
            (queue.list_unheld(held), Vec::new())
        } else {
            // With one lock: nothing is sent, and nothing is added that would not see the loss.
            (queue.resume_in_new_session(&lost), queue.take_unlocked())
        }
    };
    unlocked.into_iter().for_each(super::queue::EndedOperation::send_answer);
    // First of all, so that no request finds one of them removed.
    for nodes in to_hold.chunks(HELD_NODES_MAX) {
        if let Err(error) = writer.write_frame(&ClientFrame::Hold(nodes.into()).encode()) {
            return error.into();
        }
    }
    if let Err(error) = writer.flush() {
        return error.into();
    }
    let sending = shared.clone();
    let closing = match stream.try_clone() {
        Ok(stream) => stream,
        Err(error) => return error.into(),
    };
    let sender = std::thread::Builder::new().name("cluster-requests".into()).spawn(move || {
        // The receiver learns of the failure by the end of the connection.
        let _ = send_requests(&sending, session, &mut writer);
        let _ = closing.shutdown(Shutdown::Both);
    });
    let sender = match sender {
        Ok(sender) => sender,
        Err(error) => return error.into(),
    };
    let outcome = receive_answers(shared, &mut reader);
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
    // The sender waits for `changed`, and ends only if it sees that there is no connection.
    shared.note_lost();
    shared.changed.notify_all();
    // A panic there has been reported already.
    let _ = sender.join();
    outcome.err().unwrap_or(ClusterError::Violation("the server has ended the session"))
}

fn receive_answers(shared: &ClientShared, reader: &mut FrameReader) -> Result<()> {
    let mut frame = Vec::new();
    loop {
        reader.read_frame(&mut frame)?;
        match ServerFrame::decode(&frame)? {
            ServerFrame::Answer { number, errno, body, is_leased } => {
                let answered = AnsweredRequest { number, errno, body, is_leased };
                // The lock is released before the answer is delivered: the kernel may send a request that needs it.
                let ended = shared.queue.lock().end_request(answered);
                // There may be room for another request now.
                shared.changed.notify_one();
                if let Some(ended) = ended {
                    ended.send_answer();
                }
            }
            ServerFrame::Recall { number, leases } => shared.take_recall(number, &leases)?,
            ServerFrame::Pong { number } => shared.queue.lock().note_pong(number),
            ServerFrame::Gone { is_successor } => {
                if is_successor {
                    (shared.options.named_successor)();
                }
                return Ok(());
            }
            ServerFrame::Welcome { .. } | ServerFrame::Reclaimed { .. } => {
                return Err(ClusterError::Violation("a second welcome"));
            }
        }
    }
}

/// Sends requests, and heartbeats, until the connection is lost or the client ends.
fn send_requests(shared: &ClientShared, session: SessionId, writer: &mut FrameWriter) -> Result<()> {
    // The first one at once: until it is answered, nothing is answered from what was granted.
    let mut next_heartbeat = Instant::now();
    loop {
        let frames = {
            let mut queue = shared.queue.lock();
            let mut frames = queue.take_frames();
            while frames.is_empty() && queue.is_connected() {
                if shared.changed.wait_until(&mut queue, next_heartbeat).timed_out() {
                    break;
                }
                frames = queue.take_frames();
            }
            if queue.has_ended() {
                drop(queue);
                writer.write_frame(&ClientFrame::Bye.encode())?;
                return Ok(writer.flush()?);
            }
            if !queue.is_connected() {
                return Ok(());
            }
            frames
        };
        tracing::trace!(%session, frames = frames.len(), "requests are sent");
        for frame in &frames {
            writer.write_frame(frame)?;
        }
        if Instant::now() >= next_heartbeat {
            // Numbered after the requests were written, and the time is taken before it is sent: the lease term may only be
            // counted too short.
            let ping = shared.queue.lock().new_ping();
            writer.write_frame(&ping)?;
            next_heartbeat = Instant::now() + HEARTBEAT;
        }
        writer.flush()?;
    }
}

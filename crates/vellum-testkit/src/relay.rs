//! A relay between a client and a server of this machine, which holds up or resets what goes through it.
//!
//! Invariant: no byte is changed, and those of one connection arrive in their order.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Where an address names the server: the tests' servers have no other.
const LOCAL_ENDPOINT: &str = "http://";
/// Most bytes that are passed on at once: what a limit cuts off is not much longer.
const PIECE: usize = 16 << 10;

/// The relay. It ends when it is dropped.
pub struct TcpRelay {
    address: SocketAddr,
    url: String,
    shared: Arc<RelayShared>,
}

struct RelayShared {
    target: SocketAddr,
    state: Mutex<RelayState>,
    /// Signalled when the state changes.
    changed: Condvar,
}

#[derive(Default)]
struct RelayState {
    is_over: bool,
    is_held: bool,
    /// Bytes that clients sent.
    sent: u64,
    /// Bytes that the server sent.
    received: u64,
    fault: Option<RelayFault>,
    resets: u32,
}

/// What is to happen once so many bytes have gone through in all.
#[derive(Clone, Copy)]
enum RelayFault {
    /// When clients have sent them, nothing is passed on any more.
    Hold(u64),
    /// When clients have sent them, their connection is reset.
    Reset(u64),
    /// When the server has sent them, the connection is reset.
    ResetAnswer(u64),
}

/// What is done with a piece that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RelayStep {
    Pass,
    Reset,
    End,
}

impl TcpRelay {
    /// Starts a relay to the server that the address of a store names.
    ///
    /// # Panics
    /// Panics if the address names no server of this machine, or if there is no port.
    #[must_use]
    pub fn start(store_url: &str) -> Self {
        let (_, rest) = store_url.split_once(LOCAL_ENDPOINT).expect("an address with an endpoint");
        let server = rest.split(['&', '/']).next().unwrap_or_default();
        let target = server.parse().expect("a server of this machine");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(RelayShared { target, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // The connection that only woke this thread is not served.
                if accepting.state.lock().is_over {
                    break;
                }
                accepting.relay_connection(client);
            }
        });
        Self { address, url: store_url.replacen(server, &address.to_string(), 1), shared }
    }

    /// The address of the same store through this relay.
    #[must_use]
    pub fn store_url(&self) -> &str {
        &self.url
    }

    /// From now on nothing is passed on in either direction; connections stay open.
    pub fn hold(&self) {
        self.shared.state.lock().is_held = true;
    }

    /// Holds when clients have sent this many more bytes.
    pub fn hold_after(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        state.fault = Some(RelayFault::Hold(state.sent + bytes));
    }

    /// Goes on where it was held; what was to happen later does not.
    pub fn release(&self) {
        let mut state = self.shared.state.lock();
        state.is_held = false;
        state.fault = None;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether it holds.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.shared.state.lock().is_held
    }

    /// Resets the connection on which clients have sent this many more bytes in all.
    pub fn reset_after(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        state.fault = Some(RelayFault::Reset(state.sent + bytes));
    }

    /// Resets the connection on which the server has sent this many more bytes in all.
    pub fn reset_answer_after(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        state.fault = Some(RelayFault::ResetAnswer(state.received + bytes));
    }

    /// The number of connections that were reset so far.
    #[must_use]
    pub fn count_resets(&self) -> u32 {
        self.shared.state.lock().resets
    }

    /// The number of bytes that clients sent so far.
    #[must_use]
    pub fn count_sent_bytes(&self) -> u64 {
        self.shared.state.lock().sent
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl RelayShared {
    /// Passes on what comes on a connection, on threads of its own.
    fn relay_connection(self: &Arc<Self>, client: TcpStream) {
        // A server that is not there: the client sees a connection that is closed at once.
        let Ok(server) = TcpStream::connect(self.target) else { return };
        let ends = (client.try_clone(), server.try_clone());
        let (Ok(client_copy), Ok(server_copy)) = ends else { return };
        for (from, to, is_client) in [(client, server, true), (server_copy, client_copy, false)] {
            let shared = Arc::clone(self);
            // Small pieces must not wait in the kernel for the acknowledgement of earlier ones.
            let _ = to.set_nodelay(true);
            std::thread::spawn(move || {
                let _ = shared.pass_on(from, to, is_client);
            });
        }
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, is_client: bool) -> io::Result<()> {
        let mut piece = [0; PIECE];
        loop {
            let len = from.read(&mut piece)?;
            let step = if len == 0 { RelayStep::End } else { self.choose_step(len, is_client) };
            match step {
                RelayStep::Pass => to.write_all(&piece[..len])?,
                RelayStep::Reset => {
                    for end in [&from, &to] {
                        // Closed without lingering, a connection is reset.
                        rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO))?;
                        end.shutdown(Shutdown::Both)?;
                    }
                    return Ok(());
                }
                // Only this direction has ended; in the other one bytes may still come.
                RelayStep::End => return to.shutdown(Shutdown::Write),
            }
        }
    }

    /// Waits while the relay holds.
    fn choose_step(&self, len: usize, is_client: bool) -> RelayStep {
        let mut state = self.state.lock();
        let passed = if is_client { &mut state.sent } else { &mut state.received };
        *passed += len as u64;
        let passed = *passed;
        match state.fault {
            // The piece that reaches it is held back as well.
            Some(RelayFault::Hold(at)) if is_client && passed >= at => {
                state.fault = None;
                state.is_held = true;
            }
            Some(RelayFault::Reset(at)) if is_client && passed >= at => return state.reset_connection(),
            Some(RelayFault::ResetAnswer(at)) if !is_client && passed >= at => {
                return state.reset_connection();
            }
            Some(RelayFault::Hold(_) | RelayFault::Reset(_) | RelayFault::ResetAnswer(_)) | None => {}
        }
        while state.is_held && !state.is_over {
            self.changed.wait(&mut state);
        }
        if state.is_over { RelayStep::End } else { RelayStep::Pass }
    }
}

impl RelayState {
    /// Counts a reset, which is the only one.
    fn reset_connection(&mut self) -> RelayStep {
        self.fault = None;
        self.resets += 1;
        RelayStep::Reset
    }
}

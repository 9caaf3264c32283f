//! A relay between a client and a server, which a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Passes bytes on, both ways.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<RelayState>,
}

struct RelayState {
    server: Mutex<SocketAddr>,
    /// Whether what the server says gets lost.
    is_deaf: AtomicBool,
    /// How many bytes of a client's arrive over a new connection.
    limit: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(RelayState {
            server: Mutex::new(server),
            is_deaf: AtomicBool::new(false),
            limit: AtomicUsize::new(usize::MAX),
            streams: Mutex::default(),
        });
        let for_thread = state.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                for_thread.pass_on(&client);
            }
        });
        Self { address, state }
    }

    /// From now on, new connections lead there.
    pub fn redirect(&self, server: SocketAddr) {
        *self.state.server.lock() = server;
    }

    /// What the server says does not arrive any more, until the connections are cut.
    pub fn lose_answers(&self) {
        self.state.is_deaf.store(true, Ordering::SeqCst);
    }

    /// From now on, only the first bytes of what a client says over a new connection arrive. It does not see that.
    pub fn limit_requests(&self, bytes: usize) {
        self.state.limit.store(bytes, Ordering::SeqCst);
    }

    /// Ends all connections. New ones work.
    pub fn cut(&self) {
        for stream in self.state.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.state.is_deaf.store(false, Ordering::SeqCst);
    }
}

impl RelayState {
    fn pass_on(self: &Arc<Self>, client: &TcpStream) {
        let server = *self.server.lock();
        // Nobody listens: the client sees its connection closed.
        let Ok(server) = TcpStream::connect(server) else { return };
        let clones = [client, &server].map(|stream| stream.try_clone().unwrap());
        self.streams.lock().extend(clones);
        self.pump(client, &server, false);
        self.pump(&server, client, true);
    }

    fn pump(self: &Arc<Self>, from: &TcpStream, to: &TcpStream, is_answer: bool) {
        let state = self.clone();
        let mut from = from.try_clone().unwrap();
        let mut to = to.try_clone().unwrap();
        let mut left = if is_answer { usize::MAX } else { self.limit.load(Ordering::SeqCst) };
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if is_answer && state.is_deaf.load(Ordering::SeqCst) {
                    continue;
                }
                let passed = count.min(left);
                left -= passed;
                if to.write_all(&bytes[..passed]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}

//! Ports of servers that tests start.

use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

/// Timeout of a start: the machine may be busy.
const START_MAX: Duration = Duration::from_secs(60);

/// A port that is free now. Another process could take it before the server does, which makes the start fail.
pub(crate) fn find_free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until a server answers at its port.
///
/// # Panics
/// Panics if the server ends, or does not answer in time.
pub(crate) fn wait_for_port(process: &mut Child, port: u16) {
    let start = Instant::now();
    // The servers announce nothing, so their ports are tried until they answer.
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        // A server that has ended will never answer.
        let ended = process.try_wait().expect("the state of the server");
        assert!(ended.is_none() && start.elapsed() < START_MAX, "the server did not start");
        std::thread::sleep(Duration::from_millis(50));
    }
}

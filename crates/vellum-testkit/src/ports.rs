//! Ports of servers that tests start.

use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Timeout of a start: the machine may be busy.
const START_MAX: Duration = Duration::from_secs(60);

/// Where ports are looked for: below those that the kernel gives to outgoing connections, which could take one before
/// its server does.
const FIRST_PORT: u16 = 10_000;
const PORT_COUNT: u32 = 20_000;
/// Distance between two candidates: a server may use the port four above for gRPC.
const STEP: u32 = 8;

/// The candidates that this process has tried.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// A port that is free now, and so is the one four above it. It is given once only in a process.
pub(crate) fn find_free_port() -> u16 {
    loop {
        // Processes that run beside each other begin in different places.
        let candidate =
            std::process::id().wrapping_mul(611).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = FIRST_PORT + (candidate.wrapping_mul(STEP) % PORT_COUNT) as u16;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 4) {
            return port;
        }
    }
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

//! What the service manager is told of a mount that it started (sd_notify(3)).
//!
//! Invariant: a service manager that does not listen changes nothing for the mount.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where systemd wants to be told; an address that begins with `@` is in the abstract namespace.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// Within how many microseconds systemd wants to hear that the service works, if at all.
const WATCHDOG_INTERVAL: &str = "WATCHDOG_USEC";
/// The process that it wants to hear it from, if not any.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// Reports that the mount answers.
pub fn notify_ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={status}"));
}

/// Reports that the mount ends, and what is still done.
pub fn notify_stopping(status: &str) {
    notify(&format!("STOPPING=1\nSTATUS={status}"));
}

/// Reports from now on that the mount works, if the service manager wants to hear it. `check` asks the mounted filesystem for
/// something: if that does not return, nothing is reported, and the service manager ends the process.
pub fn start_watchdog(check: impl Fn() + Send + 'static) -> io::Result<()> {
    let Some(interval) = watchdog_interval() else { return Ok(()) };
    let report = move || loop {
        check();
        notify("WATCHDOG=1");
        // Twice in each interval, as sd_watchdog_enabled(3) recommends.
        std::thread::sleep(interval / 2);
    };
    std::thread::Builder::new().name("vellum-watchdog".into()).spawn(report).map(drop)
}

fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    // A process that inherited the variables is not meant.
    let is_meant = number(WATCHDOG_PROCESS).is_none_or(|process| process == u64::from(std::process::id()));
    number(WATCHDOG_INTERVAL).filter(|micros| *micros > 0 && is_meant).map(Duration::from_micros)
}

fn notify(message: &str) {
    if let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) {
        // Nobody can be told that nobody can be told; systemd itself then ends the service after its time limit.
        let _ = send(&socket, message);
    }
}

fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        // sd_notify(3): an address that begins with '@' is in the abstract namespace.
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

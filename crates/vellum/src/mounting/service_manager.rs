//! What the service manager is told of a mount that it started (sd_notify(3)).
//!
//! Invariant: a service manager that does not listen changes nothing for the mount.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where systemd wants to be told; an address that begins with `@` is in the abstract namespace.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that the mount answers.
pub fn notify_ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={status}"));
}

/// Reports that the mount ends, and what is still done.
pub fn notify_stopping(status: &str) {
    notify(&format!("STOPPING=1\nSTATUS={status}"));
}

fn notify(message: &str) {
    if let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) {
        // Nobody can be told that nobody can be told; systemd itself then ends the service after its time limit.
        let _ = send(&socket, message);
    }
}

fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

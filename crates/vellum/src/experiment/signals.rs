//! Signals that a process of a try passes on while it waits for its child.
//!
//! The terminal sends Ctrl-C to all processes of the foreground, the command included: it is not passed on, and nobody but
//! the command reacts to it.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::Signal;
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

use crate::error::{CliError, Result};

/// What a waiting process learns of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEvent {
    /// A child ended, or was stopped.
    ChildChanged,
    /// A signal for the command.
    PassOn(Signal),
}

/// Signals that have arrived and were not looked at yet.
pub struct ReceivedSignals {
    /// A socket for each of [`Self::EVENTS`], in which each signal leaves a byte.
    sockets: Vec<UnixStream>,
    /// What writes to the sockets, and to those of signals that are only not to end the process.
    handlers: Vec<SigId>,
}

impl ReceivedSignals {
    const EVENTS: [(i32, WaitEvent); 3] = [
        (SIGCHLD, WaitEvent::ChildChanged),
        (SIGTERM, WaitEvent::PassOn(Signal::TERM)),
        (SIGHUP, WaitEvent::PassOn(Signal::HUP)),
    ];

    /// From now on, these signals neither end this process nor are they lost.
    pub fn begin() -> Result<Self> {
        let failed = || CliError::io_error("wait for", "signals");
        let mut sockets = Vec::new();
        let mut handlers = Vec::new();
        for (signal, _) in Self::EVENTS {
            let (socket, handler) = register_socket(signal).map_err(failed())?;
            sockets.push(socket);
            handlers.push(handler);
        }
        // A handler, and not 'ignore': the command would inherit that.
        for signal in [SIGINT, SIGQUIT] {
            handlers.push(register_socket(signal).map_err(failed())?.1);
        }
        Ok(Self { sockets, handlers })
    }

    /// For a process that was forked from the one that began: its own signals arrive, and no longer in the sockets that it
    /// shares with that.
    pub fn begin_in_fork(self) -> Result<Self> {
        for handler in self.handlers {
            unregister(handler);
        }
        Self::begin()
    }

    /// Waits for the next one.
    pub fn wait(&mut self) -> Result<WaitEvent> {
        let failed = || CliError::io_error("wait for", "signals");
        loop {
            let mut polled: Vec<_> =
                self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            retry_on_intr(|| poll(&mut polled, None)).map_err(|error| failed()(error.into()))?;
            let is_ready: Vec<_> = polled.iter().map(|socket| !socket.revents().is_empty()).collect();
            for ((socket, is_ready), (_, event)) in self.sockets.iter_mut().zip(is_ready).zip(Self::EVENTS) {
                // Several signals of a kind are one event: whoever waits looks at all children.
                if is_ready && socket.read(&mut [0; 64]).map_err(failed())? > 0 {
                    return Ok(event);
                }
            }
        }
    }
}

fn register_socket(signal: i32) -> std::io::Result<(UnixStream, SigId)> {
    let (received, sender) = UnixStream::pair()?;
    let handler = pipe::register(signal, sender)?;
    Ok((received, handler))
}

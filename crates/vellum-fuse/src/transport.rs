//! The transport: moves requests from the kernel to a [`RequestService`], and answers back. Requests that other machines
//! forward come by other ways ([`answer_forwarded_request`]).
//!
//! Invariants: each request is answered once, by the descriptor or the ring slot that it was read from, if it wants an
//! answer; a thread that answers requests sends the kernel nothing else. When the mount ends, all threads end.
//!
//! Deliberately absent: interrupts (the kernel waits for the answer instead), and what requests mean.

mod busy_poll;
mod connection;
mod device;
mod flushes;
mod gate;
mod handshake;
pub mod mounting;
mod pending;
mod readers;
mod ring;
mod ring_turn;
mod rings;
mod schedule;
mod service;
mod waiting_writes;
mod watchdog;

pub use connection::FuseConnection;
pub use device::{FuseDevice, KernelNotifier, MAX_WRITE, REQUEST_MAX};
pub use gate::{ChangeGate, ChangePermit, GatedService};
pub use handshake::perform_handshake;
pub use rings::RingTransport;
pub use service::{AnswerSink, DeferredReply, PendingAnswer, RequestService, answer_forwarded_request};
pub use watchdog::Watchdog;

#[cfg(test)]
mod tests;

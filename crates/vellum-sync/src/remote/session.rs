//! The conversation of two hosts over a pair of streams.
//!
//! One side starts it and asks ([`SyncClient`]); the other serves one end of a run ([`serve_session()`]). Whichever side receives
//! files asks the other for their content ([`WireSource`]), ahead of time for small ones, so that the way back and forth
//! is paid once and not for each file; whichever side has them feeds them ([`feed`]). A thread of each side does nothing
//! but read: it never waits for anything else, so that two sides cannot wait for each other.
//!
//! Invariant: what a side has not asked for, or more of it than it allowed, ends the conversation. After a failure of
//! the connection every wait ends with an error. Deliberately absent: how the streams come to be (see `remote`).

mod client;
mod feed;
mod inbox;
mod link;
mod message;
mod serve;
mod stream;
mod wire_source;

pub use client::SyncClient;
pub use link::{LinkSettings, SessionLink};
pub use message::{BeginRequest, FoundPath, ServerRole};
pub use serve::serve_session;
pub use wire_source::WireSource;

#[cfg(test)]
mod tests;

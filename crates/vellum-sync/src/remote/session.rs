//! The session of two hosts over a pair of streams.
//!
//! One side is the client and sends requests ([`SyncClient`]); the other is the server of one end of a run
//! ([`serve_session()`]). The side that receives files requests their content from the other ([`WireSource`]), small
//! files ahead of time, so that not every file costs a round trip; the side that has them sends it ([`feed`]). One
//! thread of each side only reads frames and never waits for anything else, so that the two sides cannot deadlock.
//!
//! Invariant: content that a side did not request, or more of it than it allowed, ends the session. After the
//! connection is lost every wait ends with an error. Deliberately absent: how the streams are set up (see `remote`).

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

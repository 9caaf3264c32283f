//! Synchronisation between two hosts: the wire format, the session, and deltas against files that the other side has.
//!
//! Invariant: what the other host sends is checked before it is used, and bounded before it is kept.

pub mod delta;
pub mod session;
pub mod wire;

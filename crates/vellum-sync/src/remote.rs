//! Between two hosts: the bytes, the conversation, and what of a file the other side has already.
//!
//! Invariant: what the other host sends is checked before it is used, and bounded before it is kept.

pub mod delta;
pub mod session;
pub mod wire;

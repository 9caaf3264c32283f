//! Between two hosts: the bytes, the conversation, and what of a file the other side has already.

pub mod delta;
pub mod session;
pub mod wire;

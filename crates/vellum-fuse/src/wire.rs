//! The protocol between the kernel and whoever serves a mount (Linux: `linux/fuse.h`): requests decoded from bytes,
//! answers and notices encoded to bytes.
//!
//! Invariants: every decoder takes any bytes, and reads none that are not there; nothing here reads or writes a
//! descriptor. Numbers are in the machine's own order, as both ends are on one machine. Absent are requests that no
//! mount of ours is asked for: the answer to one of those is that it is not known.

mod answer;
mod attributes;
mod fields;
mod init;
mod listing;
mod notice;
mod operation;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, HEAD_LEN, Small, head};
pub use attributes::{Attributes, Entry};
pub use fields::Malformed;
pub use init::{Init, InitAnswer, MAJOR, flags};
pub use listing::{Listed, Listing};
pub use notice::Notice;
pub use operation::{Forgets, Operation, WriteFlags, operation_name};
pub use request::{Header, REQUEST_HEAD_LEN, Request};

//! The protocol between the kernel and whoever serves a mount (Linux: `linux/fuse.h`): requests decoded from bytes,
//! answers and notices encoded to bytes.
//!
//! Invariants: every decoder takes any bytes, and reads none that are not there; nothing here reads or writes a
//! descriptor. Numbers are in the machine's own order, as both ends are on one machine. Absent are requests that no
//! mount of ours is asked for: the answer to one of those is that it is not known.

mod answer;
mod attributes;
mod body;
mod fields;
mod init;
mod listing;
mod notice;
mod opcode;
mod operation;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{FuseAnswer, HEAD_LEN, SmallAnswer, encode_answer_head};
pub use attributes::{EntryAnswer, NodeAttributes};
pub use fields::MalformedRequest;
pub use init::{InitAnswer, InitRequest, MAJOR, flags};
pub use listing::{ListingAnswer, NameInAnswer};
pub use notice::Invalidation;
pub use opcode::Opcode;
pub use operation::{ForgottenNodes, FuseOperation, WriteFlags};
pub use request::{FuseRequest, REQUEST_HEAD_LEN, RequestHeader};

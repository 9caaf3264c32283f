//! The protocol between the kernel and the process that serves a mount (`linux/fuse.h`): decodes requests from bytes,
//! and encodes answers and notifications to bytes. Numbers are in native byte order, as both ends are on one machine.
//!
//! Invariants: a decoder accepts any bytes, and reads none that are not there; nothing here reads or writes a
//! descriptor.
//!
//! Deliberately absent: requests that the kernel does not send to our mounts. They are answered with `ENOSYS`.

mod answer;
mod attributes;
mod body;
mod buffer;
mod fields;
mod init;
mod listing;
mod notice;
mod opcode;
mod operation;
pub mod patching;
mod request;
mod stored_write;
#[cfg(test)]
mod tests;

pub use answer::{FuseAnswer, OpenFileAnswer, open_flags};
pub use attributes::{EntryAnswer, NodeAttributes};
pub use buffer::{HEAD_LEN, SmallAnswer, encode_answer_head};
pub use fields::MalformedRequest;
pub use init::{InitAnswer, InitRequest, MAJOR, flags};
pub(crate) use listing::visit_listed_entries;
pub use listing::{ListingAnswer, NameInAnswer};
pub use notice::Invalidation;
pub use opcode::Opcode;
pub use operation::{FileLock, ForgottenNodes, FuseOperation, WriteFlags};
pub use request::{FuseRequest, REQUEST_HEAD_LEN, RequestHeader};
pub use stored_write::{StoredChunks, WRITE_CHUNKS_MAX, WRITE_HEAD_LEN, encode_stored_write};

//! The shared log: what lets another machine continue a live worktree from where the last `fsync` left it.
//!
//! [`SharedLog`] is what an engine must do: Redis, PostgreSQL, etcd, or the object store itself. The meaning of the bytes
//! is unknown to it. Deliberately absent: POSIX, the protocol between machines.

mod error;
mod log;

pub use error::SharedLogError;
pub use log::{LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog};

//! The shared log: what lets another machine continue a live worktree from where the last `fsync` left it.
//!
//! [`SharedLog`] is what an engine must do: Redis, PostgreSQL, etcd, or the object store itself; [`open_shared_log`]
//! opens the one that a [`LogAddress`] names. The meaning of the bytes is unknown to it. Deliberately absent: POSIX,
//! the protocol between machines.

mod address;
mod binding;
pub mod claim;
mod error;
mod etcd_log;
pub mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod key_space;
mod log;
mod object_log;
mod open;
mod postgres_log;
mod redis_log;

pub use address::{LogAddress, LogAddressError, LogEngine, LogHost};
pub use error::SharedLogError;
pub use etcd_log::EtcdLog;
pub use key_space::LogKeySpace;
pub use log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog,
};
pub use object_log::ObjectLog;
pub use open::open_shared_log;
pub use postgres_log::PostgresLog;
pub use redis_log::RedisLog;

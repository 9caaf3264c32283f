//! What the mounting commands share: what is mounted, and the process that serves a mount.

pub mod automatic;
pub mod control;
pub mod daemon;
pub mod end;
pub mod error;
pub mod follow;
pub mod holders;
pub mod live;
pub mod log;
pub mod metrics;
pub mod mountpoint;
pub mod policies;
pub mod service_manager;
pub mod sharing;
pub mod table;
pub mod trash;
pub mod watch;

pub use error::MountingError;

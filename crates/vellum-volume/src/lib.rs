//! Floor 4: volumes: opening and unlocking, snapshot records and their history, refs (worktree heads, tags, pins),
//! reading trees by path, comparing them, verifying, collecting garbage.
//!
//! Invariant: nothing here depends on FUSE or on plain directories, and nothing prints.

pub mod annotation;
pub mod catalog;
pub mod config;
pub mod device;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod exclusions;
pub mod file_history;
pub mod fuzzing;
pub mod gc;
pub mod history;
pub mod hydration_policy;
pub mod key_epochs;
pub mod keyring;
pub mod lease;
pub mod lost;
pub mod merge;
pub mod name_search;
pub mod operations;
pub mod own_place;
pub mod record;
pub mod refs;
pub mod remote;
pub mod repair;
pub mod residence;
pub mod resolve;
pub mod retention;
pub mod revision_range;
pub mod session;
pub mod settings;
pub mod snapshot_pin;
mod source;
pub mod state;
mod store_check;
mod store_identity;
pub mod transfer;
pub mod trash;
pub mod tree;
pub mod usage;
pub mod verify;
pub mod versions;
pub mod volume;

pub use error::{Result, VolumeError};
pub use record::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics};
pub use session::WriteSession;
pub use state::StateDir;
pub use tree::FsTree;
pub use volume::Volume;

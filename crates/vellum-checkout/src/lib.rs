//! Plain directories: walking them, remembering what they looked like, writing them.
//!
//! Invariant: [`beneath`] is the only module that calls the operating system with a path, always one component below
//! a directory that is held open, never through a symlink. Deliberately absent: FUSE, and anything that prints.

pub mod beneath;
pub mod capture;
pub mod clone;
mod error;
pub mod meta;
pub mod scan;
pub mod statcache;
mod worktree;

pub use error::{CheckoutError, Problem, Result};
pub use worktree::{DirectoryDiff, SnapshotOutcome, SnapshotRequest, Worktree};

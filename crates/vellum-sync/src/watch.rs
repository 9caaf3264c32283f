//! Watching a tree for changes.
//!
//! | module | owns |
//! |---|---|
//! | `settle` | when to act on changes: after a quiet period, or after a longest wait |
//! | `tree` | which directories are watched, and what their events mean |
//!
//! Invariant: no change is missed: a directory is watched before its names are read, and if the kernel dropped events,
//! everything counts as changed. Deliberately absent: what is done about a change.

mod settle;
mod tree;

pub use settle::{SettleTimer, WatchPace};
pub use tree::{WatchCoverage, WatchEvent, WatchedTree};

#[cfg(test)]
mod tests;

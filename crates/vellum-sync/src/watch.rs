//! Noticing that a tree changes.
//!
//! | module | owns |
//! |---|---|
//! | `settle` | when to act on what was noticed: after a moment of quiet, or a longest wait |
//! | `tree` | which directories are watched, and what their events mean |
//!
//! Invariant: nothing is missed: a directory is watched before its names are read, and where the system says that it
//! dropped events, everything counts as changed. Deliberately absent: what is done about a change.

mod settle;
mod tree;

pub use settle::{SettleTimer, WatchPace};
pub use tree::{WatchCoverage, WatchEvent, WatchedTree};

#[cfg(test)]
mod tests;

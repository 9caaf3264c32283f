//! States of a worktree besides the one that is being changed: snapshots, restores, forks, views, and what keeps them.
//!
//! Invariant: a state never changes once it has a place here. What it needs stays as long as it is needed.

pub(crate) mod carried;
pub(crate) mod copy;
pub mod exclusions;
pub mod expected;
pub mod fork;
pub mod partial;
pub mod past;
pub mod pending;
mod read_trees;
pub(crate) mod retained_roots;
pub(crate) mod selected;
pub mod snapshot;
pub mod view;
pub(crate) mod visible;

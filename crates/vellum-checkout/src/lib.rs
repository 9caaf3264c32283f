//! Plain directories: scanning them, caching their attributes, writing them.
//!
//! Invariant: [`beneath`] is the only module that calls the operating system with a path, always one component below
//! a directory that is held open, never through a symlink. Deliberately absent: FUSE, and anything that prints.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]

pub mod beneath;
pub mod capture;
pub mod clone;
pub mod crew;
mod error;
mod export;
mod fork;
mod materialize;
pub mod meta;
mod plan;
mod renew;
mod restore;
pub mod scan;
pub mod statcache;
mod worktree;

pub use error::{CheckoutError, CheckoutProblem, Result};
pub use export::export_tree;
pub use fork::{ForkReport, ForkRequest};
pub use materialize::ForkEngine;
pub use restore::{
    InterruptedRestore, RestorePlan, RestoreReport, RestoreRequest, RestoreStep, RestoreStepKind,
};
pub use worktree::{CheckoutSnapshotRequest, CheckoutWorktree, DirectoryDiff, SnapshotReport};

//! Plain directories: scanning them, caching their attributes, writing them.
//!
//! Invariant: directories are read and written through [`vellum_host::beneath`] alone. Deliberately absent: FUSE, and
//! anything that prints.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]

mod absent;
pub mod capture;
pub mod doctor;
mod error;
mod export;
mod fork;
mod materialize;
mod merge;
mod outside;
mod plan;
mod renew;
pub mod repair;
mod restore;
pub mod scan;
pub mod statcache;
mod stream;
mod worktree;

pub use absent::{
    AbsentContent, AbsentListError, AbsentPaths, AbsentSummary, EvictReport, HydrateReport, read_absent_paths,
};
pub use error::{CheckoutError, CheckoutProblem, Result};
pub use export::export_tree;
pub use fork::{ForkReport, ForkRequest};
pub use materialize::ForkEngine;
pub use outside::OutsideDirectory;
pub use restore::{
    FileEdit, FileEditReport, InterruptedRestore, PLAN_MAX, RestorePlan, RestoreReport, RestoreRequest,
    RestoreStep, RestoreStepKind, SavedPlanError, SavedRestorePlan, StateRestorePlan,
};
pub use stream::{StreamSnapshotRequest, create_stream_snapshot};
pub use worktree::{
    CheckoutSnapshotRequest, CheckoutWorktree, DirectoryDiff, SnapshotExclusions, SnapshotReport,
};

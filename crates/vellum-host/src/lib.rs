//! This machine, for the crates above: paths below a directory that is held open, metadata, copies that share blocks, locks,
//! processes, the mount table, worker threads, and what running code is observed by.
//!
//! Invariant: [`beneath`] is the only module that calls the operating system with a path of files that others may change,
//! always one component below a directory that is held open, never through a symlink. Deliberately absent: volumes, and anything that prints.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]

pub mod beneath;
pub mod clock;
pub mod clone;
pub mod error_chain;
pub mod escape;
pub mod exposition;
pub mod histogram;
pub mod ignore_files;
pub mod lock;
pub mod metadata;
pub mod mount_table;
pub mod parallel_walk;
pub mod process;
pub mod progress;
pub mod wait;
pub mod worker_pool;

pub use exposition::MetricsExposition;
pub use histogram::{DurationDistribution, DurationHistogram};
pub use progress::{OperationStopped, ProgressMeter, ProgressReading};

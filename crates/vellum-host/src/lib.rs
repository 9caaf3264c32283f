//! Access to this machine for other crates: paths below an open directory, metadata, copies that share blocks, locks,
//! processes, the mount table, threads that work side by side, and instruments for observing running code.
//!
//! Invariant: [`beneath`] is the only module that passes a path of files that others may change to the operating
//! system; each call uses one component below an open directory, and follows no symlink. Deliberately absent: volumes,
//! and printing.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]

pub mod beneath;
pub mod clock;
pub mod clone;
pub mod error_chain;
pub mod escape;
pub mod exclusions;
pub mod exposition;
pub mod fork_safe;
pub mod histogram;
pub mod ignore_files;
pub mod lock;
pub mod metadata;
pub mod mount_table;
pub mod near_name;
pub mod owner;
pub mod owner_names;
pub mod parallel;
pub mod parallel_walk;
pub mod per_process;
pub mod private_dir;
pub mod process;
pub mod progress;
pub mod wait;
pub mod worker_pool;

pub use exposition::MetricsExposition;
pub use histogram::{DurationDistribution, DurationHistogram};
pub use progress::{OperationStopped, ProgressMeter, ProgressReading};

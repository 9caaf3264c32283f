//! Floor 6: workloads and measurement, for `vellum bench` and for whoever wants figures of a directory or a store.
//!
//! Invariant: a bench removes what it made, however it ends, and nothing else ([`ground`], [`objects`]). Figures of a
//! row are those of each run, never an average alone. Deliberately absent: terminals, and rivals, which are measured by
//! the scripts in `bench`.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod access;
pub mod cluster;
pub mod compare;
pub mod engines;
pub mod error;
pub mod expectation;
pub mod filesystem;
pub mod ground;
pub mod html;
pub mod machine;
pub mod mdtest;
pub mod objects;
pub mod pipeline;
pub mod report;
pub mod statistics;
mod thread_group;

pub use error::{BenchError, Result};
pub use report::BenchReport;

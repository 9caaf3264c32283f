//! The data that both sides of a run share: entries, options, owners, paths.
//!
//! Invariant: plain data, equal on both hosts, except the names of owners, which each host looks up.

pub mod listing;
pub mod options;
pub mod owners;
pub(crate) mod path;

//! What both sides of a run know: entries, options, owners, paths.
//!
//! Invariant: plain data, the same on both hosts, but for the names of owners, which each host looks up.

pub mod listing;
pub mod options;
pub mod owners;
pub(crate) mod path;

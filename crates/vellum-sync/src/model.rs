//! What both sides of a run know: entries, options, owners, paths.

pub mod listing;
pub mod options;
pub mod owners;
pub(crate) mod path;

//! Metadata of files: reading it in one call, applying it in the order that the kernel's side effects demand.
//!
//! Invariant: what could not be applied is reported, never fatal, and never leaves a file with more privilege than
//! its record: set-id bits come last, and only for a file whose owner is the recorded one.

mod apply;
mod stat;

pub use apply::{
    AppliedMetadata, FreshFileDefaults, MetadataCaller, TargetMetadata, apply_fresh_metadata, apply_metadata,
};
pub use stat::FileStat;

#[cfg(test)]
mod tests;

//! Metadata of files: reading it by one call, and applying it in the order that side effects in the kernel require.
//!
//! Invariant: an attribute that cannot be applied is reported and does not end the operation, and no file gets more
//! privileges than its record has: set-id bits come last, and only for a file whose owner is the recorded one.

mod apply;
mod stat;

pub use apply::{
    AppliedMetadata, FreshFileDefaults, MetadataCaller, TargetMetadata, apply_fresh_metadata, apply_metadata,
};
pub use stat::{FileStat, file_kind_from_type};

#[cfg(test)]
mod tests;

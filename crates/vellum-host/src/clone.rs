//! Copying the content of one open file to another: sharing blocks where the filesystem can, in the kernel where it
//! cannot, by hand where it must; holes stay holes.
//!
//! Invariant: when a copy returns Ok the destination has exactly `len` bytes, equal to the source's as they were read.

mod copy;
mod segments;

pub use copy::{CloneError, CopyReport, CopyStrategy, clone_or_copy_content, copy_data};
pub use segments::{DataSegment, iter_data_segments};

#[cfg(test)]
mod tests;

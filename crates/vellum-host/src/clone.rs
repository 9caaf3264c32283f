//! Copying the content of one open file to another: by shared blocks where the filesystem supports them, otherwise in
//! the kernel, otherwise by reading and writing; holes stay holes.
//!
//! Invariant: if a copy returns Ok, the destination has exactly `len` bytes, equal to the source's as they were read.

mod copy;
mod segments;

pub use copy::{CloneError, CopyReport, CopyStrategy, can_share_blocks, clone_or_copy_content, copy_data};
pub use segments::{DataSegment, iter_data_segments};

#[cfg(test)]
mod tests;

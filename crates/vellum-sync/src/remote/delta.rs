//! What of a file the other side has already: signatures of old files, and new files in terms of them.
//!
//! The side with the old file cuts it into blocks and sends a [`FileSignature`]: a weak and a strong hash of each. The side
//! with the new file looks at it through a window of the same length, byte by byte ([`SignatureMatcher::scan_file`]), and sends what
//! was not found.
//!
//! Invariant: what a signature of a peer says costs time and memory in proportion to the file and the signature, never
//! to their product. A wrong match is found by the hash of the whole file, which goes along. Deliberately absent:
//! reading the old file; that is the receiver's affair.

mod rolling;
mod scan;
mod signature;
mod table;

pub use scan::{DeltaOperation, SignatureMatcher};
pub use signature::{ENCODED_MAX, FileSignature, SignatureError, choose_block_size};

#[cfg(test)]
mod tests;

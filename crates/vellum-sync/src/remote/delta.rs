//! Deltas: signatures of old files, and new files as ranges of old ones and new data.
//!
//! The side with the old file cuts it into blocks and sends a [`FileSignature`]: a weak and a strong hash of each
//! block. The side with the new file moves a window of the same length over it, byte by byte
//! ([`SignatureMatcher::scan_file`]), and sends the data that it does not find in the old file.
//!
//! Invariant: a peer's signature costs time and memory in proportion to the file and the signature, never to their
//! product. A wrong match is detected by the hash of the whole file, which is sent, too. Deliberately absent: reading
//! the old file, which the receiver does.

mod rolling;
mod scan;
mod signature;
mod table;

pub use scan::{DeltaOperation, SignatureMatcher};
pub use signature::{ENCODED_MAX, FileSignature, SignatureError, choose_block_size};

#[cfg(test)]
mod tests;

//! Access for fuzz targets to decoders that only read bytes with a valid checksum. Not for other callers.
//!
//! Invariant: takes any bytes, and panics only where a decoder broke a promise of its own.

use crate::embedded::fuzzing as decoders;

/// The first byte chooses: a record of the journal, frames of a checkpoint (each with its length before it), or a
/// block, an index or the end of a run.
///
/// # Panics
/// When a record that decodes encodes to other bytes.
pub fn fuzz_live_files(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind {
        0 => decoders::record(rest),
        1 => decoders::checkpoint(rest),
        2 => decoders::block(rest),
        3 => decoders::index(rest),
        _ => decoders::trailer(rest),
    }
}

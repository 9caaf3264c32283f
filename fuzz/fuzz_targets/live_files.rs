//! Frames of the journal and of checkpoints, and whole runs, of the live metadata. What stands behind a checksum gets a
//! right one first: damage is the checksum's to notice, hostile content is not.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_live::fuzzing::fuzz_live_files(bytes));

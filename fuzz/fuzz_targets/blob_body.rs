//! The body of a blob behind its seal: method, length, zstd frame.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_blob_body(bytes));

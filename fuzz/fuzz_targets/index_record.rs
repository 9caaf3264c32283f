//! An index object behind its seal, and the local run that is built from it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_index_body(bytes));

//! A claim of the right to write to a store with one writer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_writer_claim(bytes));

//! The listing of a published store.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_listing(bytes));

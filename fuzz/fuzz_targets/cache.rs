//! The files of a local cache.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_cache(bytes));

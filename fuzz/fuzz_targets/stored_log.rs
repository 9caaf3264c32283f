//! What an engine returns of a shared log: heads and appends.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_shared_log::fuzzing::stored_log(bytes));

//! The operations in a record of a shared log.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_shared_log::folder::fuzz_operations(bytes));

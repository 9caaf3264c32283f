//! A pack's header, its footer, and its table behind the seal.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_store::fuzzing::fuzz_pack(bytes));

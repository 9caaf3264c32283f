//! The identity of a store, behind its seal: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vellum_volume::fuzzing::fuzz_store_identity(bytes));

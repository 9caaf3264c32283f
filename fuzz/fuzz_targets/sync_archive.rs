//! An archive of a two-way synchronisation, behind its checksum: what decodes is the same after another round.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::two_way::{Archive, Pair};

fuzz_target!(|bytes: &[u8]| {
    let pair = Pair([0; 32]);
    let Ok(archive) = Archive::decode_body(bytes, pair) else { return };
    let encoded = archive.encode();
    let again = Archive::decode(&encoded, pair);
    assert!(again.is_ok_and(|again| again == archive));
});

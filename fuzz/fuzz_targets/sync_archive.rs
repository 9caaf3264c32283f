//! An archive of a two-way synchronisation, behind its checksum: what decodes is the same after another round.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::two_way::{TwoWayArchive, TwoWayPair};

fuzz_target!(|bytes: &[u8]| {
    let pair = TwoWayPair([0; 32]);
    let Ok(archive) = TwoWayArchive::decode_body(bytes, pair) else { return };
    let encoded = archive.encode();
    let again = TwoWayArchive::decode(&encoded, pair);
    assert!(again.is_ok_and(|again| again == archive));
});

//! The file of a local run. Its checksums are set right first: damage is theirs to notice, hostile content is not.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Where the header ends, and where in it the two checksums stand (docs/format.md, "Local runs").
const HEADER_LEN: usize = 192;
const BODY_HASH: std::ops::Range<usize> = 88..120;
const HEADER_HASH: std::ops::Range<usize> = 120..152;

fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    if let Some((header, body)) = file.split_at_mut_checked(HEADER_LEN) {
        header[BODY_HASH].copy_from_slice(blake3::hash(body).as_bytes());
        let hash = blake3::hash(&header[..HEADER_HASH.start]);
        header[HEADER_HASH].copy_from_slice(hash.as_bytes());
    }
    vellum_store::fuzzing::fuzz_local_run(&file);
});

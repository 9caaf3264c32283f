//! The list of absent paths, with its checksum set right: what decodes encodes to a list of the same paths.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_checkout::AbsentPaths;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    let Ok(list) = AbsentPaths::decode(&bytes) else { return };
    for path in list.iter() {
        assert_eq!(list.find_covering(path), Some(path));
    }
    let encoded = list.encode().expect("a list that was decoded is not too large");
    assert_eq!(AbsentPaths::decode(&encoded), Ok(list));
});

//! An extent: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::Extent;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(decoded) = Extent::decode(bytes) {
        assert_eq!(decoded.encode(), bytes);
    }
});

//! The filesystem's own record: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::value::SuperBlock;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(decoded) = SuperBlock::decode(bytes) {
        assert_eq!(decoded.encode(), bytes);
    }
});

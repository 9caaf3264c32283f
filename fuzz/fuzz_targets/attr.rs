//! An inode's attributes: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::InodeAttr;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(decoded) = InodeAttr::decode(bytes) {
        assert_eq!(decoded.encode(), bytes);
    }
});

//! An inode's attributes: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::Attr;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(decoded) = Attr::decode(bytes) {
        assert_eq!(decoded.encode(), bytes);
    }
});

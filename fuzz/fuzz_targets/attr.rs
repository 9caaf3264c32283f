//! An inode's attributes: what decodes encodes to the same bytes, with its content and without.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::{BareInodeAttr, InodeAttr};

fuzz_target!(|bytes: &[u8]| {
    let bare = BareInodeAttr::decode(bytes);
    match InodeAttr::decode(bytes) {
        Ok(decoded) => {
            assert_eq!(decoded.encode(), bytes);
            assert_eq!(bare, Ok(decoded.into()));
        }
        Err(error) => assert_eq!(bare, Err(error)),
    }
    if let Ok(bare) = BareInodeAttr::decode_bare(bytes) {
        assert_eq!(bare.encode(), bytes);
    }
});

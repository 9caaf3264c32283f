//! A key of the map: what parses is what the constructors make.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::{MapKey, MapKeyRef};

fuzz_target!(|bytes: &[u8]| {
    let Ok(parsed) = MapKeyRef::parse(bytes) else { return };
    let built = match parsed {
        MapKeyRef::Attr(ino) => MapKey::for_attr(ino),
        MapKeyRef::Dentry(dir, name) => MapKey::for_dentry(dir, name),
        MapKeyRef::Xattr(ino, name) => MapKey::for_xattr(ino, name),
        MapKeyRef::Extent(ino, offset) => MapKey::for_extent(ino, offset),
    };
    assert_eq!(built.as_bytes(), bytes);
});

//! A key of the map: what parses is what the constructors make.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_types::{Key, KeyRef};

fuzz_target!(|bytes: &[u8]| {
    let Ok(parsed) = KeyRef::parse(bytes) else { return };
    let built = match parsed {
        KeyRef::Attr(ino) => Key::attr(ino),
        KeyRef::Dentry(dir, name) => Key::dentry(dir, name),
        KeyRef::Xattr(ino, name) => Key::xattr(ino, name),
        KeyRef::Extent(ino, offset) => Key::extent(ino, offset),
    };
    assert_eq!(built.as_bytes(), bytes);
});

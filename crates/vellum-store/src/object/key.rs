//! Keys of objects: relative paths that cannot leave the store.
//!
//! Invariant: an `ObjectKey` is components joined by `/`; each is non-empty, does not begin with a dot and
//! holds only ASCII letters, digits, `-`, `_` and `.`. Names that begin with a dot belong to the store itself.

use std::fmt;

use crate::error::StoreError;

/// Longest key, bytes: the smallest limit among object services.
const KEY_LEN_MAX: usize = 1024;
/// Longest component, bytes: a file name.
const COMPONENT_MAX: usize = 255;
/// Most components in a key: twice what Vellum uses, so that walking a hostile directory is bounded.
pub(super) const DEPTH_MAX: usize = 8;

/// The key of an object, such as `packs/ab/ab01…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Box<str>);

impl ObjectKey {
    /// Checks a text.
    pub fn new(text: impl Into<String>) -> Result<Self, StoreError> {
        let text = text.into();
        if is_key_path(&text) { Ok(Self(text.into_boxed_str())) } else { Err(StoreError::Key(text)) }
    }

    /// A key made of hexadecimal and fixed words, which cannot be wrong.
    pub(crate) fn from_trusted(text: String) -> Self {
        debug_assert!(is_key_path(&text), "{text:?}");
        Self(text.into_boxed_str())
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// All but the last component; empty for a key of one.
    #[must_use]
    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for ObjectKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A folder as callers write it (`""`, `packs`, `packs/`), without its closing slash.
pub(super) fn check_folder(text: &str) -> Result<&str, StoreError> {
    let trimmed = text.strip_suffix('/').unwrap_or(text);
    if trimmed.is_empty() || is_key_path(trimmed) { Ok(trimmed) } else { Err(StoreError::Key(text.into())) }
}

fn is_key_path(text: &str) -> bool {
    text.len() <= KEY_LEN_MAX
        && text.split('/').count() <= DEPTH_MAX
        && text.split('/').all(|part| is_key_component(part.as_bytes()))
}

/// Whether a file name found in a store's directory can be part of a key.
pub(super) fn is_key_component(name: &[u8]) -> bool {
    (1..=COMPONENT_MAX).contains(&name.len())
        && !name.starts_with(b".")
        && name.iter().all(|byte| IS_KEY_BYTE[usize::from(*byte)])
}

/// Whether a byte may stand in a component. A table, because listings check every byte of very many keys.
const IS_KEY_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    // A constant cannot be computed with `for`.
    let mut byte = 0;
    while byte < 128 {
        let each = byte as u8;
        table[byte] = each.is_ascii_alphanumeric() || matches!(each, b'-' | b'_' | b'.');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_the_store() {
        let bad =
            ["", "/", "/etc/passwd", "..", "a/../b", "a//b", "a/", ".tmp/x", "a/.b", "a\\b", "a\0b", "ä"];
        for text in bad {
            assert!(ObjectKey::new(text).is_err(), "{text:?}");
        }
        assert!(ObjectKey::new("a/".repeat(DEPTH_MAX) + "a").is_err());
        assert!(ObjectKey::new("a".repeat(COMPONENT_MAX + 1)).is_err());
    }

    #[test]
    fn a_key_knows_its_folder_and_name() -> Result<(), StoreError> {
        let key = ObjectKey::new("packs/ab/ab01")?;
        assert_eq!((key.folder(), key.name()), ("packs/ab", "ab01"));
        let key = ObjectKey::new("config")?;
        assert_eq!((key.folder(), key.name()), ("", "config"));
        assert_eq!(check_folder("packs/")?, "packs");
        assert_eq!(check_folder("")?, "");
        assert!(check_folder("../x").is_err());
        Ok(())
    }
}

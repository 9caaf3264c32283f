//! Keys as paths of the tree.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::received_file::UPLOAD_NAME;

/// Longest key, bytes: that of S3.
pub const KEY_MAX: usize = 1024;
/// Longest name of a file or a directory, bytes.
const NAME_MAX: usize = 255;
/// The directory of a volume within a directory of files: no part of any tree.
const STATE_NAME: &str = ".vellum";

/// A key that can be a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectKey {
    text: String,
    path: PathBuf,
}

/// Why a key cannot be a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    /// It is longer than S3 or a name allows.
    TooLong,
    /// It has a name of no bytes, `.`, `..`, or a byte 0.
    NoPath,
    /// It is one that the gateway or the volume needs for itself.
    Reserved,
}

impl ObjectKey {
    /// Parses a key. One that ends in a slash stands for a directory.
    pub fn parse(key: &str) -> Result<Self, KeyRefusal> {
        if key.len() > KEY_MAX {
            return Err(KeyRefusal::TooLong);
        }
        let names = key.strip_suffix('/').unwrap_or(key);
        for name in names.split('/') {
            if matches!(name, "" | "." | "..") || name.contains('\0') {
                return Err(KeyRefusal::NoPath);
            }
            if name.len() > NAME_MAX {
                return Err(KeyRefusal::TooLong);
            }
        }
        if is_reserved(names.split('/').next().unwrap_or_default()) {
            return Err(KeyRefusal::Reserved);
        }
        let path = Path::new(OsStr::from_bytes(names.as_bytes())).to_path_buf();
        Ok(Self { text: key.to_owned(), path })
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path of the file or the directory, relative to the root of the tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it stands for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.text.ends_with('/')
    }
}

impl fmt::Display for KeyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "a key has at most 1,024 bytes, and a name in it 255",
            Self::NoPath => {
                "keys are paths here: no name in them is empty, '.' or '..', and there is no slash in front"
            }
            Self::Reserved => "names that begin with '.vellum' are not for objects",
        })
    }
}

/// Whether a name in the root of the tree is not for objects.
pub(super) fn is_reserved(name: &str) -> bool {
    name == STATE_NAME || name.starts_with(UPLOAD_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_or_refused() {
        for (key, path) in [
            ("a", "a"),
            ("a/b.c", "a/b.c"),
            ("a/", "a"),
            ("a/.vellum", "a/.vellum"),
            ("a\\b", "a\\b"),
            ("...", "..."),
        ] {
            let parsed = ObjectKey::parse(key);
            assert_eq!(parsed.as_ref().map(ObjectKey::path), Ok(Path::new(path)), "{key}");
            assert_eq!(parsed.map(|key| key.is_dir()), Ok(key.ends_with('/')));
        }
        for key in ["", "/", "//", "/a", "a//b", "a//", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a\0b"]
        {
            assert_eq!(ObjectKey::parse(key), Err(KeyRefusal::NoPath), "{key}");
        }
        for key in [".vellum", ".vellum/", ".vellum/state", ".vellum-upload-00/x"] {
            assert_eq!(ObjectKey::parse(key), Err(KeyRefusal::Reserved), "{key}");
        }
        let name = "n".repeat(NAME_MAX);
        assert!(ObjectKey::parse(&name).is_ok());
        for key in [format!("{name}n"), format!("a/{name}n"), "a/".repeat(KEY_MAX)] {
            assert_eq!(ObjectKey::parse(&key), Err(KeyRefusal::TooLong), "{key}");
        }
    }
}

//! Names, which may be bytes that are no text.

use std::path::Path;

use serde::Serialize;

/// Bytes of a name: text where they are UTF-8; else the hexadecimal bytes beside a text that resembles them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NameJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl NameJson {
    /// A path or name; the root of a worktree is the empty one.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        // Linux allows any bytes but '/' and NUL in a name, and JSON only text.
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { path: text.into(), path_hex: None },
            Err(_) => Self {
                // This text is for people: different names may have the same one, so that programs need the bytes.
                path: String::from_utf8_lossy(bytes).into_owned(),
                path_hex: Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            },
        }
    }
}

impl From<&Path> for NameJson {
    fn from(path: &Path) -> Self {
        Self::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let json = |name: &[u8]| serde_json::to_string(&NameJson::new(name)).unwrap();
        assert_eq!(json("ä".as_bytes()), r#"{"path":"ä"}"#);
        assert_eq!(json(b"a\xff"), "{\"path\":\"a\u{fffd}\",\"path_hex\":\"61ff\"}");
    }
}

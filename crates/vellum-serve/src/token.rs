//! The token that every request for content has to show.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Result, ServeError};
use crate::private_file::{NO_FOLLOW, describe_open_error, open_private_file, read_private_file};

/// Bytes of a token: nobody guesses it.
const TOKEN_LEN: usize = 32;

/// A token, in hexadecimal.
#[derive(Clone)]
pub struct AccessToken {
    text: String,
    /// Of the text: hashes are compared, which says nothing of where two tokens differ.
    hash: blake3::Hash,
}

impl AccessToken {
    /// A new one.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; TOKEN_LEN];
        getrandom::fill(&mut bytes)
            .map_err(|error| ServeError::for_action("get random bytes")(error.into()))?;
        let mut text = String::with_capacity(TOKEN_LEN * 2);
        for byte in bytes {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self::from_text(text))
    }

    fn from_text(text: String) -> Self {
        Self { hash: blake3::hash(text.as_bytes()), text }
    }

    /// The one in a file, which is made with a new one if it is missing. Fails if others could read or replace the file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let refuse = |reason: String| ServeError::TokenFile { path: path.into(), reason };
        match open_private_file(path) {
            Ok(file) => Self::read_file(file, refuse),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let token = Self::generate()?;
                let made = OpenOptions::new()
                    .write(true)
                    // Of two processes that start at once, one makes the file; the other one fails instead of replacing a
                    // token that is shown.
                    .create_new(true)
                    .mode(0o600)
                    .custom_flags(NO_FOLLOW)
                    .open(path)
                    .and_then(|mut file| writeln!(file, "{}", token.text));
                made.map_err(|error| refuse(error.to_string()))?;
                Ok(token)
            }
            Err(error) => Err(refuse(describe_open_error(&error))),
        }
    }

    fn read_file(file: File, refuse: impl Fn(String) -> ServeError) -> Result<Self> {
        // More than a token is no token.
        let text = read_private_file(file, 1024).map_err(&refuse)?;
        let text = text.trim().to_owned();
        if text.len() != TOKEN_LEN * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refuse(format!("it does not hold {} hexadecimal digits", TOKEN_LEN * 2)));
        }
        Ok(Self::from_text(text))
    }

    /// As it stands in an address.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// Whether this is the token. Takes the same time for every wrong one of a length.
    #[must_use]
    pub fn matches(&self, shown: &[u8]) -> bool {
        // Hashes compare in constant time.
        blake3::hash(shown) == self.hash
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_whole_token_matches() {
        let token = AccessToken::generate().unwrap();
        assert!(token.matches(token.as_text().as_bytes()));
        assert!(!token.matches(&token.as_text().as_bytes()[1..]));
        assert!(!token.matches(b""));
        assert_ne!(token.as_text(), AccessToken::generate().unwrap().as_text());
    }

    #[test]
    fn a_token_file_is_made_for_its_owner_and_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let made = AccessToken::from_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(AccessToken::from_file(&path).unwrap().as_text(), made.as_text());
    }

    #[test]
    fn token_files_that_others_could_use_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        AccessToken::from_file(&path).unwrap();
        let refusal = |path: &Path| AccessToken::from_file(path).err().unwrap().to_string();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refusal(&link).contains("symlink"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&path).contains("0644"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "abc\n").unwrap();
        assert!(refusal(&path).contains("64 hexadecimal digits"));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(refusal(&path).contains("another user"));
        }
    }
}

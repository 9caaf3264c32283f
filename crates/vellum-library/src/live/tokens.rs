//! The tokens with which a live state may have changed its worktree last: one, or several if taking the lease was
//! interrupted.
//!
//! Invariant: a token is written here before it is in the store, so that a live state always recognises its own
//! changes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use vellum_types::LookupResult;
use vellum_volume::lease::LeaseToken;

use super::{OpenError, Result};

const FILE: &str = "tokens";
const TEMPORARY: &str = "tokens.new";

/// The file that holds them.
pub struct TokenFile {
    dir: PathBuf,
}

impl TokenFile {
    pub fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns all tokens; none if the live state is new.
    pub fn load_tokens(&self) -> Result<Vec<LeaseToken>> {
        let path = self.dir.join(FILE);
        let Some(text) =
            fs::read_to_string(&path).none_if_missing().map_err(OpenError::io_error("read", &path))?
        else {
            return Ok(Vec::new());
        };
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "it does not hold tokens");
        // No line is passed over: with a token missing, the process would take its own changes for another's and
        // refuse to go on.
        let tokens = text.lines().map(|line| line.parse().map_err(|_| broken())).collect::<io::Result<_>>();
        tokens.map_err(OpenError::io_error("read", &path))
    }

    /// Replaces them, durably.
    pub fn save_tokens(&self, tokens: &[LeaseToken]) -> Result<()> {
        let path = self.dir.join(FILE);
        let temporary = self.dir.join(TEMPORARY);
        let text: String = tokens.iter().map(|token| format!("{token}\n")).collect();
        let write = || {
            let mut file = File::create(&temporary)?;
            super::set_owner_from_ancestor(&temporary)?;
            file.write_all(text.as_bytes())?;
            // Content before name: a crash must not leave an empty file under the name.
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            // The name must be durable before the token is in the store.
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(OpenError::io_error("write", &path))
    }
}

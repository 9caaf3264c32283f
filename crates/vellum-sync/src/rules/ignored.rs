//! `.gitignore` and `.vellumignore`: files of patterns in git's language, in any directory.
//!
//! The file nearest to an entry decides first; in one directory `.vellumignore` comes before `.gitignore`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::error::RuleError;

/// The patterns of one file, and the files above it.
#[derive(Debug)]
pub(super) struct SyncIgnoreFile {
    matcher: Gitignore,
    /// Where, in a path, the part begins that its patterns are about.
    offset: usize,
    outer: Option<Arc<SyncIgnoreFile>>,
}

impl SyncIgnoreFile {
    /// Puts the patterns of `text`, a file in the directory whose content begins at `offset` in paths, before `outer`.
    pub(super) fn new(
        name: &[u8],
        text: &[u8],
        offset: usize,
        outer: Option<Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, RuleError> {
        let mut builder = GitignoreBuilder::new("");
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n') {
            let line =
                std::str::from_utf8(line).map_err(|_| RuleError::file_error(name, "a line is not UTF-8"))?;
            builder.add_line(None, line).map_err(|error| RuleError::file_error(name, error.to_string()))?;
        }
        let matcher = builder.build().map_err(|error| RuleError::file_error(name, error.to_string()))?;
        if matcher.is_empty() {
            return Ok(outer);
        }
        Ok(Some(Arc::new(Self { matcher, offset, outer })))
    }

    /// Whether the entry at `path` is left out.
    pub(super) fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        let mut next = Some(self);
        while let Some(file) = next {
            let below = path.get(file.offset..).unwrap_or_default();
            let verdict = file.matcher.matched(Path::new(OsStr::from_bytes(below)), is_dir);
            if !verdict.is_none() {
                return verdict.is_ignore();
            }
            next = file.outer.as_deref();
        }
        false
    }
}

impl Drop for SyncIgnoreFile {
    /// Takes the chain apart in a loop: a tree with such a file on each of very many levels must not use up the stack.
    fn drop(&mut self) {
        let mut next = self.outer.take();
        while let Some(file) = next {
            next = Arc::into_inner(file).and_then(|mut file| file.outer.take());
        }
    }
}

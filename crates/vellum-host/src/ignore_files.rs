//! Ignore files (`.vellumignore`, `.gitignore`), with the patterns of gitignore.
//!
//! Invariant: the file nearest to an entry decides first; of several in one directory, the last added one. Entries
//! below an excluded directory are not visited, so that no pattern can include them again. Deliberately absent: which
//! files are read, and how unparsable lines are handled.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The patterns of one file, and those of the files above it.
#[derive(Debug)]
pub struct IgnorePatterns {
    matcher: Gitignore,
    /// The offset in a path at which the part begins that the patterns are matched against.
    offset: usize,
    outer: Option<Arc<IgnorePatterns>>,
}

/// The patterns of a directory, with the problems of its file.
#[derive(Debug)]
pub struct ParsedIgnoreFile {
    /// The patterns of the file and of those above it; None if there are none.
    pub patterns: Option<Arc<IgnorePatterns>>,
    /// The problems; their lines are ignored.
    pub problems: Vec<IgnoreFileProblem>,
}

/// A problem in an ignore file.
#[derive(Debug)]
pub struct IgnoreFileProblem {
    /// The line; None if all patterns together are too large.
    pub line: Option<Vec<u8>>,
    /// The cause.
    pub cause: IgnoreFileError,
}

/// Why a pattern cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum IgnoreFileError {
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// It is malformed.
    #[error(transparent)]
    Pattern(ignore::Error),
}

impl IgnorePatterns {
    /// Puts the patterns of a file before those of `outer`. `offset` is the length of the prefix of entries' paths up
    /// to the file's directory.
    #[must_use]
    pub fn parse_file(text: &[u8], offset: usize, outer: Option<Arc<Self>>) -> ParsedIgnoreFile {
        // Without a root: what is matched is the part of a path below the directory of the file.
        let mut builder = GitignoreBuilder::new("");
        let mut problems = Vec::new();
        // Editors on Windows write a byte order mark, which would become a part of the first pattern.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n') {
            let added = std::str::from_utf8(line).map_err(|_| IgnoreFileError::NotUtf8);
            let added = added.and_then(|line| builder.add_line(None, line).map_err(IgnoreFileError::Pattern));
            if let Err(cause) = added {
                problems.push(IgnoreFileProblem { line: Some(line.to_vec()), cause });
            }
        }
        let patterns = match builder.build() {
            Ok(matcher) if matcher.is_empty() => outer,
            Ok(matcher) => Some(Arc::new(Self { matcher, offset, outer })),
            Err(error) => {
                problems.push(IgnoreFileProblem { line: None, cause: IgnoreFileError::Pattern(error) });
                outer
            }
        };
        ParsedIgnoreFile { patterns, problems }
    }

    /// Whether the entry at `path` is excluded.
    #[must_use]
    pub fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        self.find_verdict(path, is_dir).unwrap_or(false)
    }

    /// Whether the entry at `path` is excluded, if a pattern says so or says the contrary.
    #[must_use]
    pub fn find_verdict(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let mut next = Some(self);
        while let Some(file) = next {
            let below = path.get(file.offset..).unwrap_or_default();
            // The nearest file decides, by a pattern that ignores or by one that includes; otherwise the file
            // above is asked.
            let verdict = file.matcher.matched(Path::new(OsStr::from_bytes(below)), is_dir);
            if !verdict.is_none() {
                return Some(verdict.is_ignore());
            }
            next = file.outer.as_deref();
        }
        None
    }
}

impl Drop for IgnorePatterns {
    /// Drops the chain in a loop: a tree with such a file on each of very many levels must not exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.outer.take();
        while let Some(file) = next {
            next = Arc::into_inner(file).and_then(|mut file| file.outer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_a_million_files_takes_no_stack() {
        let mut patterns = None;
        for _ in 0..1_000_000 {
            patterns =
                Some(Arc::new(IgnorePatterns { matcher: Gitignore::empty(), offset: 0, outer: patterns }));
        }
        drop(patterns);
    }
}

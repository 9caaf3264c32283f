//! Files that leave entries out (`.vellumignore`, `.gitignore`), with the patterns of gitignore.
//!
//! Invariant: the file nearest to an entry decides first; of several in one directory, the one that was added last. What
//! is below a directory that is left out is not looked at, so that no pattern can bring it back. Deliberately absent:
//! which files are read, and what is done about lines that are not understood.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The patterns of one file, and the files above it.
#[derive(Debug)]
pub struct IgnorePatterns {
    matcher: Gitignore,
    /// Where, in a path, the part begins that the patterns are about.
    offset: usize,
    outer: Option<Arc<IgnorePatterns>>,
}

/// The patterns that hold in a directory, with the part of its file that is not understood.
#[derive(Debug)]
pub struct ParsedIgnoreFile {
    /// Those of the file and of the files above it; `None` if there are none.
    pub patterns: Option<Arc<IgnorePatterns>>,
    /// What was left out.
    pub problems: Vec<IgnoreFileProblem>,
}

/// Something in a file that is not understood.
#[derive(Debug)]
pub struct IgnoreFileProblem {
    /// The line; `None`: all lines together make a pattern that is too large.
    pub line: Option<Vec<u8>>,
    /// What is wrong with it.
    pub cause: IgnoreFileError,
}

/// Why a pattern is not understood.
#[derive(Debug, thiserror::Error)]
pub enum IgnoreFileError {
    /// Patterns are text.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// The pattern is none.
    #[error(transparent)]
    Pattern(ignore::Error),
}

impl IgnorePatterns {
    /// Puts the patterns of a file before those of `outer`. `offset` is where the names in the file's directory begin in
    /// the paths of entries.
    #[must_use]
    pub fn parse_file(text: &[u8], offset: usize, outer: Option<Arc<Self>>) -> ParsedIgnoreFile {
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

    /// Whether the entry at `path` is left out.
    #[must_use]
    pub fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        let mut next = Some(self);
        while let Some(file) = next {
            let below = path.get(file.offset..).unwrap_or_default();
            // The nearest file decides, by a pattern that ignores or by one that includes; otherwise the file
            // above is asked.
            let verdict = file.matcher.matched(Path::new(OsStr::from_bytes(below)), is_dir);
            if !verdict.is_none() {
                return verdict.is_ignore();
            }
            next = file.outer.as_deref();
        }
        false
    }
}

impl Drop for IgnorePatterns {
    /// Takes the chain apart in a loop: a tree with such a file on each of very many levels must not use up the stack.
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

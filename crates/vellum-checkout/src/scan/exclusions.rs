//! What a scan leaves out on purpose: what rule files say, and what a command says beside them.

use std::io::Read;
use std::sync::Arc;

use vellum_host::beneath::HeldDir;
use vellum_host::escape::EscapedPath;
use vellum_host::ignore_files::{IgnorePatterns, ParsedIgnoreFile};

use super::rules::DEFAULT_RULES_FILE;

/// The file that marks the directory it lies in as a cache (<https://bford.info/cachedir/>).
pub(super) const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
/// How that file begins; another file of this name marks nothing.
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// What a scan leaves out.
#[derive(Debug, Clone)]
pub struct ScanExclusions {
    /// Names of the files whose rules are applied; of several in one directory, the last one decides first.
    pub rule_files: Vec<String>,
    /// Patterns that decide before all rule files.
    pub patterns: Option<Arc<IgnorePatterns>>,
    /// Leave out what is in directories of other filesystems than the root, or the selected path, is on.
    pub other_file_systems: bool,
    /// Leave out what is in directories marked as caches, but for the mark.
    pub caches: bool,
}

impl Default for ScanExclusions {
    fn default() -> Self {
        Self {
            rule_files: vec![DEFAULT_RULES_FILE.into()],
            patterns: None,
            other_file_systems: false,
            caches: false,
        }
    }
}

impl ScanExclusions {
    /// Whether the rules in files of this name are applied.
    #[must_use]
    pub fn is_rule_file(&self, name: &[u8]) -> bool {
        self.rule_files.iter().any(|file| file.as_bytes() == name)
    }
}

/// Parses patterns of gitignore that are relative to the root of a scan. Returns a message about the first that is none.
pub fn parse_exclude_patterns(typed: &[String]) -> Result<Option<Arc<IgnorePatterns>>, String> {
    for pattern in typed {
        // The patterns become the lines of one text, in which a line break would make two of one.
        if pattern.contains('\n') {
            return Err(format!("'{}' has a line break in it", EscapedPath(pattern.as_bytes())));
        }
        // It would exclude nothing, without a word.
        if pattern.starts_with('#') {
            return Err(format!("'{pattern}' is a comment in the syntax of .gitignore: type '\\{pattern}'"));
        }
        if pattern.trim().is_empty() {
            return Err("an empty pattern excludes nothing".into());
        }
    }
    let text = typed.join("\n");
    let ParsedIgnoreFile { patterns, problems } = IgnorePatterns::parse_file(text.as_bytes(), 0, None);
    match problems.first() {
        None => Ok(patterns),
        Some(problem) => Err(match &problem.line {
            Some(line) => format!("'{}': {}", EscapedPath(line), problem.cause),
            None => problem.cause.to_string(),
        }),
    }
}

/// Whether a directory is marked as a cache. One whose mark cannot be read is none.
pub(super) fn is_cache_dir(dir: &HeldDir) -> bool {
    let Ok(opened) = dir.open_file(CACHE_TAG) else { return false };
    let mut start = [0; CACHE_SIGNATURE.len()];
    (&opened.file).read_exact(&mut start).is_ok() && start == CACHE_SIGNATURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_would_exclude_nothing_are_refused() {
        let parse = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|it| (*it).to_owned()).collect();
            parse_exclude_patterns(&patterns)
        };
        assert!(parse(&[]).is_ok_and(|none| none.is_none()));
        assert!(parse(&["*.o", "!keep.o"]).is_ok_and(|some| some.is_some()));
        for wrong in ["", "  ", "#notes", "a\nb", "[z-a]"] {
            assert!(parse(&["*.o", wrong]).is_err(), "{wrong:?}");
        }
    }
}

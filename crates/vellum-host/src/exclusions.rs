//! What a command leaves out besides what ignore files say: typed patterns, and directories marked as caches.
//!
//! Deliberately absent: how a directory is read, which plain directories and trees in a store do differently.

use std::sync::Arc;

use crate::escape::EscapedPath;
use crate::ignore_files::{IgnorePatterns, ParsedIgnoreFile};

/// The file that marks the directory it lies in as a cache (<https://bford.info/cachedir/>).
pub const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
/// How that file begins; another file of this name marks nothing.
pub const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Parses patterns of gitignore that are relative to the root of what is recorded. Returns a message about the first that is none.
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

//! Errors in rules.

use thiserror::Error;
use vellum_host::escape::EscapedPath;

use crate::model::path::join_path;

/// Longest rule file in a tree, bytes: rules written by hand are much shorter, and whoever can write in a tree must not
/// make a run take memory without limit.
pub(crate) const RULE_FILE_MAX: u64 = 4 << 20;

/// Why rules cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleError {
    /// A rule cannot be parsed.
    #[error("the filter rule '{}' is not understood: {why}", EscapedPath(.text))]
    Syntax {
        /// The rule.
        text: Vec<u8>,
        /// The problem.
        why: &'static str,
    },
    /// A rule file cannot be read.
    #[error("the rules in '{}' cannot be read: {why}", EscapedPath(.name))]
    File {
        /// The file.
        name: Vec<u8>,
        /// The problem.
        why: String,
    },
    /// A rule file in a tree is too long.
    #[error("the rule file '{}' is longer than {} MiB: shorten it", EscapedPath(.path), RULE_FILE_MAX >> 20)]
    TooLong {
        /// The file.
        path: Vec<u8>,
    },
    /// A list of rules is too long.
    #[error("there are more than {limit} {what}")]
    TooMany {
        /// The items.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl RuleError {
    pub(super) fn syntax_error(text: &[u8], why: &'static str) -> Self {
        Self::Syntax { text: text.to_vec(), why }
    }

    pub(super) fn file_error(name: &[u8], why: impl Into<String>) -> Self {
        Self::File { name: name.to_vec(), why: why.into() }
    }

    /// Refuses a rule file of this many bytes if it is too long. The rules in its first part are not enough: the others
    /// could exclude or protect something.
    pub(crate) fn check_file_len(name: &[u8], len: u64) -> Result<(), Self> {
        if len > RULE_FILE_MAX { Err(Self::TooLong { path: name.to_vec() }) } else { Ok(()) }
    }

    /// The same error, with the directory of the file.
    pub(super) fn with_directory(self, dir: &[u8]) -> Self {
        match self {
            Self::TooLong { path } => Self::TooLong { path: join_path(dir, &path) },
            other => other,
        }
    }

    /// The same error, with the complete rule in which it was found.
    pub(super) fn with_rule_text(self, whole: &[u8]) -> Self {
        match self {
            Self::Syntax { why, .. } => Self::syntax_error(whole, why),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_file_that_is_too_long_is_named_with_its_limit() {
        assert_eq!(RuleError::check_file_len(b".rules", RULE_FILE_MAX), Ok(()));
        let error = RuleError::check_file_len(b".rules", RULE_FILE_MAX + 1).unwrap_err();
        let message = error.with_directory(b"a/b").to_string();
        assert_eq!(message, "the rule file 'a/b/.rules' is longer than 4 MiB: shorten it");
    }
}

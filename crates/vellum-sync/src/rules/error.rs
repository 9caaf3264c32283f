//! Errors in rules.

use thiserror::Error;
use vellum_host::escape::EscapedPath;

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

    /// The same error, with the complete rule in which it was found.
    pub(super) fn with_rule_text(self, whole: &[u8]) -> Self {
        match self {
            Self::Syntax { why, .. } => Self::syntax_error(whole, why),
            other => other,
        }
    }
}

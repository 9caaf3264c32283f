//! What failed, and the codes of failures.

use serde::Serialize;
use vellum_types::ErrorKind;

/// The result of what failed.
#[derive(Serialize)]
pub struct FailureJson {
    error: FailureBodyJson,
}

#[derive(Serialize)]
struct FailureBodyJson {
    code: &'static str,
    /// The same, by the name that it had first.
    kind: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl FailureJson {
    /// A failure with this code.
    #[must_use]
    pub fn new(code: &'static str, message: String, hint: Option<String>) -> Self {
        // Both stay: programs that were written for the first name still read it.
        Self { error: FailureBodyJson { code, kind: code, message, hint } }
    }
}

/// The code of a kind in JSON, which never changes. docs/json.md lists them.
#[must_use]
pub fn error_code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Denied => "denied",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Usage => "usage",
        ErrorKind::Interrupted => "interrupted",
        ErrorKind::Io => "io",
    }
}

//! Problems of a scan.

use std::fmt;

use vellum_host::beneath::BeneathError;
use vellum_host::escape::EscapedPath;

/// A problem with one path.
#[derive(Debug)]
pub struct ScanProblem {
    /// Relative to the root of the scan; empty for the root.
    pub path: Vec<u8>,
    /// The problem.
    pub cause: ScanProblemCause,
}

/// The kinds of problems.
#[derive(Debug, thiserror::Error)]
pub enum ScanProblemCause {
    /// The directory cannot be read, so its entries are unknown.
    #[error("its entries cannot be read")]
    UnreadableDir(#[source] BeneathError),
    /// The entry cannot be examined.
    #[error("it cannot be examined")]
    Unexaminable(#[source] BeneathError),
    /// It was replaced repeatedly while it was being examined.
    #[error("it kept changing while it was being looked at")]
    Restless,
    /// A rule of an ignore file cannot be parsed, or the file cannot be read.
    #[error("its rules are not fully applied: {0}")]
    Rules(String),
}

impl ScanProblem {
    /// Whether the tree may lack entries because of it. Then an absent entry need not have been deleted.
    #[must_use]
    pub fn can_hide_entries(&self) -> bool {
        match self.cause {
            ScanProblemCause::UnreadableDir(_)
            | ScanProblemCause::Unexaminable(_)
            | ScanProblemCause::Restless => true,
            ScanProblemCause::Rules(_) => false,
        }
    }
}

impl fmt::Display for ScanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': {}", EscapedPath(if self.path.is_empty() { b"." } else { &self.path }), self.cause)
    }
}

//! Problems of a scan.

use std::fmt;

use vellum_host::beneath::BeneathError;
use vellum_host::escape::EscapedPath;

/// Something about one path that the user should know.
#[derive(Debug)]
pub struct ScanProblem {
    /// Relative to the root of the scan; empty for the root.
    pub path: Vec<u8>,
    /// What about it.
    pub cause: ScanProblemCause,
}

/// What is the matter with a path.
#[derive(Debug, thiserror::Error)]
pub enum ScanProblemCause {
    /// The directory cannot be read: nothing is known of its entries.
    #[error("its entries cannot be read")]
    UnreadableDir(#[source] BeneathError),
    /// The entry cannot be examined.
    #[error("it cannot be examined")]
    Unexaminable(#[source] BeneathError),
    /// It kept being replaced while it was looked at.
    #[error("it kept changing while it was being looked at")]
    Restless,
    /// A rule of a `.vellumignore` file is not understood, or the file itself cannot be read.
    #[error("its rules are not fully applied: {0}")]
    Rules(String),
}

impl ScanProblem {
    /// Whether entries may be missing from the tree because of it. If so, absence proves nothing: deletes must not
    /// be concluded from it.
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

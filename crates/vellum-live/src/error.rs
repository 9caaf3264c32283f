//! Errors of live metadata.

use vellum_types::ErrorKind;

/// A failure to read or change live metadata.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The body of a transaction gave up: nothing was changed. The body itself knows why.
    #[error("the transaction was abandoned")]
    Abandoned,
    /// A file of the engine could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, a verb.
        action: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Stored bytes are not what was written.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// An earlier write or flush failed: what is in memory may not be on the disk, so nothing more is acknowledged.
    #[error("an earlier write failed ({0}); nothing more is accepted until the worktree is mounted again")]
    Poisoned(String),
    /// A key under a frozen prefix was to be changed. Nothing was.
    #[error("a key under a frozen prefix cannot change: {0:02x?}")]
    Frozen(Vec<u8>),
    /// The engine keeps nothing in a directory, so that none can be made of it.
    #[error("this engine keeps nothing in a directory")]
    NoDirectory,
    /// Another process has it open.
    #[error("{0} is in use by another process")]
    InUse(String),
}

impl LiveError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Abandoned => ErrorKind::Interrupted,
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Poisoned(_) => ErrorKind::Io,
            Self::Frozen(_) | Self::InUse(_) => ErrorKind::Conflict,
            Self::NoDirectory => ErrorKind::Unsupported,
        }
    }
}

//! Errors of the shared log.

use vellum_types::ErrorKind;

use crate::log::{LogEpoch, LogIncarnation, LogPosition};

/// A failure to read or extend the shared log.
#[derive(Debug, thiserror::Error)]
pub enum SharedLogError {
    /// Another server has claimed the log: nothing was appended, and nothing will be under this epoch.
    #[error("another server has claimed the log: its epoch is {current}, this one's was {epoch}", current = .current.0, epoch = .epoch.0)]
    Fenced {
        /// The epoch of the request.
        epoch: LogEpoch,
        /// The epoch of the log.
        current: LogEpoch,
    },
    /// The log ends elsewhere: an engine that failed over to an old copy, or an append whose answer was lost. Nothing
    /// was appended.
    #[error("the log ends at {end}, not at {at}", end = .end.0, at = .at.0)]
    Moved {
        /// Where the request wanted to append.
        at: LogPosition,
        /// Where the log ends.
        end: LogPosition,
    },
    /// The engine has another log, or none, where this one was: it was emptied, or it is another engine.
    #[error("the log {expected} is gone: {found}", found = found.as_ref().map_or("the engine has none".to_owned(), |found| format!("the engine has {found}")))]
    Lost {
        /// The log that was expected.
        expected: LogIncarnation,
        /// What is there, if anything.
        found: Option<LogIncarnation>,
    },
    /// The engine has no log of the worktree, and nothing is known of one that it should have.
    #[error("{engine} has no log of this worktree")]
    NoLog {
        /// The engine, as messages show it.
        engine: String,
    },
    /// More bytes than an append may have: nothing was appended.
    #[error("{len} bytes are too many for one append: it may have {max} at most", max = crate::log::APPEND_MAX)]
    Oversized {
        /// Bytes of the append.
        len: usize,
    },
    /// A position before the oldest record that is kept.
    #[error("the log begins at {start}; what stood at {from} was discarded", start = .start.0, from = .from.0)]
    Discarded {
        /// Where the request wanted to read.
        from: LogPosition,
        /// Where the log begins.
        start: LogPosition,
    },
    /// The engine has no room.
    #[error("{engine} has no room for the log: {reason}")]
    Full {
        /// The engine, as messages show it.
        engine: String,
        /// What it says.
        reason: String,
    },
    /// The engine cannot keep what it is given: it evicts, has no persistence, or is too old.
    #[error("{engine} cannot hold the log: {reason}")]
    Unfit {
        /// The engine, as messages show it.
        engine: String,
        /// Why not, and what to change.
        reason: String,
    },
    /// The engine does not answer, or answers with an error that may pass.
    #[error("{engine} cannot be reached: {reason}")]
    Unreachable {
        /// The engine, as messages show it.
        engine: String,
        /// Why.
        reason: String,
    },
    /// What the engine returned is not what was written.
    #[error("the log in {engine} is damaged: {reason}")]
    Damaged {
        /// The engine, as messages show it.
        engine: String,
        /// What is wrong.
        reason: String,
    },
}

impl SharedLogError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Fenced { .. } | Self::Moved { .. } => ErrorKind::Conflict,
            Self::Lost { .. } | Self::NoLog { .. } | Self::Discarded { .. } => ErrorKind::NotFound,
            Self::Oversized { .. } => ErrorKind::Usage,
            Self::Full { .. } => ErrorKind::NoSpace,
            Self::Unfit { .. } => ErrorKind::Unsupported,
            Self::Unreachable { .. } => ErrorKind::Io,
            Self::Damaged { .. } => ErrorKind::Corrupt,
        }
    }
}

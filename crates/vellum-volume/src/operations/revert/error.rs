//! Why an operation is not taken back.

use vellum_types::{ErrorKind, SnapshotId};

use crate::operations::RevertDirection;

/// An operation that is not taken back, or not carried out once more. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevertError {
    /// No operation is left.
    #[error("there is no operation to undo")]
    NothingToUndo,
    /// No operation was taken back, or others came since.
    #[error("there is nothing to redo: no operation was undone since the last one")]
    NothingToRedo,
    /// There is no operation of this number.
    #[error("there is no operation {number} of worktree '{worktree}'")]
    NoSuchOperation {
        /// The worktree.
        worktree: String,
        /// Its number.
        number: u64,
    },
    /// All is as it would be afterwards.
    #[error(
        "nothing is left to {} of operation {operation}",
        match direction { RevertDirection::Undo => "undo", RevertDirection::Redo => "redo" }
    )]
    NothingLeft {
        /// The operation.
        operation: String,
        /// What was asked for.
        direction: RevertDirection,
    },
    /// What it did cannot be taken back by any means.
    #[error("operation {operation} cannot be undone: {reason}")]
    Impossible {
        /// The operation.
        operation: String,
        /// Why not.
        reason: String,
    },
    /// What it changed was changed by another one since.
    #[error("operation {operation} cannot be undone: {subject} was changed since, {}", describe_later(later.as_deref()))]
    ChangedSince {
        /// The operation.
        operation: String,
        /// What it had changed.
        subject: String,
        /// The first one that changed it afterwards, if it is recorded.
        later: Option<String>,
    },
    /// A collection has taken what a forgotten snapshot needs.
    #[error(
        "snapshot {snapshot} cannot be brought back: 'gc' has deleted, or is about to delete, a part of what it needs"
    )]
    Collected {
        /// The snapshot.
        snapshot: SnapshotId,
    },
}

fn describe_later(later: Option<&str>) -> String {
    later.map_or_else(|| "without a record".into(), |later| format!("by operation {later}"))
}

impl RevertError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NothingToUndo | Self::NothingToRedo | Self::NoSuchOperation { .. } => ErrorKind::NotFound,
            Self::NothingLeft { .. } | Self::Impossible { .. } => ErrorKind::Usage,
            Self::ChangedSince { .. } | Self::Collected { .. } => ErrorKind::Conflict,
        }
    }
}

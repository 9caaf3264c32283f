//! What can go wrong with a file operation, and the error number that a program sees.

use rustix::io::Errno;
use vellum_store::{BlobError, StoreError};
use vellum_types::{DecodeError, ErrorKind};
use vellum_volume::VolumeError;

/// Result of a file operation.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// A failure of a file operation.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// A refusal that POSIX describes; the number says all.
    #[error("{}", std::io::Error::from(*.0))]
    Posix(Errno),
    /// The live metadata failed.
    #[error(transparent)]
    Live(#[from] vellum_live::LiveError),
    /// The volume or its store failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A tree could not be read.
    #[error(transparent)]
    Map(#[from] vellum_map::MapError),
    /// What stands under a key of the map is not what should stand there.
    #[error("{what} cannot be read: {source}")]
    Decode {
        /// What was read.
        what: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The write log could not be read or written.
    #[error("cannot {action} the write log {path}: {source}")]
    Log {
        /// What was tried, a verb.
        action: &'static str,
        /// The segment.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A path was named of which the directory is gone.
    #[error("the directory that held '{0}' is gone: name that directory to record what became of it")]
    ParentGone(String),
    /// A path was to be restored that does not exist and did not.
    #[error("'{path}' is neither in the worktree nor in snapshot {snapshot}")]
    PathNowhere {
        /// The path.
        path: String,
        /// The beginning of the snapshot's id.
        snapshot: String,
    },
    /// A pattern of what is to be left out is none.
    #[error("cannot exclude {0}")]
    BadPattern(String),
    /// Files that no snapshot holds stand where the snapshot has others.
    #[error(
        "{} would be overwritten or removed, and no snapshot can save it first: an option of the last snapshot leaves it out",
        .0.join(", ")
    )]
    InTheWay(Vec<String>),
    /// An entry of the trash was to get a name that is taken.
    #[error("'{0}' exists: nothing was restored")]
    NameTaken(String),
    /// The trash does not have what was to be restored.
    #[error("the trash has no entry '{0}'")]
    NotInTrash(String),
    /// The worktree was to move on from a snapshot, and holds something else by now.
    #[error("the worktree was changed meanwhile")]
    ChangedMeanwhile,
    /// The tree contradicts itself.
    #[error("the tree is damaged: {0}")]
    BadTree(String),
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl FsError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Posix(errno) => ErrorKind::from_io_error(&(*errno).into()),
            Self::Live(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Map(error) => error.kind(),
            Self::Log { source, .. } => ErrorKind::from_io_error(source),
            Self::ParentGone(_) | Self::PathNowhere { .. } | Self::NotInTrash(_) => ErrorKind::NotFound,
            Self::ChangedMeanwhile | Self::NameTaken(_) | Self::InTheWay(_) => ErrorKind::Conflict,
            Self::BadPattern(_) => ErrorKind::Usage,
            Self::Decode { .. } | Self::BadTree(_) => ErrorKind::Corrupt,
        }
    }

    /// Returns whether content is not on this machine, and was not fetched on purpose.
    #[must_use]
    pub fn is_fetch_refused(&self) -> bool {
        matches!(
            self,
            Self::Volume(VolumeError::Content {
                source: BlobError::Store(StoreError::FetchRefused { .. }),
                ..
            })
        )
    }

    /// The error number for the program that asked.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Posix(errno) => *errno,
            // Another process has taken the worktree over: what is here can still be read, and not changed.
            Self::Volume(VolumeError::Fenced { .. }) => Errno::ROFS,
            // A refusal on purpose: programs take `EIO` for a damaged disk.
            refused if refused.is_fetch_refused() => Errno::ACCESS,
            other => map_kind_to_errno(other.kind()),
        }
    }
}

/// What a failure beneath the filesystem looks like from above: only a full disk has a number of its own.
fn map_kind_to_errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Interrupted => Errno::INTR,
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Corrupt
        | ErrorKind::Denied
        | ErrorKind::Unsupported
        | ErrorKind::Usage
        | ErrorKind::Io => Errno::IO,
    }
}

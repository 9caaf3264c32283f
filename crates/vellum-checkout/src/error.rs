//! Errors of a checked-out worktree.

use vellum_host::OperationStopped;
use vellum_host::beneath::BeneathError;
use vellum_host::error_chain::format_error_chain;
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;

use crate::absent::AbsentListError;
use crate::restore::SavedPlanError;
use crate::statcache::StatCacheError;

/// Result of an operation on a worktree.
pub type Result<T, E = CheckoutError> = std::result::Result<T, E>;

/// A failure of an operation on a worktree.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A call on the worktree's files failed.
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    /// The stat cache could not be written.
    #[error(transparent)]
    StatCache(#[from] StatCacheError),
    /// A path of the worktree could not be read or written.
    #[error("cannot {action} '{path}': {source}")]
    Path {
        /// What was tried, a verb.
        action: &'static str,
        /// The path, escaped.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A path that was named is neither in the directory nor in the snapshot.
    #[error("'{path}' is neither in the directory nor in {place}")]
    NoSuchPath {
        /// The path.
        path: String,
        /// The snapshot: by its id, or as the last one.
        place: String,
    },
    /// A path was named of which the directory is gone.
    #[error("the directory that held '{0}' is gone: name that directory to record what became of it")]
    ParentGone(String),
    /// Files that no snapshot holds stand where the snapshot has others.
    #[error(
        "{} would be overwritten or removed, and no snapshot can save it first: an ignore file or an option of the last \
         snapshot leaves it out, it holds the state of another volume, or it cannot be read", .0.join(", ")
    )]
    InTheWay(Vec<String>),
    /// A file is no plan of a restore that can be carried out here.
    #[error("the plan cannot be carried out: {0}")]
    BadPlan(#[from] SavedPlanError),
    /// What a plan saw is not so any more.
    #[error("the plan is not carried out, since it would not do what it says: {}", .0.join(", "))]
    PlanOutdated(Vec<String>),
    /// A file is not what it was when its changes were shown.
    #[error("'{0}' has changed since its changes were shown: nothing was restored")]
    EditedMeanwhile(String),
    /// A stream could not be read.
    #[error("cannot read the stream: {0}")]
    Stream(std::io::Error),
    /// The program that makes a stream failed.
    #[error("{0}: no snapshot was made")]
    Producer(String),
    /// A file of a snapshot cannot have this name.
    #[error("'{0}' is not the name of a file: it may have no '/', and 255 bytes")]
    BadFileName(String),
    /// A pattern of what is to be left out is none.
    #[error("cannot exclude {0}")]
    BadPattern(String),
    /// What the last snapshot left out is not known.
    #[error("{0} does not say what the last snapshot left out: remove it, and what it named counts as new")]
    BadExclusions(String),
    /// The list of absent paths cannot be read or written.
    #[error("the list of absent paths, {path}, cannot be used: {source}")]
    AbsentList {
        /// The file of the list, escaped.
        path: String,
        /// Why not.
        source: AbsentListError,
    },
    /// Something needs files that are absent.
    #[error("cannot {action}: '{path}' is absent from this partial checkout")]
    Absent {
        /// What was tried, a verb with its object.
        action: &'static str,
        /// A path that is absent, escaped.
        path: String,
    },
    /// What is absent would have to be recorded, and no snapshot that can be read holds it.
    #[error(
        "no snapshot can be made of this partial checkout: what is absent is taken from the last snapshot, and {0}"
    )]
    AbsentNowhere(&'static str),
    /// Files are not to be removed, because the store does not have all of them.
    #[error("the store has lost a part of the last snapshot, which the directory may have")]
    LostSnapshot,
    /// The last snapshot says that it has given out all inode numbers.
    #[error("the last snapshot is damaged: by its record no inode number is left for a new file")]
    NumbersUsedUp,
    /// A directory that leads to absent paths is elsewhere.
    #[error("the directory '{0}' was moved since the last snapshot, and what is absent in it with it")]
    Moved(String),
    /// The directory is a mixture of two snapshots.
    #[error("a restore of {0} was interrupted, and has to be finished first")]
    Interrupted(String),
    /// The directory for a new worktree or an export holds something.
    #[error("the directory {0} is not empty")]
    NotEmpty(String),
    /// The engine that was asked for cannot do it.
    #[error("cannot fork by {engine}: {reason}")]
    Engine {
        /// Which.
        engine: &'static str,
        /// Why not.
        reason: String,
    },
}

impl CheckoutError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Volume(error) => error.kind(),
            Self::Beneath(error) => error.kind(),
            Self::StatCache(_) => ErrorKind::Io,
            Self::Stream(source) => ErrorKind::from_io_error(source),
            Self::Producer(_) => ErrorKind::Io,
            Self::Path { source, .. } => ErrorKind::from_io_error(source),
            Self::NoSuchPath { .. } | Self::ParentGone(_) => ErrorKind::NotFound,
            Self::InTheWay(_)
            | Self::NotEmpty(_)
            | Self::Absent { .. }
            | Self::Moved(_)
            | Self::PlanOutdated(_)
            | Self::EditedMeanwhile(_)
            | Self::Interrupted(_) => ErrorKind::Conflict,
            Self::AbsentList { .. } | Self::BadExclusions(_) | Self::LostSnapshot | Self::NumbersUsedUp => {
                ErrorKind::Corrupt
            }
            Self::BadPlan(_) | Self::BadPattern(_) | Self::BadFileName(_) => ErrorKind::Usage,
            Self::AbsentNowhere(_) => ErrorKind::NotFound,
            Self::Engine { .. } => ErrorKind::Unsupported,
        }
    }

    /// Says what was tried on which path.
    pub(crate) fn path_error(action: &'static str, path: &[u8]) -> impl FnOnce(std::io::Error) -> Self {
        let path = vellum_host::escape::format_path(path);
        move |source| Self::Path { action, path, source }
    }
}

impl From<vellum_map::MapError> for CheckoutError {
    fn from(error: vellum_map::MapError) -> Self {
        Self::Volume(error.into())
    }
}

impl From<vellum_store::BlobError> for CheckoutError {
    fn from(error: vellum_store::BlobError) -> Self {
        Self::Volume(error.into())
    }
}

/// Something that could not be done, while all else was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutProblem {
    /// The path that it concerns.
    pub path: Vec<u8>,
    /// What happened.
    pub message: String,
}

impl From<&crate::scan::ScanProblem> for CheckoutProblem {
    fn from(problem: &crate::scan::ScanProblem) -> Self {
        Self { path: problem.path.clone(), message: format_error_chain(&problem.cause) }
    }
}

impl From<OperationStopped> for CheckoutError {
    fn from(_: OperationStopped) -> Self {
        Self::Volume(VolumeError::Interrupted)
    }
}

//! Why a live worktree cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

use vellum_fs::FsError;
use vellum_shared_log::{LogAddressError, SharedLogError};
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;

use super::StateHolder;

/// Result of opening a live worktree.
pub type Result<T, E = OpenError> = std::result::Result<T, E>;

/// Errors of opening a live worktree.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The worktree is checked out in a plain directory.
    #[error("the worktree '{name}' is checked out in {place}: it cannot be mounted, too")]
    CheckedOut {
        /// Its name.
        name: String,
        /// Host and directory.
        place: String,
    },
    /// The local live state contains changes that were not published before another process took the worktree over.
    #[error(
        "{place} holds changes of the worktree '{name}' that were not published before it was taken over by {by}"
    )]
    LeftBehind {
        /// Its name.
        name: String,
        /// Directory of the live state.
        place: String,
        /// Who took it over.
        by: String,
    },
    /// There are no unpublished changes to keep.
    #[error("nothing of the worktree '{name}' was left behind here")]
    NothingLeft {
        /// Its name.
        name: String,
    },
    /// Another process has the worktree open.
    #[error("the worktree '{name}' is {holder}")]
    Held {
        /// Its name.
        name: String,
        /// The process that has it.
        holder: StateHolder,
    },
    /// Another server has the worktree's log, and renews its claim.
    #[error("the worktree '{name}' is mounted on {host}, which renews its claim of the shared log")]
    LogInUse {
        /// Its name.
        name: String,
        /// The host of the server.
        host: String,
    },
    /// The engine does not have the worktree's log any more.
    #[error("the shared log of the worktree '{name}' is gone: {source}")]
    LogLost {
        /// Its name.
        name: String,
        /// What was found in its place.
        source: SharedLogError,
    },
    /// The engine has a log that lacks its end.
    #[error(
        "the shared log of the worktree '{name}' ends at byte {end}, but was durable up to byte {floor}: its engine has \
         lost the end of it"
    )]
    LogCut {
        /// Its name.
        name: String,
        /// Where it ends.
        end: u64,
        /// Where it ended before.
        floor: u64,
    },
    /// What is here cannot be put into the log.
    #[error("what the worktree '{name}' has on this machine cannot be put into its shared log: {source}")]
    LogWrite {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The worktree's log cannot be used.
    #[error(transparent)]
    Log(SharedLogError),
    /// The address of a log cannot be used.
    #[error(transparent)]
    LogAddress(#[from] LogAddressError),
    /// A file of the state directory cannot be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The operation, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The filesystem failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl OpenError {
    /// Adds the operation and the file to an error of the system.
    pub(crate) fn io_error(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Returns what a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::CheckedOut { .. } | Self::NothingLeft { .. } => ErrorKind::Usage,
            Self::Held { .. } | Self::LeftBehind { .. } | Self::LogInUse { .. } => ErrorKind::Conflict,
            Self::LogLost { .. } | Self::LogCut { .. } => ErrorKind::Corrupt,
            Self::Log(error) => error.kind(),
            Self::LogAddress(error) => error.kind(),
            Self::LogWrite { source, .. } | Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Fs(error) => error.kind(),
            Self::Volume(error) => error.kind(),
        }
    }
}

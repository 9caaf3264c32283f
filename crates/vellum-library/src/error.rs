//! Errors, with the path that each is about.

use std::io;

use rustix::io::Errno;
use vellum_checkout::CheckoutError;
use vellum_fs::FsError;
use vellum_host::escape::format_path;
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;

use crate::live::OpenError;

/// Result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a path failed.
    #[error("cannot {action} {path}: {source}")]
    Path {
        /// The operation, a verb.
        action: &'static str,
        /// The path as it was given, escaped for printing.
        path: Box<str>,
        /// The reason.
        source: Box<FsError>,
    },
    /// An open file could not be read or written.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A live worktree could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An operation on a checked-out worktree failed.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// An operation of the volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A thread that works in the background could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl Error {
    /// Adds the operation and the path. An entry that vanished during the lookup counts as not found.
    pub(crate) fn for_action(action: &'static str, path: &[u8]) -> impl FnOnce(FsError) -> Self {
        move |source| {
            let source = match source {
                // A path has no handle that could be stale: the inode was removed between the lookup and the
                // operation.
                FsError::Posix(Errno::STALE) => Errno::NOENT.into(),
                source => source,
            };
            Self::Path { action, path: format_path(path).into(), source: Box::new(source) }
        }
    }

    /// Returns what a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Path { source, .. } => source.kind(),
            Self::Fs(source) => source.kind(),
            Self::Open(error) => error.kind(),
            Self::Checkout(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Thread(error) => ErrorKind::from_io_error(error),
        }
    }

    /// Returns the corresponding kind of the standard library.
    #[must_use]
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.posix_errno() {
            Some(errno) => io::Error::from(errno).kind(),
            None => match self.kind() {
                ErrorKind::NotFound => io::ErrorKind::NotFound,
                ErrorKind::Conflict => io::ErrorKind::AlreadyExists,
                ErrorKind::Corrupt => io::ErrorKind::InvalidData,
                ErrorKind::Denied => io::ErrorKind::PermissionDenied,
                ErrorKind::NoSpace => io::ErrorKind::StorageFull,
                ErrorKind::Unsupported => io::ErrorKind::Unsupported,
                ErrorKind::Usage => io::ErrorKind::InvalidInput,
                ErrorKind::Interrupted => io::ErrorKind::Interrupted,
                ErrorKind::Io => io::ErrorKind::Other,
            },
        }
    }

    /// Returns the error number, if POSIX describes the failure.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.posix_errno().map(Errno::raw_os_error)
    }

    pub(crate) fn posix_errno(&self) -> Option<Errno> {
        let source = match self {
            Self::Path { source, .. } => source,
            Self::Fs(source) => source,
            Self::Open(_) | Self::Checkout(_) | Self::Volume(_) | Self::Thread(_) => return None,
        };
        match source {
            FsError::Posix(errno) => Some(*errno),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.io_kind(), error)
    }
}

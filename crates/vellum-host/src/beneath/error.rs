//! Errors of operations below a directory.

use std::io;

use rustix::io::Errno;
use vellum_types::{ErrorKind, MissingError};

use crate::escape::EscapedPath;

/// The result of an operation below a held directory.
pub(super) type Result<T, E = BeneathError> = std::result::Result<T, E>;

/// A failed operation on an entry below an open directory.
#[derive(Debug, thiserror::Error)]
pub enum BeneathError {
    /// The operating system returned an error.
    #[error("cannot {action} '{}'", EscapedPath(name))]
    System {
        /// The operation, a verb: "open", "rename".
        action: &'static str,
        /// The name of the entry.
        name: Box<[u8]>,
        /// The error.
        source: io::Error,
    },
    /// The name is not a valid path component.
    #[error("'{}' cannot be the name of a file", EscapedPath(.0))]
    Name(Box<[u8]>),
    /// An entry is not a regular file, and has no content.
    #[error("'{}' is not a regular file", EscapedPath(.0))]
    NotRegular(Box<[u8]>),
    /// A path that the user typed contains a symlink of another user.
    #[error(
        "the symlink '{}' (to '{}') is not followed, because it belongs to user {owner}, who is neither root nor you: \
         name what it leads to instead",
        EscapedPath(link),
        EscapedPath(target)
    )]
    UntrustedLink {
        /// Its path.
        link: Box<[u8]>,
        /// Its target.
        target: Box<[u8]>,
        /// The number of its owner.
        owner: u32,
    },
    /// Another directory has the name of a known one.
    #[error("'{}' was replaced by another directory while it was being read", EscapedPath(.0))]
    Replaced(Box<[u8]>),
}

impl BeneathError {
    pub(crate) fn system_error(action: &'static str, name: &[u8], errno: Errno) -> Self {
        Self::System { action, name: name.into(), source: errno.into() }
    }

    /// The error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::System { source, .. } => ErrorKind::from_io_error(source),
            Self::Name(_) => ErrorKind::Usage,
            Self::NotRegular(_) | Self::Replaced(_) => ErrorKind::Conflict,
            Self::UntrustedLink { .. } => ErrorKind::Denied,
        }
    }

    /// The error number of the operating system.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { source, .. } => Errno::from_io_error(source),
            Self::Name(_) | Self::NotRegular(_) | Self::Replaced(_) | Self::UntrustedLink { .. } => None,
        }
    }

    /// The same as an error of the operating system, for messages without the entry.
    #[must_use]
    pub fn into_io_error(self) -> io::Error {
        match self {
            Self::System { source, .. } => source,
            // The kind has to survive, because the exit code and the hint follow from it.
            Self::UntrustedLink { .. } => io::Error::new(io::ErrorKind::PermissionDenied, self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }

    /// Whether the entry does not exist (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }

    /// Whether the entry is not a directory, but a symlink or a file.
    #[must_use]
    pub fn is_not_a_directory(&self) -> bool {
        // A symlink that is opened with O_NOFOLLOW gives ELOOP, and ENOTDIR together with O_DIRECTORY.
        matches!(self.errno(), Some(Errno::NOTDIR | Errno::LOOP))
    }
}

impl MissingError for BeneathError {
    fn is_missing(&self) -> bool {
        self.is_not_found()
    }
}

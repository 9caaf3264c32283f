//! Errors below a directory.

use std::io;

use rustix::io::Errno;
use vellum_types::ErrorKind;

use crate::escape::EscapedPath;

/// A failed operation on something below a held directory.
#[derive(Debug, thiserror::Error)]
pub enum BeneathError {
    /// The operating system refused.
    #[error("cannot {action} '{}'", EscapedPath(name))]
    System {
        /// What was tried, as a verb: "open", "rename".
        action: &'static str,
        /// The name it was tried on.
        name: Box<[u8]>,
        /// Why it failed.
        source: io::Error,
    },
    /// Not one legal path component.
    #[error("'{}' cannot be the name of a file", EscapedPath(.0))]
    Name(Box<[u8]>),
    /// Content was asked of something that is no regular file.
    #[error("'{}' is not a regular file", EscapedPath(.0))]
    NotRegular(Box<[u8]>),
    /// Somebody else's symlink is on a path that the user typed.
    #[error(
        "the symlink '{}' (to '{}') is not followed, because it belongs to user {owner}, who is neither root nor you: \
         name what it leads to instead",
        EscapedPath(link),
        EscapedPath(target)
    )]
    UntrustedLink {
        /// Its path.
        link: Box<[u8]>,
        /// What it leads to.
        target: Box<[u8]>,
        /// The number of its owner.
        owner: u32,
    },
    /// Another directory stands where a known one stood.
    #[error("'{}' was replaced by another directory while it was being read", EscapedPath(.0))]
    Replaced(Box<[u8]>),
}

impl BeneathError {
    pub(crate) fn system_error(action: &'static str, name: &[u8], errno: Errno) -> Self {
        Self::System { action, name: name.into(), source: errno.into() }
    }

    /// The coarse kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::System { source, .. } => ErrorKind::from_io_error(source),
            Self::Name(_) => ErrorKind::Usage,
            Self::NotRegular(_) | Self::Replaced(_) => ErrorKind::Conflict,
            Self::UntrustedLink { .. } => ErrorKind::Denied,
        }
    }

    /// The operating system's number for it.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { source, .. } => Errno::from_io_error(source),
            Self::Name(_) | Self::NotRegular(_) | Self::Replaced(_) | Self::UntrustedLink { .. } => None,
        }
    }

    /// The same as an error of the operating system, where nothing is to be said of the object.
    #[must_use]
    pub fn into_io_error(self) -> io::Error {
        match self {
            Self::System { source, .. } => source,
            Self::UntrustedLink { .. } => io::Error::new(io::ErrorKind::PermissionDenied, self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }

    /// The thing is not there (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }

    /// Something else than a directory stands there: a symlink, a file.
    #[must_use]
    pub fn is_not_a_directory(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOTDIR | Errno::LOOP))
    }
}

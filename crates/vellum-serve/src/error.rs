//! Why a window cannot be opened.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of opening a window.
pub type Result<T> = std::result::Result<T, ServeError>;

/// Why a window cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines could reach it.
    #[error(
        "cannot listen at {0}: only this machine may connect, at 127.0.0.1 or [::1]; for another one, forward the port: ssh -L 8080:127.0.0.1:8080 HOST"
    )]
    NotLoopback(SocketAddr),
    /// Other machines could reach what nobody proves to be allowed to use.
    #[error(
        "cannot listen at {0}: NFS has no authentication, so only this machine may connect, at 127.0.0.1 or [::1]; for another one, forward the port (ssh -L 20049:127.0.0.1:20049 HOST), or let everybody in with --i-know-nfs-has-no-authentication"
    )]
    NfsNotLoopback(SocketAddr),
    /// The port cannot be used.
    #[error("cannot listen at {address}: {source}; another port, or 0 for a free one, may do")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Others could read or replace the token.
    #[error("cannot use {path} for the token: {reason}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Others could read or replace the credentials, or they cannot be parsed.
    #[error("cannot use {place} for the names and passwords: {reason}")]
    Credentials {
        /// The file or the variable of the environment.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The volume has no such worktree.
    #[error("there is no worktree '{name}'; there are: {known}")]
    NoWorktree {
        /// The name.
        name: String,
        /// The names of those that there are.
        known: String,
    },
    /// A worktree that is checked out has nothing that could be served.
    #[error("the worktree '{0}' has no snapshot yet; make one with 'vellum snapshot'")]
    NoSnapshot(String),
    /// Clients cannot name such a bucket.
    #[error(
        "a bucket cannot be called '{0}': names have 3 to 63 lower-case letters, digits, '-' and '.'; choose one with --bucket"
    )]
    BucketName(String),
    /// Another process has the worktree open.
    #[error("{source}; its newest snapshot can be served meanwhile: {name}@HEAD")]
    WorktreeHeld {
        /// The worktree.
        name: String,
        /// Who has it.
        source: Box<vellum_library::OpenError>,
    },
    /// Something of the system failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What failed, a verb with its object.
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The volume cannot be opened.
    #[error(transparent)]
    Library(#[from] vellum_library::Error),
}

impl ServeError {
    /// Adds what failed.
    pub(crate) fn for_action(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

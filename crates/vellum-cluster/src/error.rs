//! Errors of connections between the server of a worktree and its clients.

use std::io;

use vellum_crypto::KeyEpoch;
use vellum_types::ErrorKind;

/// Result of what a connection does.
pub type Result<T> = std::result::Result<T, ClusterError>;

/// A failure of a connection.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The address stands for no machine.
    #[error("{address} cannot be found: {source}")]
    NoAddress {
        /// As it was given.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// It is not known where the server is.
    #[error("the server cannot be found: {reason}")]
    NotFound {
        /// Why.
        reason: String,
    },
    /// Nobody answers there, or the connection broke.
    #[error("the server at {address} cannot be reached: {source}")]
    Unreachable {
        /// As it was given.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// The other side does not speak this protocol.
    #[error("the other side does not speak the protocol of shared worktrees")]
    OtherProtocol,
    /// The other side speaks another version of the protocol.
    #[error("the server speaks version {theirs} of the protocol, and this program version {ours}")]
    OtherVersion {
        /// The server's.
        theirs: u16,
        /// This program's.
        ours: u16,
    },
    /// The other side has another key, or serves another worktree.
    #[error("the server does not have the key of this volume, or serves another worktree")]
    WrongKey,
    /// The volume's key was changed, and this side does not have the new one.
    #[error("the server requires the volume's key of key epoch {required}, which is not known here")]
    OlderKey {
        /// The key epoch.
        required: KeyEpoch,
    },
    /// The volume's key was changed, and the server does not have the new one.
    #[error("the server does not have the volume's key of key epoch {newest}")]
    ServerOlderKey {
        /// The key epoch.
        newest: KeyEpoch,
    },
    /// The server has as many clients as it takes, or cannot be sure that it still serves.
    #[error("the server takes no more clients at the moment")]
    Full,
    /// Bytes that are no message.
    #[error("received bytes that are no message: {0}")]
    Malformed(&'static str),
    /// A message that the protocol does not allow at this point.
    #[error("the other side broke the protocol: {0}")]
    Violation(&'static str),
    /// Reading or writing failed.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
}

impl ClusterError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAddress { .. } | Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Unreachable { .. } | Self::Io(_) | Self::Full => ErrorKind::Io,
            Self::OtherProtocol | Self::OtherVersion { .. } => ErrorKind::Unsupported,
            Self::WrongKey | Self::OlderKey { .. } | Self::ServerOlderKey { .. } => ErrorKind::Denied,
            Self::Malformed(_) | Self::Violation(_) => ErrorKind::Corrupt,
        }
    }

    /// Whether another attempt may succeed without a change of either side.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoAddress { .. }
            | Self::NotFound { .. }
            | Self::Unreachable { .. }
            | Self::Io(_)
            | Self::Full => true,
            // A restarted server may not have learned of the new key yet.
            Self::ServerOlderKey { .. } => true,
            Self::OtherProtocol | Self::OtherVersion { .. } | Self::WrongKey | Self::OlderKey { .. } => false,
            // They end a connection, and the next one may be in order.
            Self::Malformed(_) | Self::Violation(_) => true,
        }
    }
}

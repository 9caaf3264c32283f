//! Errors of objects: each names the store, the object and the failure.
//!
//! Deliberately absent: anything about blobs; see [`crate::blob::BlobError`].

use std::io;

use vellum_types::ErrorKind;

/// A failure of an object store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No object has this key.
    #[error("{place} has no object {key}")]
    NotFound {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// An object with this key is there already; objects are never replaced.
    #[error("{place} already has an object {key}")]
    Exists {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// A compare-and-swap found something else than it expected.
    #[error("{key} in {place} was changed by someone else")]
    Changed {
        /// The store, as it describes itself.
        place: String,
        /// The ref's key.
        key: String,
    },
    /// The service does not know an upload in parts any more: it may forget those that are old, or others may abort it.
    #[error("{place} has lost the parts of {key} that it had: run the command again")]
    UploadLost {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// The store gave fewer or more bytes than were asked for, though it reported success.
    #[error("{place} returned {got} bytes of object {key}, not the {wanted} bytes that were requested")]
    Length {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes received.
        got: u64,
    },
    /// The object has more bytes than anything of its kind, so that it was not read.
    #[error("object {key} in {place} has {size} bytes or more, and may have {max} at most")]
    TooLarge {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
        /// Its length, as far as it is known.
        size: u64,
        /// The most that it may have.
        max: u64,
    },
    /// The bytes of an object are not those that its name is the hash of.
    #[error("object {key} in {place} is damaged: it has other bytes than its name says")]
    OtherBytes {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// Something else than a file stands where an object should be.
    #[error("{key} in {place} is not a file: somebody put something else there")]
    NotAFile {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {key} in {place}: {source}")]
    Io {
        /// The store, as it describes itself.
        place: String,
        /// The object's key, or the folder.
        key: String,
        /// What was tried, a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A service refused or could not be reached.
    #[error("cannot {action} {key} in {place}: {message}")]
    Service {
        /// The store, as it describes itself.
        place: String,
        /// The object's key, or the folder.
        key: String,
        /// What was tried, a verb.
        action: &'static str,
        /// The coarse kind of the failure.
        kind: ErrorKind,
        /// The service's own words.
        message: String,
    },
    /// The cache on the local disk takes no more.
    #[error("the cache in {folder} has no room left")]
    CacheFull {
        /// Where the cache is.
        folder: String,
    },
    /// Content that is not on this machine, and may not be fetched for who asks; see [`crate::FetchPolicy::Refuse`].
    #[error("{key} of {place} is not on this machine, and is not fetched for this program")]
    FetchRefused {
        /// The store, as it describes itself.
        place: String,
        /// The object's key.
        key: String,
    },
    /// A text that is no object key.
    #[error("not the key of an object: {0:?}")]
    Key(String),
    /// A store's address that this version cannot use.
    #[error("cannot use {url} as a store: {reason}")]
    Address {
        /// The address as given, without secrets.
        url: String,
        /// Why not, and what would do.
        reason: String,
        /// The coarse kind of the failure.
        kind: ErrorKind,
    },
    /// Credentials that cannot be used.
    #[error("cannot use the credentials {name}: {reason}")]
    Credentials {
        /// Their name.
        name: String,
        /// Why not, without any secret.
        reason: String,
        /// The coarse kind of the failure.
        kind: ErrorKind,
    },
}

impl StoreError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::Changed { .. } | Self::UploadLost { .. } => ErrorKind::Conflict,
            Self::Length { .. } | Self::TooLarge { .. } | Self::OtherBytes { .. } | Self::NotAFile { .. } => {
                ErrorKind::Corrupt
            }
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Service { kind, .. } | Self::Address { kind, .. } | Self::Credentials { kind, .. } => *kind,
            Self::CacheFull { .. } => ErrorKind::NoSpace,
            Self::FetchRefused { .. } => ErrorKind::Denied,
            Self::Key(_) => ErrorKind::Usage,
        }
    }

    /// Whether the object is simply not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

impl vellum_types::MissingError for StoreError {
    fn is_missing(&self) -> bool {
        self.is_not_found()
    }
}

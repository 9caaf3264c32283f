//! The coarse kind of an error: what a caller can do about it. Details are in each crate's own enum.

/// What kind of failure this is, for exit codes, retries and hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The requested object does not exist.
    NotFound,
    /// The object to be created already exists, or another process changed it first.
    Conflict,
    /// Stored bytes are damaged, missing, foreign or rolled back.
    Corrupt,
    /// A wrong passphrase, a missing key, or permissions.
    Denied,
    /// The local disk or the store is full.
    NoSpace,
    /// The format or feature is from a version that this one does not know.
    Unsupported,
    /// The request is contradictory or invalid; nothing was done.
    Usage,
    /// Stopped on request.
    Interrupted,
    /// Any other failure of the operating system or of a service.
    Io,
}

impl ErrorKind {
    /// Every kind. The position of a kind is its number in the sync protocol: new kinds are appended.
    pub const ALL: [Self; 9] = [
        Self::NotFound,
        Self::Conflict,
        Self::Corrupt,
        Self::Denied,
        Self::NoSpace,
        Self::Unsupported,
        Self::Usage,
        Self::Interrupted,
        Self::Io,
    ];

    /// The kind that an operating system error falls under.
    #[must_use]
    pub fn from_io_error(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        match error.kind() {
            K::NotFound => Self::NotFound,
            K::AlreadyExists => Self::Conflict,
            K::PermissionDenied | K::ReadOnlyFilesystem => Self::Denied,
            // EFBIG as well means that this place does not take the bytes, while another one may.
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => Self::NoSpace,
            K::Unsupported => Self::Unsupported,
            K::Interrupted => Self::Interrupted,
            // The standard library may add kinds, and what is not named here allows no advice of its own.
            _ => Self::Io,
        }
    }
}

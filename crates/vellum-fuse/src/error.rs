//! Errors of mounting and unmounting.

use std::io;
use std::path::PathBuf;

/// Result of mounting and unmounting.
pub type Result<T, E = MountError> = std::result::Result<T, E>;

/// A failure of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The device cannot be opened.
    #[error("/dev/fuse cannot be opened: {0}")]
    NoDevice(io::Error),
    /// The process is not root, and the helper for other users is not installed.
    #[error("fusermount3 is missing: only root can mount without it")]
    NoHelper,
    /// The kernel or the helper refused the mount.
    #[error("cannot mount on {mountpoint}: {source}")]
    Refused {
        /// The directory.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A process uses the mount.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// The mount could not be ended.
    #[error("cannot unmount {mountpoint}: {source}")]
    Unmount {
        /// The directory.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Serving the kernel's requests failed.
    #[error("serving the mount failed: {0}")]
    Session(io::Error),
}

//! Why a mount cannot be made or ended.

use std::io;
use std::path::PathBuf;

/// Result of mounting and unmounting.
pub type Result<T> = std::result::Result<T, MountError>;

/// A failure of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel's FUSE is not there.
    #[error("/dev/fuse cannot be opened: {0}")]
    NoDevice(io::Error),
    /// Whoever is not root needs a helper to mount.
    #[error("fusermount3 is missing: only root can mount without it")]
    NoHelper,
    /// The mount was refused.
    #[error("cannot mount on {mountpoint}: {source}")]
    Refused {
        /// Where.
        mountpoint: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody uses the mount.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// The mount could not be ended.
    #[error("cannot unmount {mountpoint}: {source}")]
    Unmount {
        /// What.
        mountpoint: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Serving the kernel's requests failed.
    #[error("serving the mount failed: {0}")]
    Session(io::Error),
}

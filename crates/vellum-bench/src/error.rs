//! What can go wrong with a bench: each error names the object and the failure.

use std::io;

use vellum_host::ProgressMeter;
use vellum_host::beneath::BeneathError;
use vellum_store::{BlobError, StoreError};
use vellum_types::ErrorKind;

/// Result of this crate.
pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The directory to be measured cannot be used.
    #[error("cannot measure {path}: {source}")]
    Ground {
        /// The directory.
        path: String,
        /// What the system said.
        source: BeneathError,
    },
    /// What is to be measured is no directory, or no file where one is needed.
    #[error("cannot {action} {object}: {source}")]
    Io {
        /// What was tried, a verb.
        action: &'static str,
        /// On what.
        object: String,
        /// What the system said.
        source: io::Error,
    },
    /// The bench would fill the disk.
    #[error("{path} has {} MiB free, and this needs {} MiB", free >> 20, needed.div_ceil(1 << 20))]
    Space {
        /// The directory.
        path: String,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The directory must be empty, and is not.
    #[error("{0} is not empty")]
    NotEmpty(String),
    /// A number that makes no sense.
    #[error("{0}")]
    Parameter(String),
    /// What was read is not what was written.
    #[error("{0} returned other data than was written to it")]
    Content(String),
    /// The object store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The blob store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A report that this version cannot read.
    #[error("{name} is not a report that can be compared: {reason}")]
    Format {
        /// The file.
        name: String,
        /// Why not.
        reason: String,
        /// Whether another version of Vellum could read it.
        kind: ErrorKind,
    },
    /// A program that was measured failed.
    #[error("{command} failed: {message}")]
    Program {
        /// The command.
        command: String,
        /// What it said.
        message: String,
    },
    /// A host cannot take part.
    #[error("the host {host} cannot take part: {reason}")]
    Host {
        /// The host.
        host: String,
        /// Why not.
        reason: String,
    },
    /// A host has another version of the program.
    #[error("the host {host} has vellum {theirs}, and this is vellum {ours}")]
    HostVersion {
        /// The host.
        host: String,
        /// The version there.
        theirs: String,
        /// The version here.
        ours: String,
    },
    /// Stopped on request.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Adds what was tried when the system refused.
    pub fn io_error(action: &'static str, object: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let object = object.into();
        move |source| Self::Io { action, object, source }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Ground { source, .. } => source.kind(),
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Space { .. } => ErrorKind::NoSpace,
            Self::NotEmpty(_) => ErrorKind::Conflict,
            Self::Parameter(_) => ErrorKind::Usage,
            Self::Content(_) => ErrorKind::Corrupt,
            Self::Store(error) => error.kind(),
            Self::Blob(error) => error.kind(),
            Self::Format { kind, .. } => *kind,
            Self::Program { .. } | Self::Host { .. } => ErrorKind::Io,
            Self::HostVersion { .. } => ErrorKind::Unsupported,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// Fails once the user asked to stop.
pub(crate) fn check_interrupted(meter: &ProgressMeter) -> Result<()> {
    meter.check_stopped().map_err(|_| BenchError::Interrupted)
}

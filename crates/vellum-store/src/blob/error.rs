//! What can go wrong with blobs, packs and the index.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use vellum_types::{BlobId, BlobKind, DecodeError, ErrorKind, PackId};

use super::body::BlobBodyFault;
use crate::error::StoreError;
use crate::pack::PackFault;

/// A failure at the level of blobs.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The object store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index knows no such blob.
    #[error("{kind} {id} is not in the store")]
    NotFound {
        /// What it would hold.
        kind: BlobKind,
        /// Its id.
        id: BlobId,
    },
    /// Neither the store nor its source has the blob.
    #[error("{kind} {id} is neither in the store nor in {place}, from which its content is fetched")]
    NotInSource {
        /// What it would hold.
        kind: BlobKind,
        /// Its id.
        id: BlobId,
        /// The source.
        place: String,
    },
    /// The source cannot be used.
    #[error("{place}, from which content is fetched, cannot be used: {reason}")]
    Source {
        /// The source.
        place: String,
        /// Why not.
        reason: String,
        /// What a caller can do about it.
        kind: ErrorKind,
    },
    /// The pack that should hold the blob is not there.
    #[error("{kind} {id} cannot be read: pack {pack} is missing")]
    Missing {
        /// What it holds.
        kind: BlobKind,
        /// Its id.
        id: BlobId,
        /// Where it should be.
        pack: PackId,
    },
    /// The blob's bytes are wrong.
    #[error("{kind} {id} in pack {pack} is damaged: {fault}")]
    Damaged {
        /// What it holds.
        kind: BlobKind,
        /// Its id.
        id: BlobId,
        /// Where it was read.
        pack: PackId,
        /// What is wrong.
        fault: BlobBodyFault,
    },
    /// A pack's structure is wrong.
    #[error("pack {pack} is damaged: {fault}")]
    Pack {
        /// The pack.
        pack: PackId,
        /// What is wrong.
        fault: PackFault,
    },
    /// An object of the index is wrong.
    #[error("index object {name} is damaged: {fault}")]
    Index {
        /// Its name.
        name: String,
        /// What is wrong.
        fault: PackFault,
    },
    /// Index objects come and go faster than they can be read.
    #[error("the index changes faster than it can be read: try again")]
    Unsettled,
    /// A file of the local copy of the index cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Local {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file of the local copy of the index breaks its format.
    #[error("{path} is damaged: {fault}")]
    LocalRun {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: DecodeError,
    },
    /// The content is longer than a blob may be.
    #[error("a blob of {0} bytes is longer than a blob may be")]
    TooLarge(usize),
    /// An earlier failure of this writer; nothing that it was given since is stored.
    #[error("writing stopped earlier: {0}")]
    Stopped(Arc<BlobError>),
}

impl BlobError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::NotFound { .. } | Self::NotInSource { .. } => ErrorKind::NotFound,
            Self::Source { kind, .. } => *kind,
            // Authenticated, and of a later version of the format.
            Self::Damaged { fault: BlobBodyFault::Decode(DecodeError::Version(_)), .. } => {
                ErrorKind::Unsupported
            }
            Self::Missing { .. }
            | Self::Damaged { .. }
            | Self::Pack { .. }
            | Self::Index { .. }
            | Self::LocalRun { .. } => ErrorKind::Corrupt,
            Self::Unsettled => ErrorKind::Conflict,
            Self::Local { source, .. } => ErrorKind::from_io_error(source),
            Self::TooLarge(_) => ErrorKind::Usage,
            Self::Stopped(error) => error.kind(),
        }
    }
}

//! Errors of maps, and what a caller can do about them.

use std::error::Error;

use vellum_types::limits::{KEY_MAX, VALUE_MAX};
use vellum_types::{BlobId, ErrorKind};

use crate::node::NodeError;

/// Why an operation on a map failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A node's bytes are no valid node.
    #[error("node {id} of the map is damaged")]
    Node {
        /// Which node.
        id: BlobId,
        /// What is wrong with it.
        source: NodeError,
    },
    /// A node is valid, but is not the one that its parent describes.
    #[error("node {id} of the map does not fit its parent: {what}")]
    Misplaced {
        /// Which node.
        id: BlobId,
        /// Which of the parent's claims it breaks.
        what: &'static str,
    },
    /// A node could not be fetched.
    #[error("node {id} of the map could not be read")]
    Load {
        /// Which node.
        id: BlobId,
        /// The kind of the source's error: what the caller can do.
        kind: ErrorKind,
        /// The source's own error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A new node could not be stored.
    #[error("a node of the map could not be stored")]
    Store {
        /// The kind of the sink's error: what the caller can do.
        kind: ErrorKind,
        /// The sink's own error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A change failed earlier, and the new map was nevertheless requested.
    #[error("the map is incomplete, since an earlier change to it failed")]
    Broken,
    /// Changes or entries did not come in strictly ascending order of their keys: a mistake of the caller.
    #[error("keys are not in ascending order")]
    Unsorted,
    /// A key is longer than the format allows.
    #[error("a key of {0} bytes is longer than the limit of {KEY_MAX}")]
    KeyTooLong(usize),
    /// A value is longer than the format allows.
    #[error("a value of {0} bytes is longer than the limit of {VALUE_MAX}")]
    ValueTooLong(usize),
}

impl MapError {
    /// Wraps a failure to fetch a node.
    pub fn from_load_failure(
        id: BlobId,
        kind: ErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Load { id, kind, source: source.into() }
    }

    /// Wraps a failure to store a node.
    pub fn from_store_failure(kind: ErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Store { kind, source: source.into() }
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Node { .. } | Self::Misplaced { .. } => ErrorKind::Corrupt,
            Self::Load { kind, .. } | Self::Store { kind, .. } => *kind,
            Self::Broken => ErrorKind::Io,
            Self::Unsorted | Self::KeyTooLong(_) | Self::ValueTooLong(_) => ErrorKind::Usage,
        }
    }
}

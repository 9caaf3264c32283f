//! What the other side cannot have meant.

use vellum_types::DecodeError;

/// Why bytes of the other side are refused, or do not come.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The stream ended between two frames.
    #[error("the connection was closed")]
    Closed,
    /// Something else than Vellum answered.
    #[error("the other side did not answer as 'vellum sync --server' does: {0}")]
    Stranger(String),
    /// No version is known to both.
    #[error("the other side supports versions {0} to {1} of the protocol, and this side only version {2}")]
    Version(u16, u16, u16),
    /// A frame that is longer than any may be.
    #[error("a frame of {0} bytes")]
    TooLong(u32),
    /// A frame whose checksum is wrong.
    #[error("a frame was damaged on its way")]
    Damaged,
    /// A frame of no known kind.
    #[error("a frame has the unknown type {0}")]
    Kind(u8),
    /// A frame's content.
    #[error("a frame cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// A listing that cannot be.
    #[error(transparent)]
    Listing(#[from] crate::model::listing::ListingError),
    /// What nobody asked for, or more than was asked for.
    #[error("the other side sent something that was not requested: {0}")]
    Unasked(&'static str),
    /// More than a limit allows.
    #[error("the other side sent more than the limit: {0}")]
    TooMuch(&'static str),
}

//! Errors in what the other side sends.

use vellum_types::DecodeError;

/// Why bytes of the other side are refused, or are missing.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The stream ended between two frames.
    #[error("the connection was closed")]
    Closed,
    /// Something other than Vellum answered.
    #[error("the other side did not answer as 'vellum sync --server' does: {0}")]
    Stranger(String),
    /// No version is common to both.
    #[error("the other side supports versions {0} to {1} of the protocol, and this side only version {2}")]
    Version(u16, u16, u16),
    /// A frame exceeds the limit.
    #[error("a frame of {0} bytes")]
    TooLong(u32),
    /// The checksum of a frame is wrong.
    #[error("a frame was damaged on its way")]
    Damaged,
    /// A frame has an unknown kind.
    #[error("a frame has the unknown type {0}")]
    Kind(u8),
    /// The payload of a frame is invalid.
    #[error("a frame cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// A listing is inconsistent.
    #[error(transparent)]
    Listing(#[from] crate::model::listing::ListingError),
    /// Something was received that was not requested, or more than was requested.
    #[error("the other side sent something that was not requested: {0}")]
    Unasked(&'static str),
    /// A limit was exceeded.
    #[error("the other side sent more than the limit: {0}")]
    TooMuch(&'static str),
}

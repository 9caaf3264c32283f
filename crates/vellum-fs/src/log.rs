//! The write log: local segments that hold file data not yet published.

/// The segments.
#[derive(Debug, Default)]
pub struct WriteLog {}

//! The version in front of each result.

use serde::Serialize;

/// Version of all JSON results.
const VERSION: u32 = 1;

/// A result with its version.
#[derive(Serialize)]
pub struct VersionedJson<'a, T> {
    version: u32,
    // Only objects can be flattened, so that no result is a bare list.
    #[serde(flatten)]
    value: &'a T,
}

impl<'a, T> VersionedJson<'a, T> {
    /// The result with the version of this program.
    pub fn new(value: &'a T) -> Self {
        Self { version: VERSION, value }
    }
}

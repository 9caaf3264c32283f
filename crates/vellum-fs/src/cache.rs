//! Inodes and directory entries that were read lately.

use vellum_types::Key;

/// The cache.
#[derive(Debug, Default)]
pub struct InodeCache {}

impl InodeCache {
    /// Forgets everything.
    pub fn clear(&self) {}

    /// Forgets what was changed.
    pub fn forget(&self, _changed: &[Key]) {}
}

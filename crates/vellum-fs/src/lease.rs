//! The lease of the worktree, as operations see it: no change without it, and what is published shows it.

use vellum_volume::VolumeError;
use vellum_volume::refs::WorktreeHead;

use crate::error::{FsError, Result};
use crate::fs::Fs;

impl Fs {
    /// An error if another took the worktree over: what is changed here would never reach the store.
    pub(crate) fn admit(&self) -> Result<()> {
        Ok(self.tenure.as_ref().map_or(Ok(()), |tenure| tenure.admit())?)
    }

    /// Changes what the worktree's ref says.
    pub(crate) fn update_head(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        Ok(match &self.tenure {
            Some(tenure) => tenure.update(change),
            None => self.volume.update_worktree(self.worktree(), change),
        }?)
    }

    /// Why nothing can be changed any more, if another took the worktree over.
    #[must_use]
    pub fn lost(&self) -> Option<VolumeError> {
        self.tenure.as_ref().and_then(|tenure| tenure.lost())
    }
}

impl FsError {
    /// Whether another took the worktree over.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Volume(VolumeError::Fenced { .. }))
    }
}

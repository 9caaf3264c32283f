//! Content that clients of a mounted worktree have stored, and that only the worktree's live state names: no tree in the store
//! does yet.
//!
//! Protocol: such a session is put before the live state names the content, and removed after a tree names it. It is that of no
//! process: the live state survives its process, also one that was lost with its machine, and the content must, too.
//! Deliberately absent: which content. The collector deletes nothing while there is such a session.

use vellum_store::{ObjectKey, StoreError};
use vellum_types::BlobKind;

use super::{OBJECT_MAX, PREFIX, SessionObject, seal_session};
use crate::error::Result;
use crate::volume::Volume;

impl Volume {
    /// Keeps the collector from deleting anything, until [`Volume::release_unpublished`] is called for this worktree. The caller
    /// reads the index afterwards, before it relies on stored content.
    pub fn hold_unpublished(&self, worktree: &str) -> Result<()> {
        let key = self.unpublished_key(worktree)?;
        let session =
            SessionObject { unpublished: Some(worktree.into()), ..SessionObject::for_current_process() };
        match self.objects.swap_ref(&key, None, Some(&seal_session(&self.keys, &key, &session))) {
            // Put by an earlier process, or by a machine that had the worktree before: it stands for the same.
            Ok(()) | Err(StoreError::Changed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends that: a tree names everything that was stored for this worktree, or nothing does. Does nothing if there is nothing
    /// to end.
    pub fn release_unpublished(&self, worktree: &str) -> Result<()> {
        let key = self.unpublished_key(worktree)?;
        match self.objects.get_object(&key, OBJECT_MAX) {
            Ok(stored) => match self.objects.swap_ref(&key, Some(&stored), None) {
                Ok(()) | Err(StoreError::Changed { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a worktree has such content.
    pub fn holds_unpublished(&self, worktree: &str) -> Result<bool> {
        match self.objects.get_object(&self.unpublished_key(worktree)?, OBJECT_MAX) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// One object for each worktree, so that whoever has the worktree next finds it.
    fn unpublished_key(&self, worktree: &str) -> Result<ObjectKey> {
        // By a keyed hash: a name may be long, or secret.
        let id = self.keys.compute_blob_id(BlobKind::Node, worktree.as_bytes());
        Ok(ObjectKey::new(format!("{PREFIX}unpublished-{id}"))?)
    }
}

//! What a volume is, for those who show it.

use vellum_types::SnapshotId;

use crate::error::Result;
use crate::volume::Volume;

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its id.
    pub volume: String,
    /// Where its store is.
    pub store: String,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// The worktree of the directory at which it was opened.
    pub worktree: String,
    /// That directory.
    pub directory: String,
    /// The worktrees that can be read, by name.
    pub worktrees: Vec<WorktreeFacts>,
}

/// A worktree of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorktreeFacts {
    /// Its name.
    pub name: String,
    /// The snapshot on which it stands; None: it has none yet.
    pub head: Option<SnapshotId>,
}

impl Volume {
    /// Returns where its store is: a path or an address, without secrets.
    #[must_use]
    pub fn describe_store(&self) -> String {
        self.inner().objects.describe_location()
    }

    /// Returns what it is.
    pub fn facts(&self) -> Result<VolumeFacts> {
        let volume = self.inner();
        // A damaged ref must not hide the facts about the others. It is left out here, and 'vellum verify' reports it.
        let worktrees = volume.list_readable_worktrees()?.0.into_iter();
        Ok(VolumeFacts {
            volume: volume.config.volume.to_string(),
            store: self.describe_store(),
            encrypted: volume.config.encrypted,
            worktree: volume.worktree.worktree.clone(),
            directory: volume.state.root().display().to_string(),
            worktrees: worktrees.map(|(name, head)| WorktreeFacts { name, head: head.head }).collect(),
        })
    }
}

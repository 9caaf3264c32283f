//! The record of a restore in progress.

use serde::{Deserialize, Serialize};
use vellum_types::SnapshotId;
use vellum_volume::{StateDir, VolumeError};

use super::RestoreRequest;
use crate::error::Result;
use crate::worktree::CheckoutWorktree;

const JOURNAL_FILE: &str = "restore.json";

/// A restore that was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptedRestore {
    /// The snapshot that was being restored.
    pub target: SnapshotId,
    /// The snapshot that undoes it, if one was necessary.
    pub safety: Option<SnapshotId>,
    /// Whether it was restricted to some paths.
    pub partial: bool,
}

#[derive(Serialize, Deserialize)]
struct RestoreJournal {
    version: u32,
    target: String,
    safety: Option<String>,
    partial: bool,
}

const VERSION: u32 = 1;

/// Reads the record of an interrupted restore from a state directory, if there is one.
pub(crate) fn read_interrupted_restore(state: &StateDir) -> Result<Option<InterruptedRestore>, VolumeError> {
    let path = state.join(JOURNAL_FILE);
    let Some(text) = state.read_file(JOURNAL_FILE)? else { return Ok(None) };
    let damaged =
        || VolumeError::wrap_local_error(&path)(std::io::Error::other("it is not the record of a restore"));
    // Damage is an error, not the absence of a note: the directory may be a mixture of two snapshots.
    let note: RestoreJournal = serde_json::from_slice(&text).map_err(|_| damaged())?;
    if note.version != VERSION {
        return Err(damaged());
    }
    let id = |text: &str| text.parse::<SnapshotId>().map_err(|_| damaged());
    let safety = note.safety.as_deref().map(id).transpose()?;
    Ok(Some(InterruptedRestore { target: id(&note.target)?, safety, partial: note.partial }))
}

impl CheckoutWorktree {
    /// Reads the record of an interrupted restore, if there is one.
    pub fn find_interrupted_restore(&self) -> Result<Option<InterruptedRestore>> {
        Ok(read_interrupted_restore(&self.volume.state)?)
    }

    pub(crate) fn begin_restore(&self, request: &RestoreRequest, safety: Option<SnapshotId>) -> Result<()> {
        let note = RestoreJournal {
            version: VERSION,
            target: request.target.id.to_string(),
            safety: safety.map(|id| id.to_string()),
            partial: !request.paths.is_empty(),
        };
        Ok(self.volume.state.write_json_file(JOURNAL_FILE, &note)?)
    }

    pub(crate) fn end_restore(&self) -> Result<()> {
        Ok(self.volume.state.remove_file(JOURNAL_FILE)?)
    }
}

//! Makes the index anew from the packs, if objects of it are lost or damaged.
//!
//! Invariant: nobody else changes the index meanwhile: a collector has its session, and writers are not at work. Killed at
//! any point, the old index objects are still there, or the new ones replace them.

use serde::Serialize;

use crate::error::{Result, VolumeError};
use crate::session::SessionClaim;
use crate::volume::Volume;

/// What the new index has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuiltIndex {
    /// Packs whose blobs it has.
    pub packs: u64,
    /// Blobs.
    pub blobs: u64,
    /// Packs that it leaves out.
    pub unreadable: Vec<UnreadablePack>,
}

/// A pack whose table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadablePack {
    /// Its object.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Makes the index anew from the packs' own tables. Fails with [`VolumeError::InUse`] if somebody else is at work.
pub fn rebuild_index(volume: &Volume) -> Result<RebuiltIndex> {
    // As the collector: neither a collection nor another rebuild may run at the same time.
    let claim = SessionClaim::claim_as_collector(volume)?;
    // A writer that puts an index object meanwhile may merge into it what is about to be replaced.
    for other in claim.list_other_sessions()? {
        if !(other.is_session_over() && other.remove_if_unrenewed(&*volume.objects)?) {
            let waiting = other.into_waiting_session();
            return Err(VolumeError::InUse {
                what: "the store".into(),
                reason: format!("another command writes to it ({})", waiting.object),
            });
        }
    }
    let stats = volume.blobs.rebuild_index()?;
    let unreadable = stats
        .unreadable
        .into_iter()
        .map(|(pack, error)| UnreadablePack { object: format!("packs/{pack}"), problem: error.to_string() });
    Ok(RebuiltIndex { packs: stats.packs, blobs: stats.blobs, unreadable: unreadable.collect() })
}

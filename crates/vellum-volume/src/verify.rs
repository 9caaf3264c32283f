//! Verification: reads every object from the store, opens and hashes it again, and reports what is damaged, including
//! the affected files of snapshots.
//!
//! Invariant: local caches are not used. What is reported as sound was read from the store in this run.

mod foreign;
mod objects;
mod places;
pub(crate) mod structure;
mod trees;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_types::{BlobId, BlobKind};

pub use self::foreign::ForeignObjects;
use self::trees::CheckedContent;
use crate::error::Result;
use crate::history::HistoryEntry;
use crate::volume::Volume;

/// What to verify.
#[derive(Debug, Clone)]
pub enum VerifyScope {
    /// One snapshot: its record, its tree, its content.
    Snapshot(HistoryEntry),
    /// Check every object of the store, and every snapshot.
    All,
}

/// Something damaged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct VerifyFinding {
    /// The object of the store, or the blob.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The files that it hits.
    pub affected: Vec<AffectedSnapshot>,
}

/// What a damaged blob hits in one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AffectedSnapshot {
    /// The snapshot, in hexadecimal.
    pub snapshot: String,
    /// Paths in it, escaped, in their order; the first ones only.
    pub paths: Vec<String>,
    /// How many paths there are in all; None where the damage hides them.
    pub count: Option<u64>,
}

/// What was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Snapshots whose trees were walked.
    pub snapshots: u64,
    /// Blobs that were looked at. One that the store holds twice counts twice if all the store was verified.
    pub blobs: u64,
    /// Bytes of these blobs as they are stored: compressed and sealed, without what stands around them.
    pub bytes: u64,
    /// What is damaged.
    pub findings: Vec<VerifyFinding>,
    /// What is in the store and none of the volume's; not looked for if one snapshot was verified.
    pub foreign: ForeignObjects,
}

/// Blobs that were looked at, and their bytes as they are stored.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CheckedAmount {
    blobs: u64,
    bytes: u64,
}

impl CheckedAmount {
    fn add_blob(&mut self, volume: &Volume, id: &BlobId) {
        let held = volume.blobs.find_holder(id).ok().flatten();
        self.add_stored_bytes(held.map_or(0, |held| held.place.len));
    }

    fn add_stored_bytes(&mut self, len: u32) {
        self.blobs += 1;
        self.bytes += u64::from(len);
    }
}

/// Damage found so far.
#[derive(Default)]
pub(crate) struct FoundDamage {
    objects: BTreeMap<String, String>,
    blobs: BTreeMap<BlobId, (BlobKind, String)>,
    /// Damaged blobs with where they were to be: the object to name.
    packs: BTreeMap<BlobId, BTreeSet<String>>,
    /// Chunks that cannot be read and were condemned: damage only if something needs them.
    gone: BTreeSet<BlobId>,
}

impl FoundDamage {
    fn add_object(&mut self, object: impl Into<String>, problem: impl Into<String>) {
        // The first finding counts: what follows is mostly caused by it.
        self.objects.entry(object.into()).or_insert_with(|| problem.into());
    }

    fn add_blob(&mut self, kind: BlobKind, id: BlobId, problem: impl Into<String>) {
        self.blobs.entry(id).or_insert_with(|| (kind, problem.into()));
    }

    fn add_blob_in_pack(&mut self, kind: BlobKind, id: BlobId, pack: String, problem: String) {
        self.add_blob(kind, id, problem);
        self.packs.entry(id).or_default().insert(pack);
    }

    /// A blob of a condemned pack that is gone. A node that is needed shows itself when it is read.
    fn add_unneeded_blob(&mut self, kind: BlobKind, id: BlobId) {
        if kind == BlobKind::Chunk {
            self.gone.insert(id);
        }
    }

    fn is_blob_lost(&self, id: &BlobId) -> bool {
        self.blobs.contains_key(id)
    }
}

/// Verifies a scope. With `metadata_only`, the content of chunks is not read. Damage is reported, and is no error; fails
/// only if the verification could not be done, or was stopped with [`VolumeError::Interrupted`](crate::VolumeError).
pub fn verify_volume(
    volume: &Volume,
    scope: &VerifyScope,
    metadata_only: bool,
    meter: &ProgressMeter,
) -> Result<VerifyReport> {
    let mut damage = FoundDamage::default();
    // A copy on this machine can be sound while the store has lost the object.
    volume.blobs.ignore_local_copies();
    // Packs that another machine replaced since would be reported as missing.
    volume.blobs.refresh_index()?;
    let foreign = match scope {
        VerifyScope::Snapshot(_) => ForeignObjects::default(),
        VerifyScope::All => foreign::count_foreign_objects(volume)?,
    };
    let (snapshots, read) = match scope {
        VerifyScope::Snapshot(entry) => {
            let snapshots = Vec::from_iter(objects::check_record(volume, &entry.id, &mut damage)?);
            let content = if metadata_only { CheckedContent::Nothing } else { CheckedContent::All };
            let read = trees::walk_trees(volume, &snapshots, content, &mut damage, meter)?;
            (snapshots, read)
        }
        VerifyScope::All => {
            // The trees are made of blobs that were read with their packs.
            let (snapshots, mut read) =
                objects::check_all_objects(volume, metadata_only, &mut damage, meter)?;
            let is_content_there = volume.blobs.has_source() && !metadata_only;
            let content = if is_content_there { CheckedContent::InSource } else { CheckedContent::Nothing };
            let walked = trees::walk_trees(volume, &snapshots, content, &mut damage, meter)?;
            // What is here was counted with its packs.
            if content == CheckedContent::InSource {
                read.blobs += walked.blobs;
                read.bytes += walked.bytes;
            }
            (snapshots, read)
        }
    };
    // After all blobs were looked at: a tree that cannot be read was found above, and is passed over.
    structure::check_structure(volume, &snapshots, &mut damage, meter)?;
    // The next snapshot stores them again, as far as the directory still has them.
    // Only a complete run can also take blobs off the list: others have not looked at all of them.
    let all = matches!(scope, VerifyScope::All) && !metadata_only;
    volume.record_lost_blobs(damage.blobs.keys().copied(), all);
    let findings = places::name_findings(volume, &snapshots, &damage)?;
    Ok(VerifyReport {
        snapshots: snapshots.len() as u64,
        blobs: read.blobs,
        bytes: read.bytes,
        findings,
        foreign,
    })
}

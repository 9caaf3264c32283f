//! Proof that nothing rotted: every object read from the store, opened and hashed again, and what is damaged named,
//! down to the files of the snapshots that it hits.
//!
//! Invariant: local caches are not believed. What is reported as sound was read from the store in this run.

mod objects;
mod places;
mod structure;
mod trees;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vellum_types::{BlobId, BlobKind};

use crate::error::Result;
use crate::history::Entry;
use crate::progress::Meter;
use crate::volume::Volume;

/// What to verify.
#[derive(Debug, Clone)]
pub enum Scope {
    /// One snapshot: its record, its tree, its content.
    Snapshot(Entry),
    /// Every object of the store, and every snapshot.
    All,
}

/// Something damaged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The object of the store, or the blob.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The files that it hits.
    pub affected: Vec<Affected>,
}

/// What a damaged blob hits in one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Affected {
    /// The snapshot, in hexadecimal.
    pub snapshot: String,
    /// Paths in it, escaped, in their order; the first ones only.
    pub paths: Vec<String>,
    /// How many paths there are in all; None where the damage hides them.
    pub count: Option<u64>,
}

/// What was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Snapshots whose trees were walked.
    pub snapshots: u64,
    /// Blobs that were looked at. One that the store holds twice counts twice if all the store was verified.
    pub blobs: u64,
    /// Bytes of these blobs as they are stored: compressed and sealed, without what stands around them.
    pub bytes: u64,
    /// What is damaged.
    pub findings: Vec<Finding>,
}

/// Blobs that were looked at, and their bytes as they are stored.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Amount {
    blobs: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, volume: &Volume, id: &BlobId) {
        self.add_stored(volume.blobs.locate(id).map_or(0, |place| place.len));
    }

    fn add_stored(&mut self, len: u32) {
        self.blobs += 1;
        self.bytes += u64::from(len);
    }
}

/// Damage found so far.
#[derive(Default)]
pub(crate) struct Damage {
    objects: BTreeMap<String, String>,
    blobs: BTreeMap<BlobId, (BlobKind, String)>,
    /// Damaged blobs with where they were to be: the object to name.
    packs: BTreeMap<BlobId, BTreeSet<String>>,
    /// Chunks that cannot be read and were condemned: damage only if something needs them.
    gone: BTreeSet<BlobId>,
}

impl Damage {
    fn object(&mut self, object: impl Into<String>, problem: impl Into<String>) {
        self.objects.entry(object.into()).or_insert_with(|| problem.into());
    }

    fn blob(&mut self, kind: BlobKind, id: BlobId, problem: impl Into<String>) {
        self.blobs.entry(id).or_insert_with(|| (kind, problem.into()));
    }

    fn blob_in(&mut self, kind: BlobKind, id: BlobId, pack: String, problem: String) {
        self.blob(kind, id, problem);
        self.packs.entry(id).or_default().insert(pack);
    }

    /// A blob of a condemned pack that is gone. A node that is needed shows itself when it is read.
    fn unneeded(&mut self, kind: BlobKind, id: BlobId) {
        if kind == BlobKind::Chunk {
            self.gone.insert(id);
        }
    }

    fn is_lost(&self, id: &BlobId) -> bool {
        self.blobs.contains_key(id)
    }
}

/// Verifies. Damage is what it reports, not an error; an error means that the verification could not be done.
pub fn verify(volume: &Volume, scope: &Scope, metadata_only: bool, meter: &Meter) -> Result<Report> {
    let mut damage = Damage::default();
    volume.blobs.refresh()?;
    let (snapshots, read) = match scope {
        Scope::Snapshot(entry) => {
            let snapshots = Vec::from_iter(objects::record(volume, &entry.id, &mut damage)?);
            let read = trees::walk(volume, &snapshots, !metadata_only, &mut damage, meter)?;
            (snapshots, read)
        }
        Scope::All => {
            // The trees are made of blobs that were read with their packs.
            let (snapshots, read) = objects::all(volume, metadata_only, &mut damage, meter)?;
            trees::walk(volume, &snapshots, false, &mut damage, meter)?;
            (snapshots, read)
        }
    };
    structure::check(volume, &snapshots, &mut damage, meter)?;
    // The next snapshot stores them again, as far as the directory still has them.
    let all = matches!(scope, Scope::All) && !metadata_only;
    volume.note_lost(damage.blobs.keys().copied(), all);
    let findings = places::name(volume, &snapshots, &damage)?;
    Ok(Report { snapshots: snapshots.len() as u64, blobs: read.blobs, bytes: read.bytes, findings })
}

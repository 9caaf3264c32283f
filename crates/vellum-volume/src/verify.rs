//! Verification: reads every object from the store, opens and hashes it again, and reports what is damaged, including
//! the affected files of snapshots, and of what mounted worktrees published besides.
//!
//! Invariant: local caches are not used. What is reported as sound was read from the store in this run.

mod foreign;
mod objects;
mod part;
mod places;
mod rebuild;
mod small_objects;
pub(crate) mod structure;
mod trees;
mod verified_packs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_types::{BlobId, BlobKind, PackId};

pub use self::foreign::ForeignObjects;
use self::objects::CheckedObjects;
pub(crate) use self::objects::FRESH_INDEX_FOLDER;
pub use self::rebuild::{RebuiltIndex, UnreadablePack, rebuild_index};
use self::trees::CheckedContent;
pub use self::verified_packs::{PackPart, PartReport};
use crate::error::Result;
use crate::history::HistoryEntry;
use crate::volume::Volume;

/// How often trees are walked if they are replaced meanwhile, a count.
const WALKS_MAX: usize = 3;

/// What to verify.
#[derive(Debug, Clone)]
pub enum VerifyScope {
    /// One snapshot: its record, its tree, its content.
    Snapshot(HistoryEntry),
    /// Check every object of the store, every snapshot, and what mounted worktrees published: since their last snapshot,
    /// and of their trash.
    All,
    /// Check a part of the packs and records, whether all of them are there, the objects of keys, and refs.
    Part(PackPart),
}

/// Something damaged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct VerifyFinding {
    /// The object of the store, or the blob.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The files that it hits.
    pub affected: Vec<AffectedTree>,
}

/// What has a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeOwner {
    /// A snapshot, in hexadecimal.
    Snapshot(String),
    /// A mounted worktree, of what it published since its last snapshot.
    Worktree(String),
    /// The trash of a mounted worktree.
    Trash(String),
}

impl fmt::Display for TreeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Worktree(name) => write!(f, "worktree '{name}'"),
            Self::Trash(name) => write!(f, "the trash of worktree '{name}'"),
        }
    }
}

/// A tree that is verified.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VerifiedTree {
    owner: TreeOwner,
    root: MapRoot,
}

/// What a damaged blob hits in one tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AffectedTree {
    /// Whose tree it is.
    #[serde(flatten)]
    pub owner: TreeOwner,
    /// Paths in it, escaped, in their order; the first ones only. Of the trash, those that entries had.
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
    /// Whether a part of the index is damaged or missing, so that [`rebuild_index`] is of use.
    pub needs_new_index: bool,
    /// What is damaged.
    pub findings: Vec<VerifyFinding>,
    /// What is in the store and none of the volume's; not looked for if not everything was verified.
    pub foreign: ForeignObjects,
    /// Which part of the packs was looked at, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<PartReport>,
}

/// Blobs that were looked at, and their bytes as they are stored.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CheckedAmount {
    blobs: u64,
    bytes: u64,
}

impl CheckedAmount {
    fn add_blob(&mut self, volume: &Volume, id: &BlobId) {
        // Only a figure: that a blob is not found is reported where it is read.
        let held = volume.blobs.find_holder(id).ok().flatten();
        self.add_stored_bytes(held.map_or(0, |held| held.place.len));
    }

    fn add_stored_bytes(&mut self, len: u32) {
        self.blobs += 1;
        self.bytes += u64::from(len);
    }
}

/// Damage found so far.
#[derive(Default, Clone)]
pub(crate) struct FoundDamage {
    objects: BTreeMap<String, String>,
    blobs: BTreeMap<BlobId, (BlobKind, String)>,
    /// Damaged blobs with where they were to be: the object to name.
    packs: BTreeMap<BlobId, BTreeSet<String>>,
    /// Chunks that cannot be read and were condemned: damage only if something needs them.
    gone: BTreeSet<BlobId>,
    /// Objects of the index that cannot be used, and packs that it does not know although something may need them.
    index_gaps: usize,
}

impl FoundDamage {
    fn add_object(&mut self, object: impl Into<String>, problem: impl Into<String>) {
        // The first finding counts: what follows is mostly caused by it.
        self.objects.entry(object.into()).or_insert_with(|| problem.into());
    }

    /// Adds damaged objects that were found beside this.
    fn add_objects(&mut self, other: Self) {
        for (object, problem) in other.objects {
            self.add_object(object, problem);
        }
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
    Verification::run(volume, scope, metadata_only, meter)?.into_report(volume)
}

/// What a verification found, before it is told which files are hit.
pub struct Verification {
    trees: Vec<VerifiedTree>,
    damage: FoundDamage,
    read: CheckedAmount,
    foreign: ForeignObjects,
    part: Option<PartReport>,
}

impl Verification {
    /// Verifies a scope; see [`verify_volume`].
    pub fn run(
        volume: &Volume,
        scope: &VerifyScope,
        metadata_only: bool,
        meter: &ProgressMeter,
    ) -> Result<Self> {
        let mut damage = FoundDamage::default();
        // A copy on this machine can be sound while the store has lost the object.
        volume.blobs.ignore_local_copies();
        // Packs that another machine replaced since would be reported as missing.
        volume.blobs.refresh_index()?;
        let foreign = match scope {
            VerifyScope::Snapshot(_) | VerifyScope::Part(_) => ForeignObjects::default(),
            VerifyScope::All => foreign::count_foreign_objects(volume)?,
        };
        let CheckedTrees { trees, read, part } = match scope {
            VerifyScope::Snapshot(entry) => {
                let trees = Vec::from_iter(objects::check_record(volume, &entry.id, &mut damage)?);
                let content = if metadata_only { CheckedContent::Nothing } else { CheckedContent::All };
                let read = trees::walk_trees(volume, &trees, content.into(), &mut damage, meter)?;
                CheckedTrees { trees, read, part: None }
            }
            VerifyScope::Part(part) => {
                let checked = part::check_part(volume, *part, &mut damage, meter)?;
                // Trees are only needed to name the files that are hit.
                let is_sound = damage.blobs.is_empty();
                let trees = if is_sound { Vec::new() } else { objects::list_readable_trees(volume)? };
                CheckedTrees { trees, read: checked.read, part: checked.part }
            }
            VerifyScope::All => {
                // The trees are made of blobs that were read with their packs.
                let checked = objects::check_all_objects(volume, metadata_only, &mut damage, meter)?;
                // The walk below reads all nodes: announced, each of their packs is fetched in two requests.
                volume.blobs.announce_all_nodes();
                let is_content_there = volume.blobs.has_source() && !metadata_only;
                let content =
                    if is_content_there { CheckedContent::InSource } else { CheckedContent::Nothing };
                walk_all_trees(volume, checked, content, &mut damage, meter)?
            }
        };
        // After all blobs were looked at: a tree that cannot be read was found above, and is passed over.
        if part.is_none() {
            structure::check_structure(volume, &trees, &mut damage, meter)?;
        }
        // The next snapshot stores them again, as far as the directory still has them.
        // Only a complete run can also take blobs off the list: others have not looked at all of them.
        let all = matches!(scope, VerifyScope::All) && !metadata_only;
        volume.record_lost_blobs(damage.blobs.keys().copied(), all);
        Ok(Self { trees, damage, read, foreign, part })
    }

    /// The blobs that are missing or damaged.
    #[must_use]
    pub fn lost_blobs(&self) -> BTreeMap<BlobId, BlobKind> {
        self.damage.blobs.iter().map(|(id, (kind, _))| (*id, *kind)).collect()
    }

    /// The trees that were verified, each once.
    #[must_use]
    pub fn verified_roots(&self) -> BTreeSet<MapRoot> {
        self.trees.iter().map(|tree| tree.root).collect()
    }

    /// The packs that are missing or damaged.
    #[must_use]
    pub fn damaged_packs(&self) -> BTreeSet<PackId> {
        let packs = self.damage.objects.keys().filter_map(|object| object.strip_prefix("packs/"));
        packs.filter_map(|id| id.parse().ok()).collect()
    }

    /// Takes off the damage what was mended: blobs that can be read again, and packs that nothing is read from any more.
    pub fn remove_mended(&mut self, blobs: &BTreeSet<BlobId>, packs: &BTreeSet<PackId>) {
        self.damage.blobs.retain(|id, _| !blobs.contains(id));
        for pack in packs {
            self.damage.objects.remove(&format!("packs/{pack}"));
        }
    }

    /// The report, with the files that the damage hits.
    pub fn into_report(self, volume: &Volume) -> Result<VerifyReport> {
        let Self { trees, damage, read, foreign, part } = self;
        let findings = places::name_findings(volume, &trees, &damage)?;
        // Packs that the index does not know are those of a writer at work, as long as nothing is missed.
        let needs_new_index = damage.index_gaps > 0 && !findings.is_empty();
        let is_snapshot = |tree: &&VerifiedTree| matches!(tree.owner, TreeOwner::Snapshot(_));
        let snapshots = trees.iter().filter(is_snapshot).count() as u64;
        let CheckedAmount { blobs, bytes } = read;
        Ok(VerifyReport { snapshots, blobs, bytes, needs_new_index, findings, foreign, part })
    }
}

/// Trees that were walked, and how much was read.
struct CheckedTrees {
    trees: Vec<VerifiedTree>,
    read: CheckedAmount,
    part: Option<PartReport>,
}

/// Walks the trees of snapshots, and those that refs alone name. Returns all that were walked.
fn walk_all_trees(
    volume: &Volume,
    checked: CheckedObjects,
    content: CheckedContent,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedTrees> {
    let CheckedObjects { snapshots, mut unsnapshotted, mut read } = checked;
    let before = damage.clone();
    let mut attempt = 1;
    loop {
        let trees: Vec<_> = snapshots.iter().chain(&unsnapshotted).cloned().collect();
        let walked = trees::walk_trees(volume, &trees, content.into(), damage, meter)?;
        let is_sound = damage.blobs.len() == before.blobs.len();
        // A mount that publishes replaces its trees, and a collection then deletes what only these needed.
        let named = if is_sound || attempt == WALKS_MAX {
            None
        } else {
            Some(objects::list_unsnapshotted_trees(volume)?)
        };
        match named {
            Some(named) if unsnapshotted.iter().any(|tree| !named.contains(tree)) => unsnapshotted = named,
            _ => {
                // What is here was counted with its packs.
                if content == CheckedContent::InSource {
                    read.blobs += walked.blobs;
                    read.bytes += walked.bytes;
                }
                return Ok(CheckedTrees { trees, read, part: None });
            }
        }
        // What was missing in trees that nothing names any more is no damage.
        damage.clone_from(&before);
        attempt += 1;
        volume.blobs.refresh_index()?;
    }
}

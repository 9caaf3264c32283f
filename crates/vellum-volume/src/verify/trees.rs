//! The trees of snapshots, and those that refs alone name: every node decodes, every value in it too, and all that they
//! refer to is there.

use std::collections::HashSet;

use rayon::prelude::*;
use vellum_host::ProgressMeter;
use vellum_host::parallel::run_parallel;
use vellum_map::{ChildDescription, MapNode};
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, BlobKind, DecodeError, Dentry, ErrorKind, Extent, ExtentSource, Ino, InodeAttr, MapKeyRef, PackId,
};

use super::{CheckedAmount, FoundDamage, VerifiedTree};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Nodes that are fetched and decoded together.
const NODE_BATCH: usize = 256;
/// Chunks that are fetched and opened together: 16 MiB of content.
const CHUNK_BATCH: usize = 256;

/// Which chunks of trees are read. For the others, it is enough that the index knows them and no pack was found damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckedContent {
    /// None.
    Nothing,
    /// Those that only the source of the store has. Only blobs of the source count as read.
    InSource,
    /// All.
    All,
}

/// How much of trees is looked at.
#[derive(Debug, Clone, Copy)]
pub struct WalkExtent<'p> {
    /// Which chunks are read.
    pub content: CheckedContent,
    /// Only nodes in these packs, and those that are in none; of the others it is enough that they are there. None: all.
    pub packs: Option<&'p HashSet<PackId>>,
}

impl WalkExtent<'_> {
    fn contains(&self, volume: &Volume, id: &BlobId) -> bool {
        let Some(packs) = self.packs else { return true };
        volume.blobs.locate_blob(id).is_none_or(|place| packs.contains(&place.pack))
    }
}

impl From<CheckedContent> for WalkExtent<'_> {
    fn from(content: CheckedContent) -> Self {
        Self { content, packs: None }
    }
}

/// Walks the trees, and returns how much it read of them.
pub fn walk_trees(
    volume: &Volume,
    trees: &[VerifiedTree],
    extent: WalkExtent<'_>,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedAmount> {
    let content = extent.content;
    let mut read = CheckedAmount::default();
    let roots = trees.iter().map(|tree| tree.root.0).filter(|id| *id != volume.empty_root().0);
    let mut seen: HashSet<ClaimedNode> = roots.map(|id| ClaimedNode { id, claim: None }).collect();
    let mut waiting: Vec<(ClaimedNode, Option<BlobId>)> =
        seen.iter().map(|place| (place.clone(), None)).collect();
    let mut chunks: HashSet<BlobId> = HashSet::new();
    while !waiting.is_empty() {
        meter.check_stopped()?;
        // From the end, so that the walk goes down first: of a wide tree, few nodes wait at a time.
        let batch = waiting.split_off(waiting.len().saturating_sub(NODE_BATCH));
        for ((place, parent), outcome) in batch.iter().zip(check_nodes(volume, &batch)?) {
            // If only the content of the source is read here, what the store itself has was counted with its packs.
            if content != CheckedContent::InSource || volume.blobs.locate_blob(&place.id).is_none() {
                read.add_blob(volume, &place.id);
            }
            let (facts, references) = match outcome {
                Ok(sound) => sound,
                Err(problem) => {
                    // What lies below it cannot be reached, and is named as hit by this node.
                    damage.add_blob(BlobKind::Node, place.id, problem);
                    continue;
                }
            };
            if let (Some(claim), Some(parent)) = (&place.claim, parent)
                && *claim != facts
            {
                // The child may be sound in another tree: it is the parent that cannot be followed.
                damage.add_blob(BlobKind::Node, *parent, format!("its child {} is not as it says", place.id));
                continue;
            }
            // Snapshots share most of their trees: what another one has named in the same words is not read again.
            let below = references.nodes.into_iter().filter(|place| seen.insert(place.clone()));
            let below = below.filter(|below| extent.contains(volume, &below.id));
            waiting.extend(below.map(|below| (below, Some(place.id))));
            chunks.extend(references.chunks);
        }
    }
    match content {
        CheckedContent::Nothing => look_up_chunks(volume, &chunks, damage)?,
        CheckedContent::All => read_chunks(volume, chunks, damage, &mut read, meter)?,
        CheckedContent::InSource => {
            let is_here = |id: &BlobId| volume.blobs.locate_blob(id).is_some();
            let (here, there): (HashSet<_>, HashSet<_>) = chunks.into_iter().partition(is_here);
            look_up_chunks(volume, &here, damage)?;
            read_chunks(volume, there, damage, &mut read, meter)?;
        }
    }
    Ok(read)
}

/// What a parent says of its child, and what the child then is: its level, its last key, how many keys are below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ChildClaim {
    level: u8,
    last_key: Box<[u8]>,
    total: u64,
}

/// A node as some parent names it. What two parents say of one node is checked twice, if they do not say the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClaimedNode {
    id: BlobId,
    /// None for a root, of which nobody says anything.
    claim: Option<ChildClaim>,
}

struct BlobReferences {
    nodes: Vec<ClaimedNode>,
    chunks: Vec<BlobId>,
}

/// Outcome for one blob: damage is told apart from a store that does not answer.
type BlobCheck<T> = Result<T, String>;

fn check_nodes(
    volume: &Volume,
    batch: &[(ClaimedNode, Option<BlobId>)],
) -> Result<Vec<BlobCheck<(ChildClaim, BlobReferences)>>> {
    let wanted: Vec<_> = batch.iter().map(|(place, _)| (BlobKind::Node, place.id)).collect();
    let fetched = volume.blobs.fetch_blobs(&wanted)?;
    let read = |place| {
        let bytes = match classify_outcome(fetched.open_blob(place))? {
            Ok(bytes) => bytes,
            Err(problem) => return Ok(Err(problem)),
        };
        let node = MapNode::decode(bytes).map_err(|error| error.to_string());
        Ok(node.and_then(|node| {
            Ok((node_claim(&node), collect_blob_references(&node).map_err(|error| error.to_string())?))
        }))
    };
    run_parallel(|| (0..batch.len()).into_par_iter().map(read).collect())
}

fn classify_outcome<T>(outcome: Result<T, vellum_store::BlobError>) -> Result<BlobCheck<T>> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            Ok(Err(error.to_string()))
        }
        // A store that does not answer is no damage: the verification fails, and says nothing of what it did not see.
        Err(error) => Err(VolumeError::Blob(error)),
    }
}

fn node_claim(node: &MapNode) -> ChildClaim {
    let last_key = node.last_key().unwrap_or_default().into();
    ChildClaim { level: node.level(), last_key, total: node.total_keys() }
}

/// What a node refers to; every value in it must decode.
fn collect_blob_references(node: &MapNode) -> Result<BlobReferences, DecodeError> {
    if !node.is_leaf() {
        // Decoding gave it a level of at least 1.
        let level = node.level().saturating_sub(1);
        let place = |child: ChildDescription<'_>| {
            let claim = ChildClaim { level, last_key: child.last_key.into(), total: child.count };
            ClaimedNode { id: child.id, claim: Some(claim) }
        };
        return Ok(BlobReferences { nodes: node.children().map(place).collect(), chunks: Vec::new() });
    }
    let mut chunks = Vec::new();
    for (key, value) in node.entries() {
        // Most values are decoded only to be checked: what comes of them is not needed here.
        match MapKeyRef::parse(key)? {
            MapKeyRef::Attr(Ino::SUPER) => {
                SuperBlock::decode(value)?;
            }
            MapKeyRef::Attr(_) => {
                InodeAttr::decode_published(value)?;
            }
            MapKeyRef::Dentry(..) => {
                Dentry::decode(value)?;
            }
            MapKeyRef::Xattr(..) => {}
            MapKeyRef::Extent(..) => {
                if let ExtentSource::Chunk { id, .. } = Extent::decode(value)?.source {
                    chunks.push(id);
                }
            }
        }
    }
    Ok(BlobReferences { nodes: Vec::new(), chunks })
}

fn look_up_chunks(volume: &Volume, chunks: &HashSet<BlobId>, damage: &mut FoundDamage) -> Result<()> {
    // Reading the trees may have taken hours. A collection may have moved chunks to other packs meanwhile.
    volume.blobs.refresh_index()?;
    for id in chunks {
        let known = is_chunk_known(volume, id)? && !damage.gone.contains(id);
        if !known && !damage.is_blob_lost(id) {
            damage.add_blob(BlobKind::Chunk, *id, "it is not in the store");
        }
    }
    Ok(())
}

/// Whether the store or its source has a chunk.
fn is_chunk_known(volume: &Volume, id: &BlobId) -> Result<bool> {
    if volume.blobs.locate_blob(id).is_some() {
        return Ok(true);
    }
    Ok(classify_outcome(volume.blobs.require_holder(BlobKind::Chunk, id))?.is_ok())
}

fn read_chunks(
    volume: &Volume,
    chunks: HashSet<BlobId>,
    damage: &mut FoundDamage,
    read_so_far: &mut CheckedAmount,
    meter: &ProgressMeter,
) -> Result<()> {
    // In the order in which they lie, so that neighbours come in one read.
    let place = |id: &BlobId| {
        // What has no place comes first, and is found missing when it is fetched.
        let held = volume.blobs.find_holder(id).ok().flatten();
        held.map(|held| (held.place.pack, held.place.offset))
    };
    let mut ordered: Vec<_> = chunks.into_iter().map(|id| (place(&id), id)).collect();
    ordered.sort_unstable();
    meter.set_expected_total(ordered.len() as u64, 0);
    for batch in ordered.chunks(CHUNK_BATCH) {
        meter.check_stopped()?;
        let wanted: Vec<_> = batch.iter().map(|(_, id)| (BlobKind::Chunk, *id)).collect();
        let fetched = volume.blobs.fetch_blobs(&wanted)?;
        let read = |place| classify_outcome(fetched.open_blob(place).map(|bytes| bytes.len() as u64));
        let outcomes: Vec<BlobCheck<u64>> =
            run_parallel(|| (0..batch.len()).into_par_iter().map(read).collect::<Result<_>>())?;
        for ((_, id), outcome) in batch.iter().zip(outcomes) {
            read_so_far.add_blob(volume, id);
            match outcome {
                Ok(bytes) => meter.add_progress(1, bytes),
                Err(problem) => damage.add_blob(BlobKind::Chunk, *id, problem),
            }
        }
    }
    Ok(())
}

//! The trees of snapshots: every node decodes, every value in it too, and all that they refer to is there.

use std::collections::HashSet;

use rayon::prelude::*;
use vellum_map::{Node, Root};
use vellum_types::value::Super;
use vellum_types::{
    Attr, BlobId, BlobKind, DecodeError, Dentry, ErrorKind, Extent, ExtentSource, Ino, KeyRef, SnapshotId,
};

use super::Damage;
use crate::error::{Result, VolumeError};
use crate::progress::Meter;
use crate::volume::Volume;

/// Nodes that are fetched and decoded together.
const NODE_BATCH: usize = 256;
/// Chunks that are fetched and opened together: 16 MiB of content.
const CHUNK_BATCH: usize = 256;

/// Walks the trees. With `content`, their chunks are read too; else it is enough that the index knows them and no
/// pack was found damaged.
pub fn walk(
    volume: &Volume,
    snapshots: &[(SnapshotId, Root)],
    content: bool,
    damage: &mut Damage,
    meter: &Meter,
) -> Result<()> {
    let mut nodes: Vec<BlobId> = snapshots.iter().map(|(_, root)| root.0).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.retain(|id| *id != volume.empty_root().0);
    let mut seen: HashSet<BlobId> = nodes.iter().copied().collect();
    let mut chunks: HashSet<BlobId> = HashSet::new();
    while !nodes.is_empty() {
        meter.check()?;
        let batch = nodes.split_off(nodes.len().saturating_sub(NODE_BATCH));
        for (id, outcome) in batch.iter().zip(read_nodes(volume, &batch)?) {
            damage.read_blobs += 1;
            match outcome {
                Ok(references) => {
                    nodes.extend(references.nodes.into_iter().filter(|id| seen.insert(*id)));
                    chunks.extend(references.chunks);
                }
                Err(problem) => damage.blob(BlobKind::Node, *id, problem),
            }
        }
    }
    if content { read_chunks(volume, chunks, damage, meter) } else { look_up(volume, &chunks, damage) }
}

struct References {
    nodes: Vec<BlobId>,
    chunks: Vec<BlobId>,
}

/// Outcome for one blob: damage is told apart from a store that does not answer.
type Checked<T> = std::result::Result<T, String>;

fn read_nodes(volume: &Volume, ids: &[BlobId]) -> Result<Vec<Checked<References>>> {
    let wanted: Vec<_> = ids.iter().map(|id| (BlobKind::Node, *id)).collect();
    let fetched = volume.blobs.fetch(&wanted)?;
    let read = |place| {
        let bytes = match sort_out(fetched.open(place))? {
            Ok(bytes) => bytes,
            Err(problem) => return Ok(Err(problem)),
        };
        let node = Node::decode(bytes).map_err(|error| error.to_string());
        Ok(node.and_then(|node| references(&node).map_err(|error| error.to_string())))
    };
    (0..ids.len()).into_par_iter().map(read).collect()
}

fn sort_out<T>(outcome: std::result::Result<T, vellum_store::BlobError>) -> Result<Checked<T>> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(VolumeError::Blob(error)),
    }
}

/// What a node refers to; every value in it must decode.
fn references(node: &Node) -> std::result::Result<References, DecodeError> {
    if !node.is_leaf() {
        return Ok(References { nodes: node.children().map(|child| child.id).collect(), chunks: Vec::new() });
    }
    let mut chunks = Vec::new();
    for (key, value) in node.entries() {
        match KeyRef::parse(key)? {
            KeyRef::Attr(Ino::SUPER) => {
                Super::decode(value)?;
            }
            KeyRef::Attr(_) => {
                Attr::decode(value)?;
            }
            KeyRef::Dentry(..) => {
                Dentry::decode(value)?;
            }
            KeyRef::Xattr(..) => {}
            KeyRef::Extent(..) => {
                if let ExtentSource::Chunk { id, .. } = Extent::decode(value)?.source {
                    chunks.push(id);
                }
            }
        }
    }
    Ok(References { nodes: Vec::new(), chunks })
}

fn look_up(volume: &Volume, chunks: &HashSet<BlobId>, damage: &mut Damage) -> Result<()> {
    volume.blobs.refresh()?;
    for id in chunks {
        let known = volume.blobs.locate(id).is_some() && !damage.gone.contains(id);
        if !known && !damage.is_lost(id) {
            damage.blob(BlobKind::Chunk, *id, "it is not in the store");
        }
    }
    Ok(())
}

fn read_chunks(volume: &Volume, chunks: HashSet<BlobId>, damage: &mut Damage, meter: &Meter) -> Result<()> {
    // In the order in which they lie, so that neighbours come in one read.
    let place = |id: &BlobId| volume.blobs.locate(id).map(|place| (place.pack, place.offset));
    let mut ordered: Vec<_> = chunks.into_iter().map(|id| (place(&id), id)).collect();
    ordered.sort_unstable();
    meter.expect(ordered.len() as u64, 0);
    for batch in ordered.chunks(CHUNK_BATCH) {
        meter.check()?;
        let wanted: Vec<_> = batch.iter().map(|(_, id)| (BlobKind::Chunk, *id)).collect();
        let fetched = volume.blobs.fetch(&wanted)?;
        let read = |place| sort_out(fetched.open(place).map(|bytes| bytes.len() as u64));
        let outcomes: Vec<Checked<u64>> =
            (0..batch.len()).into_par_iter().map(read).collect::<Result<_>>()?;
        for ((_, id), outcome) in batch.iter().zip(outcomes) {
            damage.read_blobs += 1;
            match outcome {
                Ok(bytes) => {
                    damage.read_bytes += bytes;
                    meter.add(1, bytes);
                }
                Err(problem) => damage.blob(BlobKind::Chunk, *id, problem),
            }
        }
    }
    Ok(())
}

//! Marks live blobs: walks every tree from its root, each node once.

use std::collections::HashSet;

use rayon::prelude::*;
use vellum_host::ProgressMeter;
use vellum_host::parallel::run_parallel;
use vellum_map::{MapError, MapNode, MapRoot};
use vellum_store::BlobError;
use vellum_types::{BlobId, BlobKind, DecodeError, Extent, ExtentSource, MapKeyRef};

use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Nodes that are fetched and decoded together: some MiB.
const BATCH: usize = 512;

/// The blobs that some tree needs.
#[derive(Debug, Default, Clone)]
pub struct LiveBlobs {
    /// Half an id each: as good as unique (2^-64 for a billion blobs), and a false "alive" does no harm.
    ids: HashSet<u128>,
}

impl LiveBlobs {
    fn insert_id(&mut self, id: &BlobId) -> bool {
        self.ids.insert(low_half_bits(id))
    }

    /// Adds what another mark found.
    pub(super) fn add_all(&mut self, other: Self) {
        self.ids.extend(other.ids);
    }

    /// Returns whether some tree needs the blob.
    #[must_use]
    pub fn contains_id(&self, id: &BlobId) -> bool {
        self.ids.contains(&low_half_bits(id))
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Half an id, which is as good as unique.
pub(crate) fn low_half_bits(id: &BlobId) -> u128 {
    let mut bytes = [0; 16];
    // Ids are hashes: either half is as good as the other.
    bytes.iter_mut().zip(id.as_bytes()).for_each(|(to, from)| *to = *from);
    u128::from_le_bytes(bytes)
}

/// Adds to `live` all that the trees at `roots` need; what it has already is not walked again. Fails if the index does not
/// know a blob, or a node is damaged. A node that only the source of the store has is not walked: whoever stored it
/// there stored all below it there, and what is written here is named by nodes that are here.
pub fn mark_live_blobs(
    volume: &Volume,
    roots: impl IntoIterator<Item = MapRoot>,
    live: &mut LiveBlobs,
    meter: &ProgressMeter,
) -> Result<()> {
    mark_reached_blobs(volume, roots, |id| live.insert_id(id), meter)
}

/// Walks the trees at `roots`, and calls `reach` with all that they need. Below a node for which it returns false nothing is
/// walked. Fails as [`mark_live_blobs`] does.
pub(crate) fn mark_reached_blobs(
    volume: &Volume,
    roots: impl IntoIterator<Item = MapRoot>,
    mut reach: impl FnMut(&BlobId) -> bool,
    meter: &ProgressMeter,
) -> Result<()> {
    let empty = volume.empty_root();
    let mut waiting: Vec<BlobId> = Vec::new();
    for MapRoot(id) in roots {
        // The node of the empty tree need not be in the store.
        if id != empty.0 && reach(&id) {
            waiting.push(id);
        }
    }
    if !waiting.is_empty() {
        // All nodes are going to be read: announced, each of their packs is fetched in two requests.
        volume.blobs.announce_all_nodes();
    }
    while !waiting.is_empty() {
        meter.check_stopped()?;
        // From the end: depth first keeps the list short, where breadth would hold a whole level of the largest tree.
        let mut batch = waiting.split_off(waiting.len().saturating_sub(BATCH));
        if volume.blobs.has_source() {
            batch = select_own_nodes(volume, batch)?;
        }
        for references in read_node_references(volume, &batch)? {
            meter.add_progress(1, 0);
            waiting.extend(references.nodes.into_iter().filter(|id| reach(id)));
            for id in references.chunks {
                // Chunks are not read, only looked up in the local index: marking costs requests for nodes alone.
                if reach(&id) && volume.blobs.locate_blob(&id).is_none() {
                    // Not known where it is: its pack would pass for one that nobody needs.
                    require_in_source(volume, BlobKind::Chunk, id)?;
                }
            }
        }
    }
    Ok(())
}

/// The nodes that the store of the volume has. Fails if neither the store nor its source has one of the others.
fn select_own_nodes(volume: &Volume, ids: Vec<BlobId>) -> Result<Vec<BlobId>> {
    let mut own = Vec::with_capacity(ids.len());
    for id in ids {
        if volume.blobs.locate_blob(&id).is_some() {
            own.push(id);
        } else {
            require_in_source(volume, BlobKind::Node, id)?;
        }
    }
    Ok(own)
}

/// Fails if a blob that the store of the volume does not have is not in its source either, or if there is none.
fn require_in_source(volume: &Volume, kind: BlobKind, id: BlobId) -> Result<()> {
    if volume.blobs.has_source() {
        return Ok(volume.blobs.require_holder(kind, &id).map(drop)?);
    }
    Err(BlobError::NotFound { kind, id }.into())
}

/// What a node refers to.
pub(crate) struct NodeReferences {
    /// The level of the node; 0 for a leaf.
    pub level: u8,
    pub nodes: Vec<BlobId>,
    pub chunks: Vec<BlobId>,
}

/// Reads nodes together, and returns what each refers to, in the order asked for.
pub(crate) fn read_node_references(volume: &Volume, ids: &[BlobId]) -> Result<Vec<NodeReferences>> {
    let wanted: Vec<_> = ids.iter().map(|id| (BlobKind::Node, *id)).collect();
    let fetched = volume.blobs.fetch_blobs(&wanted)?;
    let read = |(place, id): (usize, &BlobId)| -> Result<NodeReferences> {
        let bytes = fetched.open_blob(place)?;
        let node = MapNode::decode(bytes).map_err(|source| MapError::Node { id: *id, source })?;
        collect_node_references(&node, id)
    };
    // To open a blob is to decrypt and decompress it, which all processors share.
    run_parallel(|| ids.par_iter().enumerate().map(read).collect())
}

fn collect_node_references(node: &MapNode, id: &BlobId) -> Result<NodeReferences> {
    if !node.is_leaf() {
        return Ok(NodeReferences {
            level: node.level(),
            nodes: node.children().map(|child| child.id).collect(),
            chunks: Vec::new(),
        });
    }
    let chunks = node.entries().filter_map(|(key, value)| parse_chunk_id(key, value).transpose());
    let chunks = chunks.collect::<Result<_, DecodeError>>();
    let broken = |source| VolumeError::Decode { what: format!("node {id}"), source };
    Ok(NodeReferences { level: 0, nodes: Vec::new(), chunks: chunks.map_err(broken)? })
}

/// The chunk that an entry refers to, if it is an extent of one.
fn parse_chunk_id(key: &[u8], value: &[u8]) -> Result<Option<BlobId>, DecodeError> {
    let MapKeyRef::Extent(..) = MapKeyRef::parse(key)? else { return Ok(None) };
    match Extent::decode(value)?.source {
        ExtentSource::Chunk { id, .. } => Ok(Some(id)),
        // A write log is in no store: such an extent keeps nothing alive, and a verification reports it.
        ExtentSource::Hole | ExtentSource::WriteLog { .. } => Ok(None),
    }
}

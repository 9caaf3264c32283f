//! Where files have the chunks that are lost: paths and ranges to look for them in directories.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vellum_map::{MapNode, MapRoot};
use vellum_types::{BlobId, BlobKind, Extent, ExtentSource, Ino, MapKeyRef};

use crate::error::Result;
use crate::volume::Volume;

/// A range of a file that has the content of a lost chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkUse {
    /// Where the chunk begins in the file.
    pub offset: u64,
    /// Bytes of the chunk, as far as the file shows them: all of it, unless the file was cut there.
    pub len: u64,
    /// The chunk.
    pub chunk: BlobId,
}

/// Returns the files that have lost chunks, by their paths in the snapshots. Trees are searched as far as they can be read.
pub fn find_chunk_uses(
    volume: &Volume,
    roots: &BTreeSet<MapRoot>,
    lost: &BTreeMap<BlobId, BlobKind>,
) -> Result<BTreeMap<Vec<u8>, BTreeSet<ChunkUse>>> {
    let mut found: BTreeMap<Vec<u8>, BTreeSet<ChunkUse>> = BTreeMap::new();
    let mut met: HashSet<BlobId> = HashSet::new();
    for root in roots {
        // Nodes that several trees share are looked through once: a file that did not change has one path mostly.
        let uses = find_uses_in_tree(volume, *root, lost, &mut met);
        let tree = volume.open_tree(*root);
        for (ino, uses) in uses {
            // Where directories are lost, the file is found by its content, if at all.
            if let Ok(path) = tree.inode_path(ino) {
                found.entry(path).or_default().extend(uses);
            }
        }
    }
    Ok(found)
}

fn find_uses_in_tree(
    volume: &Volume,
    root: MapRoot,
    lost: &BTreeMap<BlobId, BlobKind>,
    met: &mut HashSet<BlobId>,
) -> HashMap<Ino, BTreeSet<ChunkUse>> {
    let mut uses: HashMap<Ino, BTreeSet<ChunkUse>> = HashMap::new();
    let mut waiting = vec![root.0];
    while let Some(id) = waiting.pop() {
        if lost.contains_key(&id) || !met.insert(id) {
            continue;
        }
        let read = volume.blobs.read_blob(BlobKind::Node, &id);
        // Of what is below a node that cannot be read, another tree may tell.
        let Some(node) = read.ok().and_then(|bytes| MapNode::decode(bytes).ok()) else { continue };
        if !node.is_leaf() {
            waiting.extend(node.children().map(|child| child.id));
            continue;
        }
        for (key, value) in node.entries() {
            let Ok(MapKeyRef::Extent(ino, at)) = MapKeyRef::parse(key) else { continue };
            let Ok(Extent { len, source: ExtentSource::Chunk { id, skip } }) = Extent::decode(value) else {
                continue;
            };
            // A chunk of which the file has lost its beginning may begin before the file does.
            let Some(offset) = at.checked_sub(u64::from(skip)).filter(|_| lost.contains_key(&id)) else {
                continue;
            };
            uses.entry(ino).or_default().insert(ChunkUse { offset, len: len + u64::from(skip), chunk: id });
        }
    }
    uses
}

//! Which blobs of a tree the target lacks: trees are walked level by level, and what a base has, too, is skipped.
//!
//! Invariant: what the target is taken to have, it has in a snapshot that it lists, or in a pack on which its writers
//! may rely. The cost is proportional to what differs from the bases.

use std::collections::HashSet;

use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::BlobWriter;
use vellum_types::{BlobId, BlobKind};

use crate::error::{Result, VolumeError};
use crate::gc::{NodeReferences, read_node_references};
use crate::volume::Volume;

/// Nodes that are fetched together, a count: some MiB.
const BATCH: usize = 512;

/// A tree that the target has, or will have before the one that is looked at.
pub(super) struct BaseTree<'a> {
    /// Where it is read.
    pub volume: &'a Volume,
    pub root: MapRoot,
}

/// Blobs to send, each once.
#[derive(Default)]
pub(super) struct MissingBlobs {
    ids: HashSet<(BlobKind, BlobId)>,
    /// Nodes that were met before: all below them is known.
    walked: HashSet<BlobId>,
}

/// Nodes of one level of a tree that may differ from those of other trees.
struct TreeLevel<'a> {
    volume: &'a Volume,
    /// 0 for leaves.
    level: u8,
    nodes: Vec<BlobId>,
}

impl<'a> TreeLevel<'a> {
    /// The top node of a tree; none if the tree is empty.
    fn at_root(volume: &'a Volume, MapRoot(id): MapRoot) -> Result<Option<Self>> {
        // The node of the empty tree need not be in any store.
        if id == volume.empty_root().0 {
            return Ok(None);
        }
        let read = read_node_references(volume, &[id])?;
        let level = read.first().map_or(0, |references| references.level);
        Ok(Some(Self { volume, level, nodes: vec![id] }))
    }

    /// What the nodes refer to, all together.
    fn read_references(&self, meter: &ProgressMeter) -> Result<NodeReferences> {
        let mut all = NodeReferences { level: self.level, nodes: Vec::new(), chunks: Vec::new() };
        for batch in self.nodes.chunks(BATCH) {
            meter.check_stopped()?;
            for references in read_node_references(self.volume, batch)? {
                // Levels go down by one, so that a damaged tree ends, too.
                if references.level != self.level {
                    return Err(VolumeError::BadTree("a node is on another level than its siblings".into()));
                }
                all.nodes.extend(references.nodes);
                all.chunks.extend(references.chunks);
                meter.add_progress(1, 0);
            }
        }
        Ok(all)
    }

    /// Goes down to what the nodes refer to; gives the chunks of leaves.
    fn descend(&mut self, meter: &ProgressMeter) -> Result<Vec<BlobId>> {
        let NodeReferences { nodes, chunks, .. } = self.read_references(meter)?;
        self.nodes = nodes;
        self.level = self.level.saturating_sub(1);
        Ok(chunks)
    }
}

impl MissingBlobs {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (BlobKind, BlobId)> {
        self.ids.iter().copied()
    }

    /// Adds what the target lacks of a tree of `from`.
    pub fn add_tree(
        &mut self,
        from: &Volume,
        root: MapRoot,
        bases: Vec<BaseTree<'_>>,
        writer: &BlobWriter,
        meter: &ProgressMeter,
    ) -> Result<()> {
        if self.walked.contains(&root.0) || bases.iter().any(|base| base.root == root) {
            return Ok(());
        }
        let Some(mut tree) = TreeLevel::at_root(from, root)? else { return Ok(()) };
        let mut others = Vec::with_capacity(bases.len());
        for base in bases {
            others.extend(TreeLevel::at_root(base.volume, base.root)?);
        }
        while !tree.nodes.is_empty() {
            let level = tree.level;
            // Of a base that is higher, the nodes of the same level have to be found first.
            for other in &mut others {
                while other.level > level {
                    other.descend(meter)?;
                }
            }
            let mut same = others.iter_mut().filter(|other| other.level == level).collect::<Vec<_>>();
            let there: HashSet<BlobId> = same.iter().flat_map(|other| &other.nodes).copied().collect();
            // Before nodes are struck off: a node of a base that is equal to one of these is not gone through, also
            // if that is on the list already.
            let here: HashSet<BlobId> = tree.nodes.iter().copied().collect();
            // What an earlier snapshot of this transfer needs, too, is on the list already, with all below it.
            tree.nodes.retain(|id| !there.contains(id) && self.walked.insert(*id));
            for id in &tree.nodes {
                self.add_blob(BlobKind::Node, *id, writer)?;
            }
            // All below a node that both have is in both trees, and nowhere else in either.
            let mut known_chunks = HashSet::new();
            for other in &mut same {
                other.nodes.retain(|id| !here.contains(id));
                known_chunks.extend(other.descend(meter)?);
            }
            for chunk in tree.descend(meter)? {
                if !known_chunks.contains(&chunk) {
                    self.add_blob(BlobKind::Chunk, chunk, writer)?;
                }
            }
            // Below leaves are chunks alone, and the level stays at 0.
            if level == 0 {
                break;
            }
        }
        Ok(())
    }

    fn add_blob(&mut self, kind: BlobKind, id: BlobId, writer: &BlobWriter) -> Result<()> {
        // The target may have it from a transfer that was interrupted, in a pack that no snapshot names yet.
        if !self.ids.contains(&(kind, id)) && writer.needs_blob(kind, &id)? {
            self.ids.insert((kind, id));
        }
        Ok(())
    }
}

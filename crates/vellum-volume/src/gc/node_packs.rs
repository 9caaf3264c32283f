//! How many packs the nodes of a tree are in, and which of these are to be joined.
//!
//! Each publication of a mount writes a small pack of nodes, and whoever lists all names reads every pack that the tree
//! needs. Invariant: a pack is joined only if some tree needs more than [`SMALL_PACKS_MAX`] small ones, so that a node is
//! copied a few times at most, however often is collected. Only upper nodes are read; where leaves are stands in the index.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::PackInfo;
use vellum_types::{BlobId, BlobKind, PackId};

use super::mark::{NodeReferences, read_node_references};
use super::plan::PackUsage;
use crate::error::Result;
use crate::volume::Volume;

/// Length below which a pack of nodes is small, bytes: a quarter of a full one.
pub(super) const SMALL_PACK: u64 = 4 << 20;
/// Small packs of nodes that a tree may need, a count: an hour of a mount that publishes each minute.
const SMALL_PACKS_MAX: usize = 64;

/// The packs that the nodes of a tree are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePackCount {
    /// All of them.
    pub packs: u64,
    /// Those that are small, which a collection joins if there are many.
    pub small: u64,
}

/// Counts the packs that the nodes of a tree are in: what is read to list all names.
pub fn count_node_packs(volume: &Volume, root: MapRoot, meter: &ProgressMeter) -> Result<NodePackCount> {
    volume.blobs.refresh_index()?;
    let mut packs = HashSet::new();
    if root != volume.empty_root() {
        let mut search = NodePackSearch {
            volume,
            is_wanted: |_: &PackId| true,
            most: usize::MAX,
            met: HashMap::new(),
            meter,
        };
        // Without a limit, there are never too many.
        if let TreePacks::Few(found) = search.find_packs(root.0, u8::MAX)? {
            packs.extend(found.iter().copied());
        }
    }
    let listed = volume.blobs.list_packs()?;
    let small = listed.iter().filter(|pack| pack.size < SMALL_PACK && packs.contains(&pack.id)).count();
    Ok(NodePackCount { packs: packs.len() as u64, small: small as u64 })
}

/// Returns the small packs of nodes that are to be joined: all, if one of the trees needs too many of them, and those for
/// which an earlier collection began that.
pub(super) fn find_packs_to_join(
    volume: &Volume,
    packs: &[PackInfo],
    usage: &HashMap<PackId, PackUsage>,
    roots: &[MapRoot],
    meter: &ProgressMeter,
) -> Result<HashSet<PackId>> {
    let is_small_and_needed = |pack: &&PackInfo| {
        let used = usage.get(&pack.id);
        pack.size < SMALL_PACK && used.is_some_and(|used| used.kind == BlobKind::Node && used.live > 0)
    };
    let small: HashSet<PackId> = packs.iter().filter(is_small_and_needed).map(|pack| pack.id).collect();
    let condemned = volume.blobs.condemned_packs();
    let is_wanted = |pack: &PackId| small.contains(pack);
    let mut search = NodePackSearch { volume, is_wanted, most: SMALL_PACKS_MAX, met: HashMap::new(), meter };
    // Fewer cannot be too many for one tree: then no node is read.
    if small.len() > SMALL_PACKS_MAX {
        for root in roots.iter().filter(|root| **root != volume.empty_root()) {
            if let TreePacks::Many = search.find_packs(root.0, u8::MAX)? {
                return Ok(small);
            }
        }
    }
    // An earlier collection has begun to join these, and goes on with it now.
    Ok(small.into_iter().filter(|pack| condemned.contains_key(pack)).collect())
}

/// The wanted packs that the nodes of a tree are in.
#[derive(Debug, Clone)]
enum TreePacks {
    /// These.
    Few(Arc<[PackId]>),
    /// More than are counted.
    Many,
}

struct NodePackSearch<'a, F> {
    volume: &'a Volume,
    is_wanted: F,
    /// Packs that are counted for one tree.
    most: usize,
    /// Inner nodes that were met: trees share most of theirs.
    met: HashMap<BlobId, TreePacks>,
    meter: &'a ProgressMeter,
}

impl<F: Fn(&PackId) -> bool> NodePackSearch<'_, F> {
    /// The packs of a node and of all below it. The node is below the level `above`.
    fn find_packs(&mut self, id: BlobId, above: u8) -> Result<TreePacks> {
        if let Some(found) = self.met.get(&id) {
            return Ok(found.clone());
        }
        self.meter.check_stopped()?;
        // Of a node that only the source of the store has, nothing below it is here.
        if self.volume.blobs.has_source() && self.volume.blobs.locate_blob(&id).is_none() {
            return Ok(self.remember(id, TreePacks::Few(Arc::default())));
        }
        let mut packs: BTreeSet<PackId> = self.find_own_pack(&id).into_iter().collect();
        for NodeReferences { level, nodes, .. } in read_node_references(self.volume, &[id])? {
            // Levels go down, so that a hostile tree ends.
            for child in nodes.iter().filter(|_| level < above) {
                match level {
                    // Leaves need not be read.
                    1 => packs.extend(self.find_own_pack(child)),
                    _ => match self.find_packs(*child, level)? {
                        TreePacks::Few(found) => packs.extend(found.iter().copied()),
                        TreePacks::Many => return Ok(self.remember(id, TreePacks::Many)),
                    },
                }
            }
        }
        let found = if packs.len() > self.most {
            TreePacks::Many
        } else {
            TreePacks::Few(packs.into_iter().collect())
        };
        Ok(self.remember(id, found))
    }

    fn remember(&mut self, id: BlobId, found: TreePacks) -> TreePacks {
        self.met.insert(id, found.clone());
        found
    }

    fn find_own_pack(&self, id: &BlobId) -> Option<PackId> {
        self.volume.blobs.locate_blob(id).map(|place| place.pack).filter(|pack| (self.is_wanted)(pack))
    }
}

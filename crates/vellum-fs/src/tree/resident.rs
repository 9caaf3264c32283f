//! Node access for transactions: only nodes in memory. While another one is fetched, possibly from a remote store,
//! commits are not blocked: the transaction is abandoned, and repeated when the node is in memory.

use std::sync::Arc;

use parking_lot::Mutex;
use vellum_map::{MapError, MapNode, NodeSource};
use vellum_types::{BlobId, ErrorKind};

use super::NodeProvider;

/// The nodes that are in memory, or all.
pub struct ResidentNodes<'n> {
    nodes: &'n NodeProvider,
    /// Others are fetched on the spot.
    fetches: bool,
    missing: Mutex<Option<BlobId>>,
}

#[derive(Debug, thiserror::Error)]
#[error("it is not in memory")]
struct NotInMemory;

impl<'n> ResidentNodes<'n> {
    pub fn new(nodes: &'n NodeProvider, fetches: bool) -> Self {
        Self { nodes, fetches, missing: Mutex::default() }
    }

    /// The node that was asked for and not there.
    pub fn missing_node(&self) -> Option<BlobId> {
        *self.missing.lock()
    }
}

impl NodeSource for ResidentNodes<'_> {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        if self.fetches {
            return self.nodes.load_node(id);
        }
        self.nodes.find_resident(id).ok_or_else(|| {
            // One is enough: the transaction fails with this error, and is repeated when the node is there.
            *self.missing.lock() = Some(*id);
            MapError::from_load_failure(*id, ErrorKind::Interrupted, NotInMemory)
        })
    }

    fn prefetch_nodes(&self, ids: &[BlobId]) {
        if self.fetches {
            self.nodes.prefetch_nodes(ids);
        }
    }
}

//! Nodes in memory: for tests, for benches, and to compute a root without storing anything.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use vellum_types::{BlobId, ErrorKind};

use crate::cache::LoadBytes;
use crate::error::MapError;
use crate::node::MapNode;
use crate::source::{NodeSink, NodeSource};

/// Keeps the bytes of nodes under their (unkeyed) BLAKE3.
#[derive(Debug, Default)]
pub struct MemoryNodeStore {
    nodes: RwLock<HashMap<BlobId, Arc<[u8]>>>,
}

impl MemoryNodeStore {
    /// Without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of different nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.read().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps bytes under any id, also one that is not theirs: tests make damaged trees with it.
    pub fn insert(&self, id: BlobId, bytes: &[u8]) {
        self.nodes.write().insert(id, bytes.into());
    }
}

impl NodeSink for MemoryNodeStore {
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        // Without a key, so that the roots of equal maps can be compared between stores.
        let id = BlobId(*blake3::hash(bytes).as_bytes());
        self.insert(id, bytes);
        Ok(id)
    }
}

impl LoadBytes for MemoryNodeStore {
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        let nodes = self.nodes.read();
        let bytes = nodes
            .get(id)
            .ok_or_else(|| MapError::from_load_failure(*id, ErrorKind::NotFound, "no such node"))?;
        Ok(bytes.to_vec())
    }
}

impl NodeSource for MemoryNodeStore {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        let node = MapNode::decode(self.load_bytes(id)?);
        node.map(Arc::new).map_err(|source| MapError::Node { id: *id, source })
    }
}

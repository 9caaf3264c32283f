//! Decoded nodes in memory, bounded by bytes.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::MapNode;
use crate::source::NodeSource;

/// Fetches the plaintext of a node. The implementation is responsible for checking that the bytes match the id.
pub trait LoadBytes: Sync {
    /// The bytes of a node.
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError>;

    /// Announces nodes that will be read, as [`NodeSource::prefetch_nodes`] does; only those that are not cached.
    fn prefetch_bytes(&self, _ids: &[BlobId]) {}
}

impl<T: LoadBytes + ?Sized> LoadBytes for &T {
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        (**self).load_bytes(id)
    }

    fn prefetch_bytes(&self, ids: &[BlobId]) {
        (**self).prefetch_bytes(ids);
    }
}

impl<T: LoadBytes + Send + ?Sized> LoadBytes for Arc<T> {
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        (**self).load_bytes(id)
    }

    fn prefetch_bytes(&self, ids: &[BlobId]) {
        (**self).prefetch_bytes(ids);
    }
}

/// A node as decoded takes about this many bytes: what the cache sizes its tables by.
const NODE_WEIGHT: u64 = 20 << 10;

/// Nodes by id, the most useful ones up to a number of bytes. Two threads that need one node load it once.
pub struct NodeCache<L> {
    loader: L,
    nodes: Cache<BlobId, Arc<MapNode>, NodeWeighter, IdHash>,
}

impl<L: LoadBytes> NodeCache<L> {
    /// Caches up to `capacity` bytes of the nodes that `loader` returns.
    pub fn new(loader: L, capacity: u64) -> Self {
        // At least a few entries, so that a cache of little memory still works.
        let items = usize::try_from(capacity / NODE_WEIGHT).unwrap_or(usize::MAX).max(16);
        let nodes = Cache::with(items, capacity, NodeWeighter, IdHash, DefaultLifecycle::default());
        Self { loader, nodes }
    }

    /// What it loads from.
    pub fn loader(&self) -> &L {
        &self.loader
    }

    /// A node, if it is in memory.
    pub fn find_resident(&self, id: &BlobId) -> Option<Arc<MapNode>> {
        self.nodes.get(id)
    }

    /// Inserts a node that the caller has just made and that will be loaded soon.
    pub fn insert(&self, id: BlobId, node: Arc<MapNode>) {
        self.nodes.insert(id, node);
    }

    /// Bytes that it holds now.
    pub fn memory_size(&self) -> u64 {
        self.nodes.weight()
    }

    fn load_missing(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        // Validated once, on the way into the cache: whoever finds a node there need not check it again.
        let node = MapNode::decode(self.loader.load_bytes(id)?);
        node.map(Arc::new).map_err(|source| MapError::Node { id: *id, source })
    }
}

impl<L: LoadBytes> NodeSource for NodeCache<L> {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        match self.nodes.get(id) {
            Some(node) => Ok(node),
            // Of several threads that miss the same node, one loads it, and the others wait for that.
            None => self.nodes.get_or_insert_with(id, || self.load_missing(id)),
        }
    }

    fn prefetch_nodes(&self, ids: &[BlobId]) {
        // This is only a hint: a node that another thread loads in the same moment may be asked for twice.
        let missing: Vec<BlobId> = ids.iter().filter(|id| !self.nodes.contains_key(*id)).copied().collect();
        if !missing.is_empty() {
            self.loader.prefetch_bytes(&missing);
        }
    }
}

impl<L> fmt::Debug for NodeCache<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCache").field("weight", &self.nodes.weight()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct NodeWeighter;

impl Weighter<BlobId, Arc<MapNode>> for NodeWeighter {
    fn weight(&self, _id: &BlobId, node: &Arc<MapNode>) -> u64 {
        node.memory_size() as u64
    }
}

/// Ids are hashes already: eight of their bytes suffice.
#[derive(Clone, Copy, Default)]
struct IdHash;

#[derive(Default)]
struct IdHasher(u64);

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher::default()
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A key is 32 bytes of a cryptographic hash, so any eight of them are distributed evenly.
        if let Some(head) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*head);
        }
    }

    // The length that a slice writes before its bytes is the same for all ids.
    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

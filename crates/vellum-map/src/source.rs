//! The two traits for reading and writing nodes.

use std::sync::Arc;

use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::MapNode;

/// The top node of a map. Every map has one, also the empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapRoot(pub BlobId);

/// Returns nodes by id. Caching is up to the implementation; [`crate::NodeCache`] is one.
pub trait NodeSource: Sync {
    /// The node with this id, validated.
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError>;

    /// Announces nodes that will be loaded soon, so that a source with expensive requests can fetch them in one. A
    /// hint: errors are reported by the later [`NodeSource::load_node`].
    fn prefetch_nodes(&self, _ids: &[BlobId]) {}
}

/// Takes the bytes of new nodes.
pub trait NodeSink {
    /// Keeps a node; its id is the identity of its bytes. A node that is there already is no error.
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError>;
}

impl<T: NodeSource + ?Sized> NodeSource for &T {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        (**self).load_node(id)
    }

    fn prefetch_nodes(&self, ids: &[BlobId]) {
        (**self).prefetch_nodes(ids);
    }
}

impl<T: NodeSource + Send + ?Sized> NodeSource for Arc<T> {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        (**self).load_node(id)
    }

    fn prefetch_nodes(&self, ids: &[BlobId]) {
        (**self).prefetch_nodes(ids);
    }
}

impl<T: NodeSink + ?Sized> NodeSink for &T {
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        (**self).store_node(bytes)
    }
}

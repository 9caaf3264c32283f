//! Where nodes come from and go to: the two seams to the world of blobs.

use std::sync::Arc;

use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::MapNode;

/// The top node of a map. Every map has one, also the empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapRoot(pub BlobId);

/// Gives nodes by id. Caching is the implementor's; [`crate::NodeCache`] is one.
pub trait NodeSource: Sync {
    /// The node with this id, validated.
    fn node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError>;

    /// Says that these nodes are about to be asked for, so that a source for which each request is dear can
    /// bring them in one. A hint: errors are for the later [`NodeSource::node`] to report.
    fn will_need(&self, _ids: &[BlobId]) {}
}

/// Takes the bytes of new nodes.
pub trait NodeSink {
    /// Keeps a node; its id is the identity of its bytes. A node that is there already is no error.
    fn put(&self, bytes: &[u8]) -> Result<BlobId, MapError>;
}

impl<T: NodeSource + ?Sized> NodeSource for &T {
    fn node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        (**self).node(id)
    }

    fn will_need(&self, ids: &[BlobId]) {
        (**self).will_need(ids);
    }
}

impl<T: NodeSource + Send + ?Sized> NodeSource for Arc<T> {
    fn node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        (**self).node(id)
    }

    fn will_need(&self, ids: &[BlobId]) {
        (**self).will_need(ids);
    }
}

impl<T: NodeSink + ?Sized> NodeSink for &T {
    fn put(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        (**self).put(bytes)
    }
}

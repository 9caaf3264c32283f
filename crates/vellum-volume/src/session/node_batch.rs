//! Nodes of a tree that is being made, sealed together on all processors.
//!
//! Invariant: a node has its id when it is added, as its parent needs that, and is with the writer when the batch was
//! finished. Without that, some nodes of the tree are not stored.

use parking_lot::Mutex;
use rayon::prelude::*;
use vellum_crypto::VolumeKeys;
use vellum_host::parallel::run_parallel;
use vellum_map::{MapError, NodeSink};
use vellum_types::{BlobId, BlobKind};

use super::WriteSession;
use crate::error::Result;
use crate::volume::Volume;

/// Nodes that are sealed together, a count: some MiB.
const NODES_AT_ONCE: usize = 256;

/// Takes the nodes of a tree. To compress and seal them is most of the work of making one.
pub(crate) struct NodeBatch<'a> {
    session: &'a WriteSession,
    keys: &'a VolumeKeys,
    waiting: Mutex<Vec<(BlobId, Vec<u8>)>>,
}

impl<'a> NodeBatch<'a> {
    pub(crate) fn new(volume: &'a Volume, session: &'a WriteSession) -> Self {
        Self { session, keys: &volume.keys, waiting: Mutex::default() }
    }

    /// Gives the writer what is still waiting.
    pub(crate) fn finish(self) -> Result<()> {
        self.seal_nodes(&self.waiting.lock())
    }

    fn seal_nodes(&self, nodes: &[(BlobId, Vec<u8>)]) -> Result<()> {
        let writer = self.session.blobs()?;
        let seal = |(id, bytes): &(BlobId, Vec<u8>)| writer.put_blob_with_id(BlobKind::Node, id, bytes);
        Ok(run_parallel(|| nodes.par_iter().try_for_each(seal))?)
    }
}

impl NodeSink for NodeBatch<'_> {
    fn store_node(&self, bytes: &[u8]) -> std::result::Result<BlobId, MapError> {
        let id = self.keys.compute_blob_id(BlobKind::Node, bytes);
        let mut waiting = self.waiting.lock();
        waiting.push((id, bytes.to_vec()));
        if waiting.len() < NODES_AT_ONCE {
            return Ok(id);
        }
        let full = std::mem::take(&mut *waiting);
        // Other threads go on adding nodes while this one seals.
        drop(waiting);
        self.seal_nodes(&full).map_err(|error| MapError::from_store_failure(error.kind(), error))?;
        Ok(id)
    }
}

//! From the layers of a state to a tree: changes are grouped by inode, worked on by all threads, and applied in order.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use vellum_host::parallel::run_parallel;
use vellum_map::{MapApplier, MapValue};
use vellum_types::{Ino, MapKey, MapKeyRef};
use vellum_volume::WriteSession;

use super::inode::{InodePublication, Publication, PublishedInode};
use super::{LivePublisher, PublishedState};
use crate::error::Result;
use crate::tree::head::LayeredState;
use crate::tree::{NodeProvider, wrap_decode_error};

/// Inodes that are worked on together: enough to keep all threads busy.
const BATCH: usize = 512;

/// The changes of one inode.
pub(super) struct PublishJob {
    pub ino: Ino,
    pub changes: Vec<(Vec<u8>, Option<MapValue>)>,
}

/// Applies outcomes in order and counts.
struct PublishSink<'a> {
    applier: MapApplier<'a, NodeProvider, WriteSession>,
    published: PublishedState,
}

impl LivePublisher {
    /// Stores the tree of a sealed state, durably. The session protects it until a ref names it.
    pub(super) fn store_durably(&self, state: &LayeredState) -> Result<(WriteSession, PublishedState)> {
        let mut session = self.volume.begin_lazy_write_session()?;
        let mut published = self.store_state(state, &session)?;
        published.counted.stored += session.flush_blobs()?.bytes_stored;
        Ok((session, published))
    }

    /// Stores the tree of a sealed state.
    pub(crate) fn store_state(&self, state: &LayeredState, session: &WriteSession) -> Result<PublishedState> {
        let nodes = &**self.map.node_provider();
        let publication = Publication {
            map: &self.map,
            source: self.content.source(),
            state,
            session,
            chunker: &self.chunker,
        };
        let applier = MapApplier::new(nodes, session, self.volume.map_shape(), &state.base)?;
        let recut = HashSet::new();
        let nameless = HashSet::new();
        let replaced_chunks = HashMap::new();
        let published =
            PublishedState { root: state.base, counted: state.counted, recut, nameless, replaced_chunks };
        let mut sink = PublishSink { applier, published };
        let mut batch: Vec<PublishJob> = Vec::new();
        self.map.visit_changes(state, &mut |key, value| {
            let ino = MapKeyRef::parse(&key).map_err(wrap_decode_error("a key of a layer"))?.ino();
            // Changes come in the order of keys, which begin with the inode: all of one inode's are together.
            if batch.last().is_none_or(|job| job.ino != ino) {
                if batch.len() >= BATCH {
                    sink.publish_batch(&publication, std::mem::take(&mut batch))?;
                }
                batch.push(PublishJob { ino, changes: Vec::new() });
            }
            if let Some(job) = batch.last_mut() {
                job.changes.push((key, value));
            }
            Ok(())
        })?;
        sink.publish_batch(&publication, batch)?;
        let PublishSink { applier, mut published } = sink;
        published.root = applier.finish_tree()?;
        Ok(published)
    }
}

impl PublishSink<'_> {
    fn publish_batch(&mut self, publication: &Publication<'_>, batch: Vec<PublishJob>) -> Result<()> {
        // The session is what keeps the collector from blobs that no record names yet.
        publication.session.renew_if_due()?;
        // Worked on side by side, and applied in order below: the tree's writer takes ascending keys only.
        let work = || batch.into_par_iter().map(|job| publication.publish_inode(job)).collect();
        let outcomes: Vec<Result<InodePublication>> = run_parallel(work);
        for outcome in outcomes {
            self.apply_outcome(outcome?)?;
        }
        Ok(())
    }

    fn apply_outcome(&mut self, outcome: InodePublication) -> Result<()> {
        for (key, value) in &outcome.changes {
            match value {
                Some(value) => self.applier.set_key(key, value)?,
                None => self.applier.delete_key(key)?,
            }
        }
        outcome.add_to_statistics(&mut self.published.counted);
        if !outcome.replaced_chunks.is_empty() {
            self.published.replaced_chunks.insert(outcome.ino, outcome.replaced_chunks);
        }
        match outcome.result {
            PublishedInode::AsItIs => {}
            PublishedInode::Recut => drop(self.published.recut.insert(outcome.ino)),
            PublishedInode::Nameless => drop(self.published.nameless.insert(outcome.ino)),
        }
        Ok(())
    }
}

/// The keys of an inode that stand in a tree.
pub(super) fn inode_tree_span(ino: Ino) -> vellum_map::KeySpan {
    vellum_map::KeySpan::from_bounds(
        MapKey::for_attr(ino).as_bytes(),
        MapKey::for_attr(Ino(ino.0 + 1)).as_bytes(),
    )
}

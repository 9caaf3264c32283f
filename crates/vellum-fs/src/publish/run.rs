//! From the layers of a state to a tree: changes are grouped by inode, worked on by all threads, and applied in order.

use std::collections::HashSet;

use rayon::prelude::*;
use vellum_map::{Applier, Value};
use vellum_types::{Ino, Key, KeyRef};
use vellum_volume::WriteSession;

use super::Published;
use super::inode::{Fate, Outcome, Publication};
use crate::error::Result;
use crate::fs::Fs;
use crate::head::State;
use crate::tree::{Nodes, damaged};

/// Inodes that are worked on together: enough to keep all threads busy.
const BATCH: usize = 512;

/// The changes of one inode.
pub(super) struct Job {
    pub ino: Ino,
    pub changes: Vec<(Vec<u8>, Option<Value>)>,
}

/// Applies outcomes in order and counts.
struct Sink<'a> {
    applier: Applier<'a, Nodes, WriteSession>,
    published: Published,
}

impl Fs {
    /// Stores the tree of a sealed state.
    pub(crate) fn store_state(&self, state: &State, session: &WriteSession) -> Result<Published> {
        let nodes = &**self.tree.nodes();
        let publication = Publication { fs: self, state, session, chunker: &self.chunker };
        let applier = Applier::new(nodes, session, self.volume.shape(), &state.base)?;
        let (recut, nameless) = (HashSet::new(), HashSet::new());
        let published = Published { root: state.base, counted: state.counted, recut, nameless };
        let mut sink = Sink { applier, published };
        let mut batch: Vec<Job> = Vec::new();
        self.tree.visit_changes(state, &mut |key, value| {
            let ino = KeyRef::parse(&key).map_err(damaged("a key of a layer"))?.ino();
            if batch.last().is_none_or(|job| job.ino != ino) {
                if batch.len() >= BATCH {
                    sink.take(&publication, std::mem::take(&mut batch))?;
                }
                batch.push(Job { ino, changes: Vec::new() });
            }
            if let Some(job) = batch.last_mut() {
                job.changes.push((key, value));
            }
            Ok(())
        })?;
        sink.take(&publication, batch)?;
        let Sink { applier, mut published } = sink;
        published.root = applier.finish()?;
        Ok(published)
    }
}

impl Sink<'_> {
    fn take(&mut self, publication: &Publication<'_>, batch: Vec<Job>) -> Result<()> {
        publication.session.keep_alive()?;
        let outcomes: Vec<Result<Outcome>> =
            batch.into_par_iter().map(|job| publication.inode(job)).collect();
        for outcome in outcomes {
            self.apply(outcome?)?;
        }
        Ok(())
    }

    fn apply(&mut self, outcome: Outcome) -> Result<()> {
        for (key, value) in &outcome.changes {
            match value {
                Some(value) => self.applier.put(key, value)?,
                None => self.applier.delete(key)?,
            }
        }
        outcome.count(&mut self.published.counted);
        match outcome.fate {
            Fate::AsItIs => {}
            Fate::Recut => drop(self.published.recut.insert(outcome.ino)),
            Fate::Nameless => drop(self.published.nameless.insert(outcome.ino)),
        }
        Ok(())
    }
}

/// The keys of an inode that stand in a tree.
pub(super) fn keys_of(ino: Ino) -> vellum_map::Span {
    vellum_map::Span::between(Key::attr(ino).as_bytes(), Key::attr(Ino(ino.0 + 1)).as_bytes())
}

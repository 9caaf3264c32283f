//! The embedded engine: everything in memory, and a journal from which memory is made again.
//!
//! Invariant: what is in the directory is always a prefix of the order of transactions, with all that are durable in
//! it, whatever crashes when.

mod background;
mod engine;
mod folder;
mod frame;
mod groups;
mod hooks;
mod journal;
mod open;
mod pending;
mod record;
mod replay;
mod stats;
mod suffix;

use std::path::Path;
use std::sync::{Arc, PoisonError};

use vellum_map::Span;

pub use hooks::{Hooks, NoHooks};
pub use stats::Statistics;

use crate::error::LiveError;
use crate::store::{Body, Bytes, LiveStore, Sequence, Visit};
use background::Background;
use engine::Engine;
use folder::LocalFolder;

/// A live store in a directory of this machine. One process at a time has it open.
pub struct Embedded {
    // Dropped first: it ends the thread and syncs what is left.
    _background: Background,
    engine: Arc<Engine>,
}

impl Embedded {
    /// Opens the store in a directory; makes both if they are not there.
    pub fn open(dir: &Path, hooks: impl Hooks) -> Result<Self, LiveError> {
        let locked = LocalFolder::lock(dir).map_err(|source| LiveError::Io {
            action: "open",
            path: dir.display().to_string(),
            source,
        })?;
        let folder = locked.ok_or_else(|| LiveError::InUse(dir.display().to_string()))?;
        let engine = Arc::new(Engine::open(Arc::new(folder), Box::new(hooks))?);
        Ok(Self { _background: Background::start(Arc::clone(&engine))?, engine })
    }

    /// What it did and holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics { memory: self.memory() as u64, ..self.engine.counters.read() }
    }
}

impl LiveStore for Embedded {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, LiveError> {
        self.engine.groups.read().unwrap_or_else(PoisonError::into_inner).get(key)
    }

    fn scan(&self, span: &Span, visit: &mut Visit<'_>) -> Result<(), LiveError> {
        self.engine.groups.read().unwrap_or_else(PoisonError::into_inner).scan(span, visit)
    }

    fn transact(&self, body: &mut Body<'_>) -> Result<Sequence, LiveError> {
        self.engine.transact(body).map(Sequence)
    }

    fn wait_durable(&self, upto: Sequence) -> Result<(), LiveError> {
        self.engine.wait_durable(upto.0)
    }

    fn freeze(&self, _prefix: &[u8]) -> Result<(), LiveError> {
        Ok(())
    }

    fn memory(&self) -> usize {
        self.engine.groups.read().unwrap_or_else(PoisonError::into_inner).weight()
    }
}

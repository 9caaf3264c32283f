//! The embedded engine: everything in memory, and a journal from which memory is made again.
//!
//! Invariant: what is in the directory is always a prefix of the order of transactions, with all that are durable in
//! it, whatever crashes when.

mod background;
mod checkpoint;
mod engine;
pub mod folder;
mod frame;
mod groups;
mod hooks;
mod journal;
mod maintain;
mod open;
mod pending;
mod record;
mod replay;
mod run;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod sim;
mod stats;
mod suffix;
#[cfg(test)]
mod tests;

/// The decoders, each for any bytes.
pub(crate) mod fuzzing {
    pub(crate) use super::checkpoint::decode_any as checkpoint;
    pub(crate) use super::record::decode_any as record;
    pub(crate) use super::run::{
        decode_any_block as block, decode_any_index as index, decode_any_trailer as trailer,
    };
}

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::Instant;

use vellum_map::Span;
use vellum_types::ErrorKind;

pub use engine::Limits;
pub use hooks::{Hooks, NoHooks};
pub use stats::Statistics;

use crate::error::LiveError;
use crate::store::{Body, Bytes, LiveStore, Sequence, Times, Visit};
use background::Background;
use engine::{Engine, lock};
use folder::LocalFolder;
use groups::{Found, Groups};
use suffix::GROUP_LEN;

/// A live store in a directory of this machine. One process at a time has it open.
pub struct Embedded {
    // Dropped first: it ends the thread and syncs what is left. None: whoever has the engine does its work.
    _background: Option<Background>,
    engine: Arc<Engine>,
}

impl Embedded {
    /// Opens the store in a directory; makes both if they are not there.
    pub fn open(dir: &Path, hooks: impl Hooks) -> Result<Self, LiveError> {
        Self::open_with(dir, hooks, Limits::default())
    }

    /// The same with limits of one's own.
    pub fn open_with(dir: &Path, hooks: impl Hooks, limits: Limits) -> Result<Self, LiveError> {
        let locked = LocalFolder::lock(dir).map_err(|source| LiveError::Io {
            action: "open",
            path: dir.display().to_string(),
            source,
        })?;
        let folder = locked.ok_or_else(|| LiveError::InUse(dir.display().to_string()))?;
        let engine = Arc::new(Engine::open(Arc::new(folder), Box::new(hooks), limits)?);
        Ok(Self { _background: Some(Background::start(Arc::clone(&engine))?), engine })
    }

    /// Opens the store in a folder of a test, without the thread that syncs and tidies up: see [`Self::tidy`].
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn open_in(
        folder: Arc<dyn folder::Folder>,
        hooks: impl Hooks,
        limits: Limits,
    ) -> Result<Self, LiveError> {
        let engine = Arc::new(Engine::open(folder, Box::new(hooks), limits)?);
        Ok(Self { _background: None, engine })
    }

    /// Makes a checkpoint if it is time for one, and removes files that nobody needs.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn tidy(&self) -> Result<(), LiveError> {
        self.engine.tidy()
    }

    /// What it did and holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let journal = lock(&self.engine.writer).journal.len;
        let groups = self.groups();
        Statistics {
            memory: groups.weight() as u64,
            journal,
            runs: groups.runs().count() as u64,
            frozen: groups.runs().map(|run| run.entries).sum(),
            run_bytes: groups.runs().map(|run| run.len).sum(),
            ..self.engine.counters.read()
        }
    }

    fn groups(&self) -> RwLockReadGuard<'_, Groups> {
        self.engine.groups.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveStore for Embedded {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, LiveError> {
        let found = self.groups().find(key);
        match found {
            Found::Value(value) => Ok(value),
            Found::InRun(run) => run.get(key.get(GROUP_LEN..).unwrap_or_default()),
        }
    }

    fn scan(&self, span: &Span, visit: &mut Visit<'_>) -> Result<(), LiveError> {
        let groups = self.groups();
        match groups.run_of(span) {
            None => groups.scan(span, visit),
            Some(run) => {
                // A run never changes: nobody needs to wait for its disk.
                drop(groups);
                run.scan_span(span, visit)
            }
        }
    }

    fn transact(&self, body: &mut Body<'_>) -> Result<Sequence, LiveError> {
        let start = Instant::now();
        let done = match self.engine.transact(body) {
            // What was overwritten takes space in the journal still: who removes something must not fail for want of it.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.engine.shrink().is_ok_and(|did| did) => {
                self.engine.transact(body)
            }
            done => done,
        };
        self.engine.counters.times.transactions.record(start.elapsed());
        done.map(Sequence)
    }

    fn wait_durable(&self, upto: Sequence) -> Result<(), LiveError> {
        self.engine.wait_durable(upto.0)
    }

    fn settle(&self, upto: Sequence) -> Result<(), LiveError> {
        self.engine.settle(upto.0)
    }

    fn freeze(&self, prefix: &[u8]) -> Result<(), LiveError> {
        self.engine.freeze(prefix)
    }

    fn compact(&self) -> Result<(), LiveError> {
        self.engine.shrink().map(drop)
    }

    /// Files with frozen entries are shared, the rest is written: the cost does not depend on what is frozen. Killed in
    /// between, it leaves a directory that opens as an empty store.
    fn fork_into(&self, dir: &Path) -> Result<(), LiveError> {
        self.engine.fork_into(dir)
    }

    fn memory(&self) -> usize {
        self.groups().weight()
    }

    fn times(&self) -> Option<&Times> {
        Some(&self.engine.counters.times)
    }
}

//! The embedded engine: all entries in memory (or in runs), and a journal from which they are replayed.
//!
//! Invariant: after any crash, the directory contains a prefix of the sequence of transactions, with all durable
//! ones.

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
    pub(crate) use super::checkpoint::fuzz_checkpoint as checkpoint;
    pub(crate) use super::record::fuzz_record as record;
    pub(crate) use super::run::{
        fuzz_run_block as block, fuzz_run_index as index, fuzz_run_trailer as trailer,
    };
}

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLockReadGuard;
use vellum_map::KeySpan;
use vellum_types::ErrorKind;

pub use engine::EngineLimits;
pub use hooks::{DurabilityHooks, NoDurabilityHooks};
pub use stats::EngineStatistics;

use crate::error::LiveError;
use crate::store::{CommitSequence, LiveStore, StoreTimes, TransactionBody, ValueBytes, VisitScan};
use background::BackgroundSync;
use engine::EmbeddedEngine;
use folder::LocalFolder;
use groups::{KeyGroups, ValueLocation};
use suffix::GROUP_LEN;

/// A live store in a directory of this machine. One process at a time has it open.
pub struct EmbeddedStore {
    // Dropped first: it ends the thread and syncs what is left. None: the caller of the engine does its work.
    _background: Option<BackgroundSync>,
    engine: Arc<EmbeddedEngine>,
}

impl EmbeddedStore {
    /// Opens the store in a directory; makes both if they are not there.
    pub fn open(dir: &Path, hooks: impl DurabilityHooks) -> Result<Self, LiveError> {
        Self::open_with(dir, hooks, EngineLimits::default())
    }

    /// The same with the caller's limits.
    pub fn open_with(
        dir: &Path,
        hooks: impl DurabilityHooks,
        limits: EngineLimits,
    ) -> Result<Self, LiveError> {
        let locked = LocalFolder::open_locked(dir).map_err(|source| LiveError::Io {
            action: "open",
            path: dir.display().to_string(),
            source,
        })?;
        // Another process has the directory open. The lock is held until this store is dropped.
        let folder = locked.ok_or_else(|| LiveError::InUse(dir.display().to_string()))?;
        Self::open_folder(Arc::new(folder), hooks, limits)
    }

    /// Opens the store in a folder, which nobody else uses.
    pub fn open_folder(
        folder: Arc<dyn folder::EngineFolder>,
        hooks: impl DurabilityHooks,
        limits: EngineLimits,
    ) -> Result<Self, LiveError> {
        let dir = folder.describe_file("");
        let engine = Arc::new(EmbeddedEngine::open_folder(folder, Box::new(hooks), limits)?);
        let opened = Self { _background: Some(BackgroundSync::start(Arc::clone(&engine))?), engine };
        let EngineStatistics { memory, journal, runs, .. } = opened.statistics();
        tracing::debug!(dir, memory, journal, runs, "live store opened");
        Ok(opened)
    }

    /// Opens the store in a folder of a test, without the thread that syncs and tidies up: see [`Self::run_maintenance`].
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn open_in_folder(
        folder: Arc<dyn folder::EngineFolder>,
        hooks: impl DurabilityHooks,
        limits: EngineLimits,
    ) -> Result<Self, LiveError> {
        let engine = Arc::new(EmbeddedEngine::open_folder(folder, Box::new(hooks), limits)?);
        Ok(Self { _background: None, engine })
    }

    /// Makes a checkpoint if it is time for one, and removes files that are no longer needed.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn run_maintenance(&self) -> Result<(), LiveError> {
        self.engine.run_maintenance()
    }

    /// What it did and holds.
    #[must_use]
    pub fn statistics(&self) -> EngineStatistics {
        let journal = self.engine.writer.lock().journal.len;
        let groups = self.read_groups();
        EngineStatistics {
            memory: groups.memory_size() as u64,
            journal,
            runs: groups.iter_runs().count() as u64,
            frozen: groups.iter_runs().map(|run| run.entries).sum(),
            run_bytes: groups.iter_runs().map(|run| run.len).sum(),
            ..self.engine.counters.read_statistics()
        }
    }

    fn read_groups(&self) -> RwLockReadGuard<'_, KeyGroups> {
        self.engine.groups.read()
    }
}

impl LiveStore for EmbeddedStore {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        let found = self.read_groups().find_value(key);
        match found {
            ValueLocation::Value(value) => Ok(value),
            // The lock on the groups was given back with the look-up: a run is a file, and writers must not wait for
            // a disk.
            ValueLocation::InRun(run) => run.get_value(key.get(GROUP_LEN..).unwrap_or_default()),
        }
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        let groups = self.read_groups();
        match groups.find_covering_run(span) {
            None => groups.scan(span, visit),
            Some(run) => {
                // A run never changes, so its files are read without a lock.
                drop(groups);
                run.scan_span(span, visit)
            }
        }
    }

    fn run_transaction(&self, body: &mut TransactionBody<'_>) -> Result<CommitSequence, LiveError> {
        let start = Instant::now();
        let done = match self.engine.run_transaction(body) {
            // Values that were overwritten still take space in the journal. A transaction that removes something
            // must not fail because of that.
            Err(error)
                if error.kind() == ErrorKind::NoSpace
                    // The body runs again, which it must bear anyway. It is tried once: if a checkpoint has freed
                    // nothing, the disk is full.
                    && self.engine.shrink_journal().is_ok_and(|did| did) =>
            {
                self.engine.run_transaction(body)
            }
            done => done,
        };
        self.engine.counters.times.transactions.record_duration(start.elapsed());
        done.map(CommitSequence)
    }

    fn wait_until_durable(&self, upto: CommitSequence) -> Result<(), LiveError> {
        self.engine.wait_until_durable(upto.0)
    }

    fn wait_until_confirmed(&self, upto: CommitSequence) -> Result<(), LiveError> {
        self.engine.wait_until_confirmed(upto.0)
    }

    fn freeze_prefix(&self, prefix: &[u8]) -> Result<(), LiveError> {
        self.engine.freeze_prefix(prefix)
    }

    fn compact_storage(&self) -> Result<(), LiveError> {
        self.engine.shrink_journal().map(drop)
    }

    /// Files with frozen entries are shared, the rest is written: the cost does not depend on what is frozen. Killed in
    /// between, it leaves a directory that opens as an empty store.
    fn fork_into(&self, dir: &Path) -> Result<(), LiveError> {
        self.engine.fork_into(dir)
    }

    fn memory_size(&self) -> usize {
        self.read_groups().memory_size()
    }

    fn store_times(&self) -> Option<&StoreTimes> {
        Some(&self.engine.counters.times)
    }
}

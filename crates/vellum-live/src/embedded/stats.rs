//! Statistics of an engine.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::StoreTimes;

/// What an engine did since it was opened, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStatistics {
    /// Transactions that changed something.
    pub transactions: u64,
    /// Bytes appended to the journal for them.
    pub journalled: u64,
    /// Times that the journal was made durable.
    pub syncs: u64,
    /// Times that a checkpoint replaced the journal.
    pub checkpoints: u64,
    /// Bytes of memory that entries and what finds those in runs take, about.
    pub memory: u64,
    /// Bytes of the journal that would be read if the store were opened now.
    pub journal: u64,
    /// Runs: files with frozen entries.
    pub runs: u64,
    /// Entries in them.
    pub frozen: u64,
    /// Bytes of these files.
    pub run_bytes: u64,
}

#[derive(Default)]
pub(crate) struct EngineCounters {
    transactions: AtomicU64,
    journalled: AtomicU64,
    syncs: AtomicU64,
    checkpoints: AtomicU64,
    pub times: StoreTimes,
}

impl EngineCounters {
    pub(crate) fn count_commit(&self, bytes: u64) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.journalled.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_checkpoint(&self) {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read_statistics(&self) -> EngineStatistics {
        EngineStatistics {
            transactions: self.transactions.load(Ordering::Relaxed),
            journalled: self.journalled.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            ..EngineStatistics::default()
        }
    }
}

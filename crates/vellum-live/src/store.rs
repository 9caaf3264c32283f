//! The trait between a live worktree and the storage of its metadata.
//!
//! It is designed so that an engine in this process, Redis (WATCH), PostgreSQL (SERIALIZABLE with retry) and TiKV
//! (optimistic transactions) can implement it: a body may run several times, changes nothing but the transaction, and
//! must not rely on a scan seeing no new entries (an operation that depends on a scan also reads and writes a key
//! that represents it).

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use vellum_host::DurationHistogram;
use vellum_map::KeySpan;

use crate::error::LiveError;

/// A value.
pub type ValueBytes = Arc<[u8]>;

/// The position of a committed transaction in the order of all transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSequence(pub u64);

/// Called with each entry of a scan, in ascending order of the keys, until it breaks off. It must not use the store.
pub type VisitScan<'v> = dyn FnMut(&[u8], &ValueBytes) -> ControlFlow<()> + 'v;

/// How long a store's work took, since it was opened.
#[derive(Debug, Default)]
pub struct StoreTimes {
    /// Transactions, with the wait for those before them.
    pub transactions: DurationHistogram,
    /// Flushes of the journal; of all who wait for one, one flushes.
    pub syncs: DurationHistogram,
}

/// The body of a transaction. It may run several times, and must change nothing but the transaction.
pub type TransactionBody<'b> = dyn FnMut(&mut dyn StoreTransaction) -> Result<(), LiveError> + 'b;

/// An ordered key-value store with transactions. Keys have at most about 300 bytes.
///
/// After [`Self::run_transaction`] has returned, every later read sees the changes, and they survive the death of this
/// process. They survive a loss of power after [`Self::wait_until_durable`] has returned for their sequence, and after
/// a few seconds in any case. What survives is always all transactions up to some sequence.
pub trait LiveStore: Send + Sync + 'static {
    /// The value under a key.
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError>;

    /// Visits the entries of a span as they are at one moment.
    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError>;

    /// Carries out a transaction: all of it or, if the body fails, nothing. Returns its sequence; if it changed
    /// nothing, that of the last transaction.
    fn run_transaction(&self, body: &mut TransactionBody<'_>) -> Result<CommitSequence, LiveError>;

    /// Waits until everything up to a sequence survives a loss of power.
    fn wait_until_durable(&self, upto: CommitSequence) -> Result<(), LiveError>;

    /// Waits until everything up to a sequence is durable, and known to be: what overwritten and deleted values up to
    /// there pointed to will never be asked for again, and can be destroyed.
    fn wait_until_confirmed(&self, upto: CommitSequence) -> Result<(), LiveError> {
        self.wait_until_durable(upto)
    }

    /// Promises that no key with this prefix will be put or deleted one by one any more: an engine may move them out
    /// of memory, and refuse what breaks the promise ([`LiveError::Frozen`]). They go by
    /// [`StoreTransaction::delete_prefix`] of this prefix or a shorter one; then the promise has ended. Prefixes have up
    /// to 9 bytes: a tag and a number.
    fn freeze_prefix(&self, prefix: &[u8]) -> Result<(), LiveError>;

    /// Frees disk space that is no longer needed, if that is little work.
    fn compact_storage(&self) -> Result<(), LiveError> {
        Ok(())
    }

    /// Creates a store of the same kind and content in a new or empty directory. Fails with [`LiveError::NoDirectory`]
    /// if the engine keeps nothing in directories.
    fn fork_into(&self, dir: &Path) -> Result<(), LiveError>;

    /// Returns how many bytes of memory the entries take, about.
    fn memory_size(&self) -> usize;

    /// Returns how long its work took; None if it does not measure that.
    fn store_times(&self) -> Option<&StoreTimes> {
        None
    }
}

/// A transaction under way: reads see its own changes.
pub trait StoreTransaction {
    /// The value under a key.
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError>;

    /// Visits the entries of a span.
    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError>;

    /// Sets a key.
    fn set_key(&mut self, key: &[u8], value: ValueBytes);

    /// Removes a key.
    fn delete_key(&mut self, key: &[u8]);

    /// Removes every key with a prefix. Not to be combined with puts under that prefix in one transaction.
    fn delete_prefix(&mut self, prefix: &[u8]);
}

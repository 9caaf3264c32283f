//! The engine itself: transactions, and what makes them durable.
//!
//! Invariants: whoever writes holds `writer`; the groups change only under it, after the journal has the change. What
//! is durable is always all transactions up to some sequence. After a failure that leaves the disk in doubt nothing
//! is acknowledged any more. Locks are taken in the order of the fields.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use super::folder::EngineFolder;
use super::groups::{KeyGroup, KeyGroups};
use super::hooks::DurabilityHooks;
use super::journal::{AppendFailure, Journal, JournalSegment, name_of};
use super::maintain::Maintenance;
use super::pending::{ChangedKeys, PendingChanges};
use super::record;
use super::stats::EngineCounters;
use crate::error::LiveError;
use crate::store::TransactionBody;

/// Everything that threads share.
pub(crate) struct EmbeddedEngine {
    pub folder: Arc<dyn EngineFolder>,
    pub hooks: Box<dyn DurabilityHooks>,
    pub limits: EngineLimits,
    pub maintenance: Mutex<Maintenance>,
    pub writer: Mutex<WriterState>,
    pub groups: RwLock<KeyGroups>,
    /// The last committed transaction.
    pub written: AtomicU64,
    /// What the journal says is durable.
    pub marked: AtomicU64,
    pub syncing: Mutex<SyncState>,
    /// Whoever waits for `syncing`.
    pub synced: Condvar,
    /// Runs that were dropped, each with the transaction that did it, in order.
    pub doomed: Mutex<Vec<(u64, u64)>>,
    pub counters: EngineCounters,
    /// Why nothing is accepted any more.
    pub poison: OnceLock<String>,
    /// Whether something was written since the background thread last looked.
    pub dirty: AtomicBool,
    /// Whether the journal has grown so much since that the thread should not wait.
    pub grown: AtomicBool,
    pub background: OnceLock<std::thread::Thread>,
}

/// What keeps journal and memory within bounds.
#[derive(Debug, Clone, Copy)]
pub struct EngineLimits {
    /// Bytes of the journal up to which it is left alone; past that, and four times what is in memory, a checkpoint
    /// replaces it.
    pub journal: u64,
    /// Bytes of memory from which on what is frozen under one prefix moves into a file.
    pub run: usize,
}

impl Default for EngineLimits {
    /// A journal that is read in a fraction of a second; frozen entries that do not matter stay in memory.
    fn default() -> Self {
        Self { journal: 64 << 20, run: 256 << 10 }
    }
}

/// What the one writer holds.
pub(crate) struct WriterState {
    pub journal: Journal,
    /// The last committed transaction.
    pub sequence: u64,
}

/// How far the journal is durable.
pub(crate) struct SyncState {
    pub durable: u64,
    /// What was marked as durable by a mark that is itself durable, or by a checkpoint.
    pub settled: u64,
    /// Whether a thread is syncing, for all who wait.
    pub leading: bool,
    /// The files that hold what is not durable, oldest first; the last is the one that grows.
    pub segments: Vec<Arc<JournalSegment>>,
}

/// A lock, whatever a panicking thread left: what it guards is changed in steps that cannot panic halfway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmbeddedEngine {
    /// Carries out a transaction and returns its sequence.
    pub(crate) fn transact(&self, body: &mut TransactionBody<'_>) -> Result<u64, LiveError> {
        let mut writer = lock(&self.writer);
        self.check()?;
        let (dropped, changes) = {
            let committed = self.groups.read().unwrap_or_else(PoisonError::into_inner);
            let mut pending = PendingChanges::new(&committed);
            body(&mut pending)?;
            pending.into_changes()
        };
        if dropped.is_empty() && changes.is_empty() {
            return Ok(writer.sequence);
        }
        self.refuse(&dropped, &changes)?;
        let sequence = writer.sequence + 1;
        let (before, len) = (writer.journal.end, writer.journal.len);
        let entries = changes.iter().map(|(key, value)| (key.as_slice(), value.as_ref()));
        let appended =
            writer.journal.append(|out| record::encode_transaction(out, sequence, &dropped, entries));
        appended.map_err(|failure| self.append_failed(failure, writer.journal.segment.number))?;
        let gone = {
            let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
            groups.apply(&dropped, changes.into_iter())
        };
        writer.sequence = sequence;
        self.written.store(sequence, Ordering::Release);
        self.counters.committed(writer.journal.end - before);
        let limit = self.limits.journal.max(1);
        let is_long = writer.journal.len / limit > len / limit;
        self.doom(sequence, &gone);
        drop(writer);
        drop(gone);
        self.wake(is_long);
        Ok(sequence)
    }

    fn refuse(&self, dropped: &[Vec<u8>], changes: &ChangedKeys) -> Result<(), LiveError> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let refused = groups.refuse(dropped, changes.keys().map(Vec::as_slice));
        refused.map_or(Ok(()), |key| Err(LiveError::Frozen(key.to_vec())))
    }

    /// Remembers whose files can be removed once a transaction is durable.
    fn doom(&self, sequence: u64, gone: &[KeyGroup]) {
        for group in gone {
            if let KeyGroup::Frozen(run) = group {
                lock(&self.doomed).push((sequence, run.number));
            }
        }
    }

    /// Waits until a transaction and all before it survive a loss of power.
    pub(crate) fn wait_durable(&self, upto: u64) -> Result<(), LiveError> {
        let upto = upto.min(self.written.load(Ordering::Acquire));
        self.wait(|syncing| syncing.durable >= upto)
    }

    /// Waits until it is durable that they are durable: nobody will ask the hooks for what they point to.
    pub(crate) fn settle(&self, upto: u64) -> Result<(), LiveError> {
        let upto = upto.min(self.written.load(Ordering::Acquire));
        self.wait_durable(upto)?;
        self.mark(upto)?;
        self.wait(|syncing| syncing.settled >= upto)
    }

    /// Waits for something that a sync brings about. Of all who wait one syncs.
    fn wait(&self, is_done: impl Fn(&SyncState) -> bool) -> Result<(), LiveError> {
        let mut syncing = lock(&self.syncing);
        loop {
            if is_done(&syncing) {
                return Ok(());
            }
            self.check()?;
            if !syncing.leading {
                break;
            }
            syncing = self.synced.wait(syncing).unwrap_or_else(PoisonError::into_inner);
        }
        syncing.leading = true;
        // Read before the list of files: a file joins the list before it gets its first record.
        let marked = self.marked.load(Ordering::Acquire);
        let target = self.written.load(Ordering::Acquire);
        let segments = syncing.segments.clone();
        drop(syncing);
        let outcome = self.sync(&segments).map_err(|error| self.fail(&error));
        let mut syncing = lock(&self.syncing);
        syncing.leading = false;
        if outcome.is_ok() {
            syncing.durable = target;
            syncing.settled = syncing.settled.max(marked);
            let last = segments.last().map_or(0, |segment| segment.number);
            syncing.segments.retain(|segment| segment.number >= last);
        }
        drop(syncing);
        self.synced.notify_all();
        outcome?;
        // Nothing but `settle` rests on the mark: a lack of space for it is nobody else's affair.
        self.mark(target).or_else(|_| self.check())
    }

    fn sync(&self, segments: &[Arc<JournalSegment>]) -> io::Result<()> {
        self.hooks.before_sync()?;
        let start = Instant::now();
        segments.iter().try_for_each(|segment| segment.file.sync())?;
        self.counters.times.syncs.record(start.elapsed());
        self.counters.synced();
        Ok(())
    }

    /// Notes in the journal what is durable: damage before this note is no torn end.
    fn mark(&self, durable: u64) -> Result<(), LiveError> {
        let mut writer = lock(&self.writer);
        self.check()?;
        if self.marked.load(Ordering::Acquire) >= durable {
            return Ok(());
        }
        let appended = writer.journal.append(|out| record::encode_mark(out, durable));
        appended.map_err(|failure| self.append_failed(failure, writer.journal.segment.number))?;
        writer.journal.note_sync();
        self.marked.store(durable, Ordering::Release);
        Ok(())
    }

    /// An error if nothing is accepted any more.
    pub(crate) fn check(&self) -> Result<(), LiveError> {
        self.poison.get().map_or(Ok(()), |why| Err(LiveError::Poisoned(why.clone())))
    }

    /// From now on nothing is accepted.
    pub(crate) fn fail(&self, error: &io::Error) -> LiveError {
        LiveError::Poisoned(self.poison.get_or_init(|| error.to_string()).clone())
    }

    fn append_failed(&self, failure: AppendFailure, segment: u64) -> LiveError {
        if !failure.undone {
            self.fail(&failure.error);
        }
        let path = self.folder.describe(&name_of(segment));
        LiveError::Io { action: "write", path, source: failure.error }
    }

    fn wake(&self, is_long: bool) {
        if is_long {
            self.grown.store(true, Ordering::Release);
        }
        let is_first = !self.dirty.load(Ordering::Relaxed) && !self.dirty.swap(true, Ordering::AcqRel);
        if (is_first || is_long)
            && let Some(thread) = self.background.get()
        {
            thread.unpark();
        }
    }
}

//! The engine itself: transactions and durability.
//!
//! Invariants: a writer holds `writer`; the groups change only under it, after the journal has the change. Durable is
//! always a prefix of the transactions. After a failure that leaves the state of the disk unknown, nothing is
//! acknowledged any more. Lock order: the order of the fields.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use super::folder::{EngineFolder, SyncDelayed, wrap_io_error};
use super::groups::{KeyGroup, KeyGroups};
use super::hooks::DurabilityHooks;
use super::journal::{AppendFailure, Journal, JournalSegment, format_journal_name};
use super::maintain::Maintenance;
use super::pending::{ChangedKeys, PendingChanges};
use super::record;
use super::stats::EngineCounters;
use crate::error::LiveError;
use crate::store::TransactionBody;

/// The state that all threads share.
pub(crate) struct EmbeddedEngine {
    pub folder: Arc<dyn EngineFolder>,
    pub hooks: Box<dyn DurabilityHooks>,
    pub limits: EngineLimits,
    pub maintenance: Mutex<Maintenance>,
    pub writer: Mutex<WriterState>,
    pub groups: RwLock<KeyGroups>,
    /// The last committed transaction.
    pub written: AtomicU64,
    /// What is durable according to the journal.
    pub marked: AtomicU64,
    pub syncing: Mutex<SyncState>,
    /// Wakes the threads that wait for `syncing`.
    pub synced: Condvar,
    /// Runs that were dropped, each with the transaction that did it, in order.
    pub pending_deletions: Mutex<Vec<(u64, u64)>>,
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

impl EmbeddedEngine {
    /// Carries out a transaction and returns its sequence.
    pub(crate) fn run_transaction(&self, body: &mut TransactionBody<'_>) -> Result<u64, LiveError> {
        let mut writer = self.writer.lock();
        // Under the lock: the failure may have come while this transaction waited for it.
        self.check_not_failed()?;
        let (dropped, changes) = {
            // A read lock beside the writer's: only the writer changes the groups, so nothing changes while the body
            // runs, and other readers go on.
            let committed = self.groups.read();
            let mut pending = PendingChanges::new(&committed);
            body(&mut pending)?;
            pending.into_changes()
        };
        // A transaction that only read is as durable as what it saw: it gets the number of the last one, so that
        // whoever waits for it waits for that.
        if dropped.is_empty() && changes.is_empty() {
            return Ok(writer.sequence);
        }
        // Before the journal has it: a record cannot be taken back once others follow it.
        self.refuse_sealed_changes(&dropped, &changes)?;
        let sequence = writer.sequence + 1;
        // The journal first, then memory: what a reader sees is never lost by a crash of the process alone.
        let before = writer.journal.end;
        let len = writer.journal.len;
        let entries = changes.iter().map(|(key, value)| (key.as_slice(), value.as_ref()));
        let appended =
            writer.journal.append_frame(|out| record::encode_transaction(out, sequence, &dropped, entries));
        appended.map_err(|failure| self.handle_append_failure(failure, writer.journal.segment.number))?;
        let gone = {
            let mut groups = self.groups.write();
            groups.apply_transaction(&dropped, changes.into_iter())
        };
        writer.sequence = sequence;
        // After the groups: a thread that syncs up to this number finds all of it in the journal already.
        self.written.store(sequence, Ordering::Release);
        self.counters.count_commit(writer.journal.end - before);
        let limit = self.limits.journal.max(1);
        // True once for each multiple of the limit that is passed, so that the thread is woken once and not by each
        // transaction from then on.
        let is_long = writer.journal.len / limit > len / limit;
        self.schedule_run_removals(sequence, &gone);
        drop(writer);
        // Freeing a large group takes long: no other writer should wait for it.
        drop(gone);
        self.wake_background(is_long);
        Ok(sequence)
    }

    fn refuse_sealed_changes(&self, dropped: &[Vec<u8>], changes: &ChangedKeys) -> Result<(), LiveError> {
        let groups = self.groups.read();
        let refused = groups.find_sealed_change(dropped, changes.keys().map(Vec::as_slice));
        refused.map_or(Ok(()), |key| Err(LiveError::Frozen(key.to_vec())))
    }

    /// Remembers whose files can be removed once a transaction is durable.
    fn schedule_run_removals(&self, sequence: u64, gone: &[KeyGroup]) {
        for group in gone {
            if let KeyGroup::Frozen(run) = group {
                // Kept until the transaction is durable: after a crash before that, the run is in use again.
                self.pending_deletions.lock().push((sequence, run.number));
            }
        }
    }

    /// Waits until a transaction and all before it survive a loss of power.
    pub(crate) fn wait_until_durable(&self, upto: u64) -> Result<(), LiveError> {
        // A number beyond the last transaction stands for everything that is committed now.
        let upto = upto.min(self.written.load(Ordering::Acquire));
        self.wait_for_sync(|syncing| syncing.durable >= upto)
    }

    /// Waits until a transaction and all before it are durable, and until a mark that records this is durable, too.
    /// Then no recovery will ask the hooks for what these transactions point to.
    pub(crate) fn wait_until_confirmed(&self, upto: u64) -> Result<(), LiveError> {
        let upto = upto.min(self.written.load(Ordering::Acquire));
        self.wait_until_durable(upto)?;
        // The mark is a record like any other, and is durable only with a sync after it: `settled` is the number up to
        // which there was one.
        self.append_mark(upto)?;
        self.wait_for_sync(|syncing| syncing.settled >= upto)
    }

    /// Waits until `is_done`, which a sync brings about. Of all threads that wait, one syncs for all.
    fn wait_for_sync(&self, is_done: impl Fn(&SyncState) -> bool) -> Result<(), LiveError> {
        let mut syncing = self.syncing.lock();
        loop {
            if is_done(&syncing) {
                return Ok(());
            }
            self.check_not_failed()?;
            // A leader that began before this transaction was written does not sync it. Its waiters look again when
            // it is done, and one of them leads the next round.
            if !syncing.leading {
                break;
            }
            // The lock is given up while waiting, so the leader can finish.
            self.synced.wait(&mut syncing);
        }
        syncing.leading = true;
        // Read before the list of files: a file joins the list before it gets its first record.
        let marked = self.marked.load(Ordering::Acquire);
        // What is written until the sync begins is durable with it, too, though no caller has requested it yet.
        let target = self.written.load(Ordering::Acquire);
        let segments = syncing.segments.clone();
        drop(syncing);
        // No lock is held: transactions are appended, and others may begin to wait, while the disk works. A failure
        // is final: after a failed `fsync` the kernel may have dropped the pages and report success the next time.
        // A delay is not: all that was to be flushed here was.
        let outcome = self.sync_segments(&segments).map_err(|error| match SyncDelayed::is_cause(&error) {
            true => wrap_io_error(&*self.folder, "sync", "")(error),
            false => self.mark_failed(&error),
        });
        let mut syncing = self.syncing.lock();
        syncing.leading = false;
        if outcome.is_ok() {
            syncing.durable = target;
            // Never lowered: a checkpoint, or another mark, may have settled more.
            syncing.settled = syncing.settled.max(marked);
            let last = segments.last().map_or(0, |segment| segment.number);
            // The last file goes on growing. Those before it get no record any more and are durable now.
            syncing.segments.retain(|segment| segment.number >= last);
        }
        drop(syncing);
        // Also after a failure: the waiting threads must see that the engine is poisoned.
        self.synced.notify_all();
        outcome?;
        // Nothing but `settle` rests on the mark, so a lack of space for it concerns no other caller.
        self.append_mark(target).or_else(|_| self.check_not_failed())
    }

    fn sync_segments(&self, segments: &[Arc<JournalSegment>]) -> io::Result<()> {
        // First what the records point to (the content in the write log), then the records: a record that survives
        // never points to content that does not.
        self.hooks.before_sync()?;
        let start = Instant::now();
        segments.iter().try_for_each(|segment| segment.file.sync_file())?;
        self.counters.times.syncs.record_duration(start.elapsed());
        self.counters.count_sync();
        Ok(())
    }

    /// Appends a mark of what is durable. Damage before a mark is damage; damage behind the last one may be a write
    /// that a crash interrupted.
    fn append_mark(&self, durable: u64) -> Result<(), LiveError> {
        let mut writer = self.writer.lock();
        self.check_not_failed()?;
        // Asked under the writer's lock, so that two who have synced do not both append a mark.
        if self.marked.load(Ordering::Acquire) >= durable {
            return Ok(());
        }
        let appended = writer.journal.append_frame(|out| record::encode_mark(out, durable));
        appended.map_err(|failure| self.handle_append_failure(failure, writer.journal.segment.number))?;
        // Counted, because it decides how the next room is reserved; see `Journal::reserve_space`.
        writer.journal.record_sync();
        self.marked.store(durable, Ordering::Release);
        Ok(())
    }

    /// Fails if an earlier failure has stopped the store.
    pub(crate) fn check_not_failed(&self) -> Result<(), LiveError> {
        self.poison.get().map_or(Ok(()), |why| Err(LiveError::Poisoned(why.clone())))
    }

    /// Stops the store: from now on every transaction fails.
    pub(crate) fn mark_failed(&self, error: &io::Error) -> LiveError {
        tracing::error!(%error, "the live store stops: a write to its files failed");
        LiveError::Poisoned(self.poison.get_or_init(|| error.to_string()).clone())
    }

    fn handle_append_failure(&self, failure: AppendFailure, segment: u64) -> LiveError {
        if !failure.undone {
            self.mark_failed(&failure.error);
        }
        let path = self.folder.describe_file(&format_journal_name(segment));
        LiveError::Io { action: "write", path, source: failure.error }
    }

    fn wake_background(&self, is_long: bool) {
        if is_long {
            self.grown.store(true, Ordering::Release);
        }
        // The plain load is for the usual case, in which the thread knows already: a swap would take the cache line
        // from the other processors at each commit.
        let is_first = !self.dirty.load(Ordering::Relaxed) && !self.dirty.swap(true, Ordering::AcqRel);
        if (is_first || is_long)
            && let Some(thread) = self.background.get()
        {
            thread.unpark();
        }
    }
}

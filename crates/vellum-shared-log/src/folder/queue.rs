//! Operations that wait to be appended, and who waits for them.
//!
//! Invariants: operations are appended in the order in which they were added; `durable` counts a prefix of them. The
//! queue is bounded: whoever adds to a full one waits first. After a failure nothing is added or acknowledged any more.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use vellum_host::fork_safe::{Condvar, Mutex};
use vellum_live::folder::SyncDelayed;
use vellum_types::FieldWriter;

use super::operation::FolderOperation;
use super::record::{RECORD_MAX, RecordKind};
use crate::claim::LogFailure;
use crate::log::LogPosition;

/// Bytes of operations from which on they are appended though nobody waits for them.
const EAGER: u64 = 1 << 20;
/// Bytes of operations that one append takes, if so many wait: an object of a store, a value of a database. One record
/// more may go beyond it.
const APPEND_TARGET: usize = 4 << 20;

/// Operations that are appended as one record.
pub(crate) struct OperationBatch {
    pub kind: RecordKind,
    pub bytes: Vec<u8>,
    /// Bytes of all operations that were ever added, with these.
    pub upto: u64,
}

/// When the length of the log is worth a look.
pub(crate) struct LookPace {
    /// So many bytes were added since the last look.
    pub growth: u64,
    /// Nothing was added for this time, and the bytes since the last base are more than `least`.
    pub rest: Duration,
    pub least: u64,
    /// Bytes of all operations that had been added at the last look.
    pub seen: u64,
    /// The same at the last look while nothing was added.
    pub seen_at_rest: u64,
}

/// How long the log is.
pub(crate) struct LogLength {
    /// Bytes since the last base.
    pub since_base: u64,
    /// Bytes of all operations that were ever added.
    pub added: u64,
    /// Somebody has asked for a base.
    pub is_base_requested: bool,
    /// Nothing was added for a while.
    pub is_at_rest: bool,
}

/// The queue, shared by those who change files and the thread that appends.
pub(crate) struct OperationQueue {
    state: Mutex<QueueState>,
    /// Wakes the thread that appends.
    filled: Condvar,
    /// Wakes those who wait for room, for durability, or for a base.
    moved: Condvar,
    /// Bytes that wait at most.
    room: u64,
    /// How long a sync waits at most.
    sync_wait: Duration,
}

/// What is in the queue, and how far it was appended. Amounts are bytes of operations since the start.
#[derive(Default)]
struct QueueState {
    batches: VecDeque<OperationBatch>,
    queued: u64,
    added: u64,
    /// Up to where somebody waits.
    wanted: u64,
    taken: u64,
    durable: u64,
    /// Nothing is acknowledged before this is durable: the end of a base without which the log cannot be read.
    held_until: Option<u64>,
    /// Why nothing is taken any more.
    failure: Option<LogFailure>,
    is_stopped: bool,
    /// Why appending waits, for messages.
    delay: Option<String>,
    /// Where the log ends that is durable and acknowledged; None before anything is.
    floor: Option<LogPosition>,
    /// Where the base begins that was appended last.
    base_position: Option<LogPosition>,
    /// Bytes of operations appended since the last base began.
    since_base: u64,
    /// How often the log was begun anew: a base that was being written before is worth nothing.
    restarts: u64,
    /// A base is due: that of a restart, or one that makes the log shorter.
    base_due: bool,
}

impl OperationQueue {
    /// A queue for a log that has `since_base` bytes since its last base.
    pub fn new(room: u64, sync_wait: Duration, since_base: u64) -> Self {
        let state = Mutex::new(QueueState { since_base, ..QueueState::default() });
        Self { state, filled: Condvar::new(), moved: Condvar::new(), room, sync_wait }
    }

    /// Waits until there is room. To be called before anything is changed, with no lock that the copying of a base needs.
    pub fn wait_for_room(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            state.check_open()?;
            if state.queued < self.room {
                return Ok(());
            }
            // Nobody may be waiting for durability, and less than EAGER would never be appended: then there never was room.
            state.wanted = state.added;
            self.filled.notify_one();
            self.moved.wait(&mut state);
        }
    }

    /// Adds operations, which are appended as one record, or as several if they are long.
    pub fn add(&self, operations: &[FolderOperation<'_>]) -> io::Result<()> {
        let mut state = self.state.lock();
        // Looked at again with the lock: between the wait for room and this, the log may have failed.
        state.check_open()?;
        for operation in operations {
            state.add_operation(operation);
        }
        self.wake_if_due(&state);
        Ok(())
    }

    /// Adds the beginning of a base, unless the log was begun anew and waits for one. It is the first operation of an
    /// append. Returns how often the log was begun anew.
    pub fn begin_base(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.check_open()?;
        // Before the files are read: what makes a base due from here on asks for another one.
        state.base_due = false;
        // After a restart, the beginning of the base is in the queue already; see `restart`.
        if state.held_until.is_none() {
            state.begin_batch(RecordKind::Base);
            state.add_operation(&FolderOperation::BaseBegin { is_new: false });
        }
        Ok(state.restarts)
    }

    /// Whether a base that was begun when there had been `restarts` is still worth something.
    pub fn is_base_wanted(&self, restarts: u64) -> bool {
        self.state.lock().restarts == restarts
    }

    /// Lets the log begin anew, with a base: what waits is forgotten, since the base will have it. Nothing is acknowledged
    /// until the base is whole.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.batches.clear();
        state.queued = 0;
        // What was waited for will be in the base: who waits goes on until that is durable.
        state.taken = state.added;
        state.restarts += 1;
        // What was durable before does not tell how long the log is now.
        state.floor = None;
        // Not known yet: `end_base` says where the base ends.
        state.held_until = Some(u64::MAX);
        state.base_due = true;
        state.begin_batch(RecordKind::Base);
        state.add_operation(&FolderOperation::BaseBegin { is_new: true });
        self.moved.notify_all();
    }

    /// Adds the end of a base that was begun when there had been `restarts`. Returns up to where it has to be durable;
    /// None if the log was begun anew meanwhile.
    pub fn end_base(&self, restarts: u64) -> io::Result<Option<u64>> {
        let mut state = self.state.lock();
        state.check_open()?;
        if state.restarts != restarts {
            return Ok(None);
        }
        state.add_operation(&FolderOperation::BaseEnd);
        let upto = state.added;
        if state.held_until.is_some() {
            state.held_until = Some(upto);
        }
        state.wanted = state.wanted.max(upto);
        self.filled.notify_one();
        Ok(Some(upto))
    }

    /// Asks for everything so far to be appended. Returns what to wait for.
    pub fn request_sync(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.check_open()?;
        state.wanted = state.added;
        self.filled.notify_one();
        Ok(state.added)
    }

    /// Waits until everything up to `upto` is durable in the log. Fails with [`SyncDelayed`] if that takes too long; it
    /// may be waited for again.
    pub fn wait_until_durable(&self, upto: u64) -> io::Result<()> {
        self.wait_while_delayed(|state| state.durable < upto)
    }

    /// As [`Self::wait_until_durable`], for a base that was begun when there had been `restarts`. Returns, too, if the log was
    /// begun anew meanwhile: then the base is forgotten, and whoever waits has to write the next one.
    pub fn wait_for_base(&self, upto: u64, restarts: u64) -> io::Result<()> {
        self.wait_while_delayed(|state| state.durable < upto && state.restarts == restarts)
    }

    fn wait_while_delayed(&self, is_delayed: impl Fn(&QueueState) -> bool) -> io::Result<()> {
        let begin = Instant::now();
        let mut state = self.state.lock();
        loop {
            // Looked at before a failure: what was acknowledged before the log failed stays acknowledged.
            if !is_delayed(&state) {
                return Ok(());
            }
            state.check_open()?;
            let left = self.sync_wait.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let why = state.delay.clone().unwrap_or_else(|| "the shared log is slow".into());
                return Err(SyncDelayed(why).into());
            }
            self.moved.wait_for(&mut state, left);
        }
    }

    /// As [`Self::wait_for_base`], however long it takes.
    pub fn wait_for_base_without_limit(&self, upto: u64, restarts: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.durable < upto && state.restarts == restarts {
            state.check_open()?;
            self.moved.wait(&mut state);
        }
        Ok(())
    }

    /// Waits for operations to append at once. A base is at the beginning of an append, so that what is before it can be
    /// discarded. None: it ends.
    pub fn take_batches(&self) -> Option<Vec<OperationBatch>> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || state.is_stopped {
                return None;
            }
            let is_wanted = state.wanted > state.taken || state.queued >= EAGER;
            if is_wanted && !state.batches.is_empty() {
                return Some(state.take_batches());
            }
            self.filled.wait(&mut state);
        }
    }

    /// Notes that batches which were appended from `position` to `end` are durable in the log.
    pub fn finish_batches(&self, batches: &[OperationBatch], position: LogPosition, end: LogPosition) {
        let mut state = self.state.lock();
        state.delay = None;
        // The floor goes into the worktree's ref, and a log that is shorter is refused: it may only name what a reader can
        // use.
        if state.held_until.is_none() {
            state.floor = Some(end);
        }
        for batch in batches {
            let len = batch.bytes.len() as u64;
            state.queued = state.queued.saturating_sub(len);
            match batch.kind {
                RecordKind::Base => {
                    state.base_position = Some(position);
                    // A base is at the beginning of an append, so what is behind it in the same append is counted by the
                    // next arm.
                    state.since_base = len;
                }
                RecordKind::Next => state.since_base += len,
            }
            if state.held_until.is_none_or(|held| batch.upto >= held) {
                state.durable = batch.upto;
            }
        }
        self.moved.notify_all();
    }

    /// Whether these batches have the end of a base that the log was begun anew with.
    pub fn end_restart_with(&self, batches: &[OperationBatch]) -> bool {
        let held = self.state.lock().held_until;
        batches.last().zip(held).is_some_and(|(batch, held)| batch.upto >= held)
    }

    /// From now on what is durable is acknowledged.
    pub fn end_restart(&self) {
        self.state.lock().held_until = None;
    }

    /// Says that a base is due, and wakes who writes it.
    pub fn request_base(&self) {
        self.state.lock().base_due = true;
        self.moved.notify_all();
    }

    /// Waits until a base was asked for, or the length of the log is worth a look. None: the queue ends.
    pub fn wait_for_look(&self, pace: &LookPace) -> Option<LogLength> {
        let mut state = self.state.lock();
        let mut is_at_rest = false;
        loop {
            if state.failure.is_some() || state.is_stopped {
                return None;
            }
            let QueueState { added, since_base, base_due: is_base_requested, .. } = *state;
            if is_base_requested || added - pace.seen > pace.growth || is_at_rest {
                return Some(LogLength { since_base, added, is_base_requested, is_at_rest });
            }
            if since_base > pace.least && added != pace.seen_at_rest {
                is_at_rest = self.moved.wait_for(&mut state, pace.rest).timed_out() && state.added == added;
            } else {
                // What was looked at while nothing was added is not looked at again: nothing runs while nobody works.
                self.moved.wait(&mut state);
            }
        }
    }

    /// Where the last base begins that was appended.
    pub fn base_position(&self) -> Option<LogPosition> {
        self.state.lock().base_position
    }

    /// Whether who adds next may have to wait.
    pub fn is_nearly_full(&self) -> bool {
        // Half of it, since others may add something between this look and the change.
        self.state.lock().queued >= self.room / 2
    }

    /// Where the log ends that is durable and acknowledged.
    pub fn floor(&self) -> Option<LogPosition> {
        self.state.lock().floor
    }

    /// Bytes that wait, and bytes since the last base.
    pub fn lengths(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.queued, state.since_base)
    }

    /// Waits a while, for an engine that does not answer. False: it ends.
    pub fn pause(&self, time: Duration, why: &str) -> bool {
        let mut state = self.state.lock();
        state.delay = Some(why.to_owned());
        let until = Instant::now() + time;
        while state.failure.is_none() && !state.is_stopped {
            // Those who add wake it, too, which must not shorten the pause: it goes on until its time is over.
            if self.filled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.failure.is_none() && !state.is_stopped
    }

    /// From now on nothing is taken or acknowledged. The first reason stays.
    pub fn fail(&self, failure: LogFailure) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            tracing::error!(%failure, "the shared log takes nothing more");
            state.failure = Some(failure);
        }
        self.wake_all();
    }

    /// Ends the threads. What nobody waits for may stay out of the log.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.wake_all();
    }

    pub fn failure(&self) -> Option<LogFailure> {
        self.state.lock().failure.clone()
    }

    fn wake_all(&self) {
        self.filled.notify_all();
        self.moved.notify_all();
    }

    fn wake_if_due(&self, state: &QueueState) {
        if state.queued >= EAGER {
            self.filled.notify_one();
        }
    }
}

impl QueueState {
    fn check_open(&self) -> io::Result<()> {
        match &self.failure {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None if self.is_stopped => Err(io::Error::other(LogFailure::stopped())),
            None => Ok(()),
        }
    }

    fn take_batches(&mut self) -> Vec<OperationBatch> {
        let mut batches: Vec<OperationBatch> = self.batches.pop_front().into_iter().collect();
        let mut len = batches.iter().map(|batch| batch.bytes.len()).sum::<usize>();
        // Up to the next base, which has to be at the beginning of an append.
        while len < APPEND_TARGET
            && let Some(next) = self.batches.pop_front_if(|next| next.kind == RecordKind::Next)
        {
            len += next.bytes.len();
            batches.push(next);
        }
        self.taken = batches.last().map_or(self.taken, |last| last.upto);
        batches
    }

    fn begin_batch(&mut self, kind: RecordKind) {
        self.batches.push_back(OperationBatch { kind, bytes: Vec::new(), upto: self.added });
    }

    fn add_operation(&mut self, operation: &FolderOperation<'_>) {
        let data = if let FolderOperation::Write { bytes, .. } = operation { bytes.len() } else { 0 };
        // Room for the fields beside the data: two names at most.
        let need = data + 600;
        if self.batches.back().is_none_or(|batch| batch.bytes.len() + need > RECORD_MAX) {
            self.begin_batch(RecordKind::Next);
        }
        let Some(batch) = self.batches.back_mut() else { return };
        let before = batch.bytes.len();
        // The writer takes the buffer and gives it back, so that nothing is copied.
        let mut writer = FieldWriter::from_vec(std::mem::take(&mut batch.bytes));
        operation.encode(&mut writer);
        batch.bytes = writer.into_vec();
        let len = (batch.bytes.len() - before) as u64;
        self.added += len;
        self.queued += len;
        batch.upto = self.added;
    }
}

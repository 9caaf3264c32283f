//! The thread that appends operations to the log.
//!
//! It alone knows where the log ends. An append whose answer was lost is found by reading the end; one that the engine
//! forgot again, because it failed over to an older copy, is repeated from memory. Where memory does not reach, and where
//! the log itself is gone, the log begins anew with a base, and nothing is acknowledged before that is whole.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use vellum_crypto::VolumeKeys;

use super::queue::{OperationBatch, OperationQueue};
use super::record::{ChainEnd, RecordCodec, RecordLink};
use crate::claim::{HeldClaim, LogFailure};
use crate::error::SharedLogError;
use crate::log::{LogEpoch, LogIncarnation, LogPosition};

/// Bytes of appended records that are kept in case the engine forgets them.
const KEPT_MAX: usize = 16 << 20;
/// Time between two attempts while the engine does not answer: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Called with the log that takes the place of one that is gone, before anything in it is acknowledged. It fails if the
/// worktree does not belong to this process any more; while it cannot be carried out, it returns false.
pub type ReplaceLog = dyn Fn(LogIncarnation) -> Result<bool, LogFailure> + Send + Sync;

/// Appends what is in the queue.
pub(crate) struct LogAppender {
    pub queue: Arc<OperationQueue>,
    pub claim: Arc<HeldClaim>,
    pub keys: Arc<VolumeKeys>,
    pub replaced: Arc<ReplacedLogHook>,
    /// Where the log ends.
    end: ChainEnd,
    kept: VecDeque<KeptAppend>,
    /// The log that took the place of one that is gone, until the worktree names it.
    unnamed: Option<LogIncarnation>,
}

/// What is called when a log takes the place of another one; None until the worktree is open.
#[derive(Default)]
pub(crate) struct ReplacedLogHook(parking_lot::Mutex<Option<Arc<ReplaceLog>>>);

impl ReplacedLogHook {
    pub fn set(&self, hook: Arc<ReplaceLog>) {
        *self.0.lock() = Some(hook);
    }

    fn get(&self) -> Option<Arc<ReplaceLog>> {
        self.0.lock().clone()
    }
}

/// An append that the engine acknowledged, or is about to.
struct KeptAppend {
    start: LogPosition,
    bytes: Vec<u8>,
}

/// How an append ended.
enum AppendOutcome {
    /// It is durable.
    Done,
    /// The log begins anew: the batches are forgotten.
    Restarted,
    /// The thread is to end.
    Stopped,
}

impl LogAppender {
    pub fn new(
        queue: Arc<OperationQueue>,
        claim: Arc<HeldClaim>,
        keys: Arc<VolumeKeys>,
        replaced: Arc<ReplacedLogHook>,
        end: ChainEnd,
    ) -> Self {
        Self { queue, claim, keys, replaced, end, kept: VecDeque::new(), unnamed: None }
    }

    /// Appends until the queue ends, or the log fails.
    pub fn run(mut self) {
        while let Some(batches) = self.queue.take_batches() {
            let position = self.end.position;
            match self.append_batches(&batches) {
                Ok(AppendOutcome::Done) => {
                    if self.queue.end_restart_with(&batches) {
                        // Before anything is acknowledged: another machine reads the ref, and would look for the log that
                        // is gone.
                        match self.name_new_log() {
                            Ok(true) => self.queue.end_restart(),
                            Ok(false) => return,
                            Err(failure) => return self.fail(failure),
                        }
                    }
                    self.queue.finish_batches(&batches, position, self.end.position);
                }
                Ok(AppendOutcome::Restarted) => {}
                Ok(AppendOutcome::Stopped) => return,
                Err(error) => return self.fail(self.claim.describe_failure(&error)),
            }
        }
    }

    fn fail(&self, failure: LogFailure) {
        self.claim.fail(failure.clone());
        self.queue.fail(failure);
    }

    /// Lets the worktree name the log that took the place of another one. False: the thread is to end.
    fn name_new_log(&mut self) -> Result<bool, LogFailure> {
        let Some(incarnation) = self.unnamed else { return Ok(true) };
        let mut pause = PAUSE_MIN;
        while let Some(hook) = self.replaced.get() {
            if hook(incarnation)? {
                self.unnamed = None;
                return Ok(true);
            }
            if !self.queue.pause(pause, "the store does not answer: the worktree cannot name its new log") {
                return Ok(false);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(LogFailure { reason: "the shared log is gone".into(), is_fenced: false })
    }

    fn append_batches(&mut self, batches: &[OperationBatch]) -> Result<AppendOutcome, SharedLogError> {
        let keys = self.keys.clone();
        // Asked each time: the log may have been replaced since the last append.
        let codec = RecordCodec { keys: &keys, incarnation: self.claim.current().incarnation };
        let mut append = KeptAppend { start: self.end.position, bytes: Vec::new() };
        let mut end = self.end;
        for batch in batches {
            let (record, behind) = codec.seal(batch.kind, end, &batch.bytes);
            append.bytes.extend_from_slice(&record);
            end = behind;
        }
        // Kept before it is sent: if its answer is lost, these are the bytes to compare with.
        self.kept.push_back(append);
        let outcome = self.append_kept(end.position)?;
        if matches!(outcome, AppendOutcome::Done) {
            self.end = end;
            self.drop_old_appends();
        }
        Ok(outcome)
    }

    /// Appends what is kept until the log ends at `target`, and waits until it is durable.
    fn append_kept(&mut self, target: LogPosition) -> Result<AppendOutcome, SharedLogError> {
        // Where the log is believed to end.
        let mut at = self.end.position;
        let mut pause = PAUSE_MIN;
        loop {
            let epoch = self.claim.current().epoch;
            // Usually the last one. After the engine has forgotten some, each of those after its end, in order.
            let next = self.kept.iter().find(|kept| kept.start == at);
            let answer = match next {
                Some(kept) if at != target => self.claim.log.append(epoch, at, &kept.bytes),
                _ => self.claim.log.wait_until_durable(target).map(|()| target),
            };
            match answer.map_err(|error| self.recognize_loss(epoch, error)) {
                Ok(end) if at == target => {
                    debug_assert_eq!(end, target);
                    return Ok(AppendOutcome::Done);
                }
                Ok(end) => {
                    at = end;
                    pause = PAUSE_MIN;
                }
                Err(SharedLogError::Moved { end, .. }) => match self.find_end(end) {
                    Ok(Some(end)) => at = end,
                    // The same append says it once more when the engine answers.
                    Err(error) if is_passing(&error) => {
                        if !self.queue.pause(pause, &error.to_string()) {
                            return Ok(AppendOutcome::Stopped);
                        }
                    }
                    Err(error) => return Err(error),
                    Ok(None) => {
                        // The worktree knows of an end that the log does not reach any more.
                        self.unnamed = Some(self.claim.current().incarnation);
                        tracing::warn!(
                            at = at.0,
                            end = end.0,
                            "the engine forgot more of the log than is kept"
                        );
                        // The records before `end` stay readable until the base behind them is whole.
                        return Ok(self.begin_anew(end));
                    }
                },
                // Only if there is none: another log in its place was made by another process, to which the
                // worktree then belongs.
                Err(SharedLogError::Lost { found: None, .. }) => {
                    tracing::warn!("the shared log is gone: it begins anew");
                    match self.claim.replace_log() {
                        Ok(claim) => {
                            self.unnamed = Some(claim.incarnation);
                            return Ok(self.begin_anew(claim.end));
                        }
                        Err(error) if !is_passing(&error) => return Err(error),
                        Err(error) => {
                            if !self.queue.pause(PAUSE_MAX, &error.to_string()) {
                                return Ok(AppendOutcome::Stopped);
                            }
                        }
                    }
                }
                Err(error) if is_passing(&error) => {
                    if !self.queue.pause(pause, &error.to_string()) {
                        return Ok(AppendOutcome::Stopped);
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The same error, or that the log is gone: an engine that was emptied may find that something is missing first.
    fn recognize_loss(&self, epoch: LogEpoch, error: SharedLogError) -> SharedLogError {
        if !matches!(error, SharedLogError::Damaged { .. }) {
            return error;
        }
        // A renewal looks at nothing but the state of the log, and so tells whether that is still there.
        match self.claim.log.renew(epoch) {
            Err(lost @ SharedLogError::Lost { .. }) => lost,
            Ok(()) | Err(_) => error,
        }
    }

    /// Where to go on, as the log turned out to end at `end`; None if what stood there is not kept. Fails if somebody else
    /// has appended.
    fn find_end(&self, end: LogPosition) -> Result<Option<LogPosition>, SharedLogError> {
        // An older end that an append of this process begins at: what the engine forgot is repeated from there.
        if self.kept.iter().any(|kept| kept.start == end) {
            return Ok(Some(end));
        }
        // It is as long as if the last append, whose answer was lost, had been carried out: then it has these bytes.
        let Some(last) = self.kept.back() else { return Ok(None) };
        let behind = LogPosition(last.start.0.saturating_add(last.bytes.len() as u64));
        if end < behind {
            return Ok(None);
        }
        let found = self.claim.log.read(last.start, last.bytes.len())?;
        if end == behind && found == last.bytes {
            return Ok(Some(end));
        }
        Err(SharedLogError::Damaged {
            engine: "its engine".into(),
            reason: format!("another process has appended at byte {}", last.start.0),
        })
    }

    /// Lets the log go on at a place with a base.
    fn begin_anew(&mut self, position: LogPosition) -> AppendOutcome {
        self.end = ChainEnd { position, link: RecordLink::default() };
        self.kept.clear();
        // The chain of records is broken here, so whatever waits could not be read behind it. The base contains it.
        self.queue.restart();
        AppendOutcome::Restarted
    }

    /// Forgets the oldest appends that are durable.
    fn drop_old_appends(&mut self) {
        let mut len: usize = self.kept.iter().map(|kept| kept.bytes.len()).sum();
        while len > KEPT_MAX
            && self.kept.len() > 1
            && let Some(oldest) = self.kept.pop_front()
        {
            len -= oldest.bytes.len();
        }
    }
}

/// Whether the engine may do later what it does not do now. One that is full takes appends again when something was
/// discarded.
fn is_passing(error: &SharedLogError) -> bool {
    match error {
        SharedLogError::Unreachable { .. } | SharedLogError::Full { .. } => true,
        SharedLogError::Fenced { .. }
        | SharedLogError::Moved { .. }
        | SharedLogError::Lost { .. }
        | SharedLogError::NoLog { .. }
        | SharedLogError::Oversized { .. }
        | SharedLogError::Discarded { .. }
        | SharedLogError::Unfit { .. }
        | SharedLogError::Damaged { .. } => false,
    }
}

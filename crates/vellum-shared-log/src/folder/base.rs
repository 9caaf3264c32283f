//! Bases: all files once more in the log, after which what came before can be discarded.
//!
//! A base is made of the same operations as everything else, between a beginning and an end, while others go on: each
//! piece is copied with its file's gate closed, so it is the file at its place in the log, and what changes the file later
//! stands behind it. A reader that begins at a base meets changes of files that the base has not come to yet; it keeps
//! them, and the copy, which has them too, replaces them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::files::LoggedFiles;
use super::operation::WRITE_MAX;
use super::queue::{LogLength, LookPace, OperationQueue};
use crate::claim::{HeldClaim, LogFailure};
use crate::error::SharedLogError;

/// Bytes of the log that are worth a base, beside the base before and as much as all files take: as much as a journal may
/// have.
pub(crate) const LOG_TARGET: u64 = 64 << 20;
/// Where nothing is added any more, this part of them is worth a base: the engine keeps the log in memory for as long as
/// nobody works, and a base disturbs nobody then.
const PART_AT_REST: u64 = 16;
/// After this part of them, the log is compared with the files again.
const PART_OF_LOOK: u64 = 8;
/// Time without operations after which the log is at rest.
pub(crate) const REST: Duration = Duration::from_secs(5);

/// Writes bases when they are due, until the queue ends.
pub(crate) struct BaseWriter {
    pub files: Arc<LoggedFiles>,
    pub claim: Arc<HeldClaim>,
    /// [`LOG_TARGET`], less in tests.
    pub target: u64,
    /// [`REST`], less in tests.
    pub rest: Duration,
}

impl BaseWriter {
    pub fn run(&self) {
        let queue = &self.files.queue;
        let mut pace = LookPace {
            growth: self.target / PART_OF_LOOK,
            least: self.target / PART_AT_REST,
            rest: self.rest,
            seen: 0,
            seen_at_rest: 0,
        };
        while let Some(log) = queue.wait_for_look(&pace) {
            pace.seen = log.added;
            if log.is_at_rest {
                pace.seen_at_rest = log.added;
            }
            if !log.is_base_requested && !self.is_base_worth_it(&log) {
                continue;
            }
            if let Err(error) = self.write_base(OperationQueue::wait_for_base_without_limit) {
                // The queue has failed, or a local file cannot be read: then the engine that uses it fails, too.
                if queue.failure().is_none() {
                    let reason = format!("a file cannot be copied into the shared log: {error}");
                    let failure = LogFailure { reason, is_fenced: false };
                    self.claim.fail(failure.clone());
                    queue.fail(failure);
                }
                return;
            }
        }
    }

    /// Whether the log is so long that a base makes it much shorter.
    fn is_base_worth_it(&self, log: &LogLength) -> bool {
        let spare = if log.is_at_rest { self.target / PART_AT_REST } else { self.target };
        // Twice what the files take: once is the base itself. What they take now: much leaves the write log when it is
        // published.
        log.since_base > self.files.total_len().saturating_mul(2).saturating_add(spare)
    }

    /// Writes a base, waits with `wait` until it is durable, and discards what came before.
    pub fn write_base(&self, wait: impl Fn(&OperationQueue, u64, u64) -> io::Result<()>) -> io::Result<()> {
        let queue = &self.files.queue;
        loop {
            let restarts = queue.begin_base()?;
            if !self.repeat_files(restarts)? {
                continue;
            }
            let Some(upto) = queue.end_base(restarts)? else { continue };
            wait(queue, upto, restarts)?;
            // Only if the log was not begun anew since: the position would be one of the log before.
            if queue.is_base_wanted(restarts) {
                self.discard_before_base();
                return Ok(());
            }
        }
    }

    /// Puts all files into the log. False: the log was begun anew meanwhile.
    fn repeat_files(&self, restarts: u64) -> io::Result<bool> {
        let queue = &self.files.queue;
        let mut buffer = vec![0; WRITE_MAX];
        // Files that are created from here on need no copy: all their operations stand behind the beginning
        // of the base.
        for (_, file) in self.files.list_files() {
            // Removed since they were listed: the operation that removed it is in the log, behind the beginning of the
            // base.
            let Some(len) = self.files.repeat_name(&file)? else { continue };
            let mut offset = 0;
            // What is added behind `len` from now on goes into the log by itself.
            while offset < len {
                // Looked at for each piece: a base that nobody wants any more takes room in the queue from the one that is
                // needed.
                if !queue.is_base_wanted(restarts) {
                    return Ok(false);
                }
                match self.files.repeat_piece(&file, offset, &mut buffer)? {
                    0 => break,
                    count => offset += count,
                }
            }
        }
        Ok(queue.is_base_wanted(restarts))
    }

    fn discard_before_base(&self) {
        let Some(position) = self.files.queue.base_position() else { return };
        match self.claim.log.discard_before(self.claim.current().epoch, position) {
            Ok(()) => {}
            // Who appends next finds out the same, and does what is to be done.
            Err(error @ (SharedLogError::Fenced { .. } | SharedLogError::Lost { .. })) => {
                tracing::warn!(%error, "the shared log cannot be shortened");
            }
            // It is discarded after the next base.
            Err(error) => tracing::warn!(%error, "the shared log cannot be shortened now"),
        }
    }
}

//! Seeking to data and holes in a live file, and invalidation before an answer.
//!
//! The kernel may have changed pages that were not written back, and does not write them back before it sends `lseek`.
//! Changed pages can only turn holes into data, or extend the file: what is data here is data in any case. So only
//! holes are uncertain. The kernel is told to write back and drop its pages of that range alone, and then the search is
//! repeated. All other pages stay in memory.
//!
//! The notification waits for requests that threads of this process answer, so a thread of its own sends it, for one
//! file after the other. The same thread tells the kernel what to drop before other requests are answered.
//!
//! Invariant: a thread that answers requests never waits for the kernel.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use vellum_fs::{Result, SeekTarget};

use crate::metrics::line::{LineDetail, LineOutcome};
use crate::transport::KernelNotifier;
use crate::wire::{FuseAnswer, Invalidation, SmallAnswer};

/// Leads to the kernel, once the mount exists.
pub(crate) type KernelChannel = Arc<OnceLock<KernelNotifier>>;

/// Holes that are fetched one by one; then the rest of the file is fetched at once.
const HOLES_MAX: usize = 8;

/// The end of a range that extends to the end of the file, wherever the kernel sees that.
const END: u64 = u64::MAX;

type SeekDone = Result<u64, Errno>;
type SeekFinder = Box<dyn Fn(u64, SeekTarget) -> Result<u64> + Send>;

/// What a seek searches for.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeekGoal {
    pub offset: u64,
    pub seek: SeekTarget,
}

/// What was found, and the range in which pages of the kernel may change that.
#[derive(Debug)]
pub(super) struct SeekFinding {
    pub found: SeekDone,
    pub doubt: Option<Range<u64>>,
}

impl LineDetail for SeekFinding {
    fn line_outcome(&self) -> LineOutcome {
        match (self.found, &self.doubt) {
            (Ok(found), None) => LineOutcome::Number(found),
            (Err(error), None) => LineOutcome::Failed(error),
            // The result is known later.
            (_, Some(_)) => LineOutcome::Done,
        }
    }
}

impl SeekGoal {
    /// Searches what is stored here.
    pub fn search_content(self, find: &dyn Fn(u64, SeekTarget) -> Result<u64>) -> Result<SeekFinding> {
        let known = |done: Result<u64>| match done {
            // `ENXIO` is a result: there is no data, or no hole, behind the offset. Other errors are failures.
            Err(error) if error.errno() != Errno::NXIO => Err(error),
            done => Ok(done.map_err(|error| error.errno())),
        };
        let found = known(find(self.offset, self.seek))?;
        let doubt = match (self.seek, found) {
            // The kernel may have data in the hole that was skipped.
            (SeekTarget::Data, Ok(data)) => self.offset..data,
            // The kernel may have data in the hole that was found. The hole ends where stored data begins.
            (SeekTarget::Hole, Ok(hole)) => hole..known(find(hole, SeekTarget::Data))?.unwrap_or(END),
            // The file ends before the offset here, but may be longer in the kernel.
            (SeekTarget::Data | SeekTarget::Hole, Err(_)) => self.offset..END,
        };
        Ok(SeekFinding { found, doubt: Some(doubt).filter(|doubt| !doubt.is_empty()) })
    }
}

/// A seek that is answered when its result is certain.
pub(super) struct UncertainSeek {
    node: u64,
    goal: SeekGoal,
    finding: SeekFinding,
    find: SeekFinder,
    done: Box<dyn FnOnce(SeekDone) + Send>,
}

impl UncertainSeek {
    pub fn new(
        node: u64,
        goal: SeekGoal,
        finding: SeekFinding,
        find: impl Fn(u64, SeekTarget) -> Result<u64> + Send + 'static,
        done: impl FnOnce(SeekDone) + Send + 'static,
    ) -> Self {
        Self { node, goal, finding, find: Box::new(find), done: Box::new(done) }
    }

    /// Repeats the search until nothing is uncertain. `write_back` makes the kernel write back a range of the node.
    fn resolve_seek(self, write_back: impl Fn(u64, &Range<u64>)) {
        let Self { node, goal, finding: SeekFinding { mut found, mut doubt }, find, done } = self;
        let mut fetched: Option<Range<u64>> = None;
        for round in 0.. {
            let Some(mut range) = doubt else { break };
            let covers = |fetched: &Range<u64>| fetched.start <= range.start && range.end <= fetched.end;
            // The kernel has just written back all of this: what is a hole still is one.
            if fetched.as_ref().is_some_and(covers) {
                break;
            }
            // A file with very many holes would be written back in as many steps.
            if round >= HOLES_MAX {
                range.end = END;
            }
            write_back(node, &range);
            fetched = Some(range);
            match goal.search_content(&find) {
                Ok(finding) => {
                    found = finding.found;
                    doubt = finding.doubt;
                }
                Err(error) => return done(Err(error.errno())),
            }
        }
        done(found);
    }
}

/// What the kernel has to drop from its caches before an answer.
#[derive(Debug, Clone)]
pub(super) enum StaleCache {
    /// The attributes of a node.
    Attributes(u64),
    /// The attributes of a node, and its pages in a range.
    Pages(u64, Range<u64>),
}

impl StaleCache {
    /// The attributes of a node, and all its pages.
    pub fn for_node(node: u64) -> Self {
        Self::Pages(node, 0..END)
    }
}

/// A job of the thread.
enum SeekJob {
    Resolve(UncertainSeek),
    Invalidate(StaleCache, Box<dyn FnOnce() + Send>),
}

/// Hands jobs to the thread that notifies the kernel.
pub(super) struct SeekWorker {
    jobs: Sender<SeekJob>,
}

impl SeekWorker {
    /// Starts the thread. It ends when this is dropped.
    pub fn start(kernel: KernelChannel) -> io::Result<Self> {
        let (jobs, received) = channel();
        std::thread::Builder::new()
            // A thread of its own, because the notification returns only after the kernel has written back, which
            // needs the threads that answer.
            .name("vellum-seek".into())
            .spawn(move || run_seek_worker(&kernel, &received))?;
        Ok(Self { jobs })
    }

    /// Has the thread resolve and answer a seek.
    pub(super) fn enqueue_seek(&self, seek: UncertainSeek) {
        // The thread lives as long as this does.
        let _ = self.jobs.send(SeekJob::Resolve(seek));
    }

    /// Has the thread make the kernel drop what is stale, and then call `then`.
    pub(super) fn enqueue_invalidation(&self, stale: StaleCache, then: impl FnOnce() + Send + 'static) {
        let _ = self.jobs.send(SeekJob::Invalidate(stale, Box::new(then)));
    }
}

/// The answer to a seek.
pub(super) fn build_seek_answer(done: SeekDone) -> FuseAnswer {
    FuseAnswer::from_result(done, |&offset| SmallAnswer::for_offset(offset))
}

fn run_seek_worker(kernel: &KernelChannel, received: &Receiver<SeekJob>) {
    let write_back = |node, range: &Range<u64>| {
        // To the kernel a length of 0 or less means up to the end of the file, as it sees that.
        let len = if range.end == END { 0 } else { range.end - range.start };
        if let Some(kernel) = kernel.get() {
            // If writing back fails, the kernel reports that to the next `fsync`.
            let _ = kernel.send_notice(Invalidation::Pages { node, offset: range.start, len });
        }
    };
    for job in received {
        match job {
            SeekJob::Resolve(seek) => seek.resolve_seek(write_back),
            SeekJob::Invalidate(stale, then) => {
                match stale {
                    StaleCache::Pages(node, range) => write_back(node, &range),
                    StaleCache::Attributes(node) => {
                        if let Some(kernel) = kernel.get() {
                            // It fails if the kernel has cached nothing of the node.
                            let _ = kernel.send_notice(Invalidation::Attributes(node));
                        }
                    }
                }
                // In every case, even if the notification failed: a process waits for the answer.
                then();
            }
        }
    }
}

#[cfg(test)]
mod tests;

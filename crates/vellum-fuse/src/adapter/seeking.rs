//! Seeking to data and holes in a file that somebody may write: the kernel may have changed pages that we have not been
//! given, and it does not write them back before it asks. Changed pages can only make data of a hole, or the file
//! longer: data that we know of is data. So only where we see a hole is there a doubt; the kernel is told to write back
//! and forget its pages of that range alone, and then we look again. What a program reads again stays in memory.
//!
//! Telling it waits for requests that our own threads answer; so a thread of its own does it, one file after the other.
//! It tells the kernel, too, what to forget of other nodes before a request is answered.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use vellum_fs::{Result, SeekTarget};

use crate::metrics::line::{LineDetail, LineOutcome};
use crate::transport::KernelNotifier;
use crate::wire::{FuseAnswer, Invalidation, SmallAnswer};

/// The way to the kernel, once the mount is there.
pub type KernelChannel = Arc<OnceLock<KernelNotifier>>;

/// Holes that are looked at one by one; after that the rest of the file is.
const HOLES_MAX: usize = 8;

/// Where a range ends that goes to the end of the file, wherever the kernel sees that.
const END: u64 = u64::MAX;

type SeekDone = std::result::Result<u64, Errno>;
type SeekFinder = Box<dyn Fn(u64, SeekTarget) -> Result<u64> + Send>;

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeekGoal {
    pub offset: u64,
    pub seek: SeekTarget,
}

/// What was found, and where pages of the kernel's could say otherwise.
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
            // It is answered later.
            (_, Some(_)) => LineOutcome::Done,
        }
    }
}

impl SeekGoal {
    /// Looks at what we know.
    pub fn search_content(self, find: &dyn Fn(u64, SeekTarget) -> Result<u64>) -> Result<SeekFinding> {
        let known = |done: Result<u64>| match done {
            Err(error) if error.errno() != Errno::NXIO => Err(error),
            done => Ok(done.map_err(|error| error.errno())),
        };
        let found = known(find(self.offset, self.seek))?;
        let doubt = match (self.seek, found) {
            (SeekTarget::Data, Ok(data)) => self.offset..data,
            (SeekTarget::Hole, Ok(hole)) => hole..known(find(hole, SeekTarget::Data))?.unwrap_or(END),
            // To us the file ends before.
            (SeekTarget::Data | SeekTarget::Hole, Err(_)) => self.offset..END,
        };
        Ok(SeekFinding { found, doubt: Some(doubt).filter(|doubt| !doubt.is_empty()) })
    }
}

/// A request that is answered when nothing is in doubt.
pub(super) struct UncertainSeek {
    node: u64,
    goal: SeekGoal,
    look: SeekFinding,
    find: SeekFinder,
    done: Box<dyn FnOnce(SeekDone) + Send>,
}

impl UncertainSeek {
    pub fn new(
        node: u64,
        goal: SeekGoal,
        look: SeekFinding,
        find: impl Fn(u64, SeekTarget) -> Result<u64> + Send + 'static,
        done: impl FnOnce(SeekDone) + Send + 'static,
    ) -> Self {
        Self { node, goal, look, find: Box::new(find), done: Box::new(done) }
    }

    /// Looks again until all that is in doubt was written back; `write_back` sees to it.
    fn resolve_seek(self, write_back: impl Fn(u64, &Range<u64>)) {
        let Self { node, goal, look: SeekFinding { mut found, mut doubt }, find, done } = self;
        let mut here: Option<Range<u64>> = None;
        for round in 0.. {
            let Some(mut range) = doubt else { break };
            let is_here = |here: &Range<u64>| here.start <= range.start && range.end <= here.end;
            if here.as_ref().is_some_and(is_here) {
                break;
            }
            if round >= HOLES_MAX {
                range.end = END;
            }
            write_back(node, &range);
            here = Some(range);
            match goal.search_content(&find) {
                Ok(look) => (found, doubt) = (look.found, look.doubt),
                Err(error) => return done(Err(error.errno())),
            }
        }
        done(found);
    }
}

/// What the kernel has to forget before it is answered.
#[derive(Debug, Clone)]
pub(super) enum StaleCache {
    /// The attributes of a node.
    Attributes(u64),
    /// The attributes of a node, and its pages of a range.
    Pages(u64, Range<u64>),
}

impl StaleCache {
    /// Everything of a node.
    pub fn for_node(node: u64) -> Self {
        Self::Pages(node, 0..END)
    }
}

/// What the thread does.
enum SeekJob {
    Settle(UncertainSeek),
    Forget(StaleCache, Box<dyn FnOnce() + Send>),
}

/// The way to the thread that fetches the kernel's pages.
pub struct SeekWorker {
    wanted: Sender<SeekJob>,
}

impl SeekWorker {
    /// Starts the thread. It ends when this is dropped.
    pub fn start(kernel: KernelChannel) -> io::Result<Self> {
        let (wanted, received) = channel();
        std::thread::Builder::new()
            .name("vellum-seek".into())
            .spawn(move || run_seek_worker(&kernel, &received))?;
        Ok(Self { wanted })
    }

    /// Answers later.
    pub(super) fn enqueue_seek(&self, doubtful: UncertainSeek) {
        // The thread lives as long as this does.
        let _ = self.wanted.send(SeekJob::Settle(doubtful));
    }

    /// Lets the kernel forget what is stale, and goes on with `then`.
    pub(super) fn enqueue_invalidation(&self, stale: StaleCache, then: impl FnOnce() + Send + 'static) {
        let _ = self.wanted.send(SeekJob::Forget(stale, Box::new(then)));
    }
}

/// What answers that data or a hole was found, or not.
pub(super) fn build_seek_answer(done: SeekDone) -> FuseAnswer {
    FuseAnswer::from_result(done, |&offset| SmallAnswer::for_offset(offset))
}

fn run_seek_worker(kernel: &KernelChannel, received: &Receiver<SeekJob>) {
    let write_back = |node, range: &Range<u64>| {
        let len = if range.end == END { 0 } else { range.end - range.start };
        if let Some(kernel) = kernel.get() {
            // If writing back fails, so does the program's `fsync`.
            let _ = kernel.send_notice(Invalidation::Pages { node, offset: range.start, len });
        }
    };
    for job in received {
        match job {
            SeekJob::Settle(doubtful) => doubtful.resolve_seek(write_back),
            SeekJob::Forget(stale, then) => {
                match stale {
                    StaleCache::Pages(node, range) => write_back(node, &range),
                    StaleCache::Attributes(node) => {
                        if let Some(kernel) = kernel.get() {
                            // What it does not know it has forgotten.
                            let _ = kernel.send_notice(Invalidation::Attributes(node));
                        }
                    }
                }
                then();
            }
        }
    }
}

#[cfg(test)]
mod tests;

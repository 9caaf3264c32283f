//! The files of a live worktree, on this machine and in a shared log: another machine makes them anew from the log.
//!
//! [`SharedFolder`] is what the engine of live metadata and the write log see in place of a local folder. Reads are local.
//! Each change is carried out on the local file and then added to a queue, whose operations a thread appends to the log,
//! sealed, in their order. Both folders share one queue: the log has one order.
//!
//! # What survives
//!
//! A sync of a file of the metadata, or of their folder, returns when the local disk has it and everything that was done
//! before, in both folders, is durable in the log; the two go on side by side. All who wait share one append. A sync of
//! the write log is local: nothing is acknowledged because of it alone, and in the log its bytes stand before the journal's
//! record that names them.
//!
//! So at each place where the log can end, a replay makes the files that a process leaves which is killed there (pieces of
//! one long write excepted: of those the first ones may be there, as a crash may leave them). The recovery of engine and
//! write log is made for that.
//!
//! # Bases
//!
//! The log begins with a *base*: all files, as operations of the log itself. When the log has become longer than twice the
//! files and [`LOG_TARGET`], another base is appended while work goes on (`base`), and what came before it is discarded; when
//! nobody works, a shorter one is worth it, too, since engines keep the log in memory. The
//! alternative, objects of the store that hold the base, needs two places that agree about which base counts, a collector
//! for those that do not, and an answer for a store that is away while the engine is not. In the log there is one order
//! and one durability. The price is that the engine takes the files twice for a moment; they are small: the journal, and
//! what is not published.
//!
//! # Engines that forget
//!
//! See `writer`: the tail of the log is kept in memory; beyond that the log begins anew with a base. While the engine does
//! not answer, syncs wait up to a limit, and changes go on until the queue is full.
//!
//! Deliberately absent: who may claim the log (`claim`), what the files mean.

mod base;
mod files;
mod operation;
mod queue;
mod record;
mod replay;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vellum_crypto::VolumeKeys;
use vellum_live::folder::{EngineFile, EngineFolder};
use vellum_volume::lease::{ChangeGuard, GuardRefusal};

use crate::claim::{HeldClaim, LogFailure};
use crate::log::{LogIncarnation, LogPosition};
use base::{BaseWriter, LOG_TARGET, REST};
use files::{LoggedFile, LoggedFiles};
pub use operation::LoggedFolder;
#[doc(hidden)]
pub use operation::fuzz_operations;
use queue::OperationQueue;
use record::{ChainEnd, RecordLink};
pub use replay::{ReplayError, ReplayRequest, ReplayedFile, ReplayedFiles, replay_log};
use writer::{LogAppender, ReplacedLogHook};

/// Bytes of operations that wait in memory at most: some seconds of work while the engine does not answer.
const QUEUE_ROOM: u64 = 64 << 20;

/// A change is carried out within this time after it was asked whether it may have to wait.
const SURE_MARGIN: Duration = Duration::from_secs(1);

/// Limits of a worktree whose files are in a log.
#[derive(Debug, Clone, Copy)]
pub struct SharedFilesLimits {
    /// How long a sync waits for the engine.
    pub sync_wait: Duration,
    /// Bytes that wait in memory at most.
    pub queue: u64,
    /// Bytes of the log up to which it is left alone while somebody works.
    pub log: u64,
    /// Time without changes after which a shorter log is worth a base, too.
    pub rest: Duration,
}

impl Default for SharedFilesLimits {
    fn default() -> Self {
        Self { sync_wait: Duration::from_secs(120), queue: QUEUE_ROOM, log: LOG_TARGET, rest: REST }
    }
}

/// What the files of a worktree are kept in, and by which right.
pub struct SharedFilesParts {
    /// The claim of the log.
    pub claim: Arc<HeldClaim>,
    /// Seals the records.
    pub keys: Arc<VolumeKeys>,
    /// The local folder of the metadata.
    pub metadata: Arc<dyn EngineFolder>,
    /// The local folder of the write log.
    pub write_log: Arc<dyn EngineFolder>,
    /// Limits.
    pub limits: SharedFilesLimits,
}

/// What the log of a worktree has and does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLogUsage {
    /// Bytes that wait to be appended.
    pub queued: u64,
    /// Bytes since the last base.
    pub since_base: u64,
}

/// The files of a live worktree that are also in a log, and the threads that append to it. When this is dropped, the
/// threads end: what was synced is in the log.
pub struct SharedFiles {
    files: Arc<LoggedFiles>,
    claim: Arc<HeldClaim>,
    replaced: Arc<ReplacedLogHook>,
    threads: Vec<JoinHandle<()>>,
}

impl SharedFiles {
    /// Puts the files that are here into a log that was claimed at `end`, as its new base. Returns when it is durable.
    pub fn from_local_files(parts: SharedFilesParts, end: LogPosition) -> io::Result<Self> {
        let base = BaseWriter::for_parts(&parts, 0);
        for folder in [LoggedFolder::Metadata, LoggedFolder::WriteLog] {
            for name in base.files.local_folder(folder).list_files()? {
                base.files.adopt_file(folder, &name, None)?;
            }
        }
        // The first record begins a base, which is bound to no record before it.
        Self::start(&parts, base, ChainEnd { position: end, link: RecordLink::default() }, true)
    }

    /// Continues with files that were made from the log.
    pub fn from_replay(parts: SharedFilesParts, replayed: &ReplayedFiles) -> io::Result<Self> {
        // The log begins with its last base. If it could not be shortened, it is longer, and the next base
        // comes earlier.
        let base = BaseWriter::for_parts(&parts, replayed.log_len());
        for file in &replayed.files {
            base.files.adopt_file(file.folder, &file.name, Some(file.number))?;
        }
        base.files.reserve_numbers(replayed.next_number);
        Self::start(&parts, base, replayed.end, replayed.needs_base)
    }

    /// Starts the threads. `is_new`: the log goes on with a base.
    fn start(parts: &SharedFilesParts, base: BaseWriter, end: ChainEnd, is_new: bool) -> io::Result<Self> {
        let files = base.files.clone();
        let replaced = Arc::<ReplacedLogHook>::default();
        let claim = parts.claim.clone();
        let appender =
            LogAppender::new(files.queue.clone(), claim, parts.keys.clone(), replaced.clone(), end);
        if is_new {
            // Before the first file can be changed: a change that stood before the base would be in a log without a
            // beginning.
            files.queue.restart();
        }
        // Whoever waits for a sync must learn that the claim is lost, or would wait for ever.
        let queue = files.queue.clone();
        parts.claim.add_failure_hook(move |failure| queue.fail(failure.clone()));
        let queue = files.queue.clone();
        // A base is appended, which finds out.
        parts.claim.set_gone_hook(move || queue.request_base());
        let mut started = Self { files, claim: parts.claim.clone(), replaced, threads: Vec::new() };
        // The appender first: the base below waits until what it adds is durable.
        started.spawn("log-append", move || appender.run())?;
        if is_new {
            base.write_base(OperationQueue::wait_for_base)?;
        }
        // Only now, so that two bases are never written at once.
        started.spawn("log-base", move || base.run())?;
        Ok(started)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }

    /// One of the folders.
    #[must_use]
    pub fn folder(&self, folder: LoggedFolder) -> Arc<dyn EngineFolder> {
        Arc::new(SharedFolder { files: self.files.clone(), folder })
    }

    /// Lets `hook` be called with the log that takes the place of one that the engine lost. Without it, that is an error.
    pub fn set_replaced_log_hook(
        &self,
        hook: impl Fn(LogIncarnation) -> Result<bool, LogFailure> + Send + Sync + 'static,
    ) {
        self.replaced.set(Arc::new(hook));
    }

    /// What a change of the worktree needs: a claim of which it is sure that nobody else has taken it, or `patience`
    /// until it is.
    #[must_use]
    pub fn change_guard(&self, patience: Duration) -> Arc<dyn ChangeGuard> {
        Arc::new(ClaimGuard { claim: self.claim.clone(), queue: self.files.queue.clone(), patience })
    }

    /// Makes everything so far durable in the log.
    pub fn sync_all(&self) -> io::Result<()> {
        let upto = self.files.queue.request_sync()?;
        self.files.queue.wait_until_durable(upto)
    }

    /// What the log has and does.
    #[must_use]
    pub fn usage(&self) -> SharedLogUsage {
        let (queued, since_base) = self.files.queue.lengths();
        SharedLogUsage { queued, since_base }
    }
}

impl Drop for SharedFiles {
    fn drop(&mut self) {
        // What nobody has synced may be lost, as a crash would lose it; to wait here for an engine that is away could take
        // for ever.
        self.files.queue.stop();
        for thread in self.threads.drain(..) {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}

impl BaseWriter {
    fn for_parts(parts: &SharedFilesParts, since_base: u64) -> Self {
        let SharedFilesLimits { sync_wait, queue, log, rest } = parts.limits;
        let queue = Arc::new(OperationQueue::new(queue, sync_wait, since_base));
        let files = LoggedFiles::new(queue, parts.metadata.clone(), parts.write_log.clone());
        Self { files: Arc::new(files), claim: parts.claim.clone(), target: log, rest }
    }
}

/// Lets changes wait for the claim.
struct ClaimGuard {
    claim: Arc<HeldClaim>,
    queue: Arc<OperationQueue>,
    patience: Duration,
}

impl ChangeGuard for ClaimGuard {
    fn check_change(&self) -> Result<(), GuardRefusal> {
        // The usual case takes no lock: a change must not pay for the claim.
        if self.claim.is_sure() {
            return Ok(());
        }
        match self.claim.wait_until_sure(self.patience) {
            Ok(true) => Ok(()),
            Ok(false) => Err(GuardRefusal::Unsure("the engine of its log does not answer".into())),
            Err(LogFailure { reason, is_fenced: true }) => Err(GuardRefusal::Lost(reason)),
            Err(LogFailure { reason, is_fenced: false }) => Err(GuardRefusal::Unsure(reason)),
        }
    }

    fn may_change_wait(&self) -> bool {
        // After a failure a change fails at once, so that it does not wait.
        (!self.claim.is_sure_for(SURE_MARGIN) && self.claim.failure().is_none())
            || self.queue.is_nearly_full()
    }

    fn log_floor(&self) -> Option<u64> {
        self.queue.floor().map(|position| position.0)
    }
}

/// One of the two folders, as engine and write log see it.
struct SharedFolder {
    files: Arc<LoggedFiles>,
    folder: LoggedFolder,
}

/// A file of such a folder.
struct SharedFile {
    files: Arc<LoggedFiles>,
    folder: LoggedFolder,
    file: Arc<LoggedFile>,
}

impl LoggedFiles {
    /// Makes what was done so far durable in the log, beside `local`, which does so on this machine.
    fn sync_beside(&self, folder: LoggedFolder, local: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match folder {
            LoggedFolder::Metadata => {
                // Asked for before the local sync begins, so that the disk and the engine work at the same time.
                let upto = self.queue.request_sync()?;
                local()?;
                self.queue.wait_until_durable(upto)
            }
            // The journal's record that names the bytes stands behind them in the log.
            LoggedFolder::WriteLog => local(),
        }
    }
}

impl SharedFolder {
    fn local(&self) -> &Arc<dyn EngineFolder> {
        self.files.local_folder(self.folder)
    }

    fn wrap_file(&self, file: Arc<LoggedFile>) -> Arc<dyn EngineFile> {
        Arc::new(SharedFile { files: self.files.clone(), folder: self.folder, file })
    }
}

impl EngineFolder for SharedFolder {
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        Ok(self.wrap_file(self.files.create_file(self.folder, name)?))
    }

    fn open_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        Ok(self.wrap_file(self.files.find_file(self.folder, name)?))
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename_file(self.folder, from, to)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.files.remove_file(self.folder, name)
    }

    fn list_files(&self) -> io::Result<Vec<String>> {
        self.local().list_files()
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.files.sync_beside(self.folder, || self.local().sync_folder())
    }

    fn describe_file(&self, name: &str) -> String {
        self.local().describe_file(name)
    }

    fn dir_fd(&self) -> Option<BorrowedFd<'_>> {
        self.local().dir_fd()
    }

    fn takes_links(&self) -> bool {
        // A file that was linked into the local folder would not be in the log.
        false
    }
}

impl EngineFile for SharedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.local.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let write = || self.file.local.write_at(bytes, offset);
        self.files.write_with(&self.file, offset, &[bytes], write)
    }

    fn write_both_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<()> {
        let write = || self.file.local.write_both_at(first, second, offset);
        self.files.write_with(&self.file, offset, &[first, second], write)
    }

    fn sync_file(&self) -> io::Result<()> {
        self.files.sync_beside(self.folder, || self.file.local.sync_file())
    }

    fn reserve_len(&self, len: u64) -> io::Result<u64> {
        // Room is no content: a replay does without it.
        self.file.local.reserve_len(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.files.set_len_with(&self.file, len, || self.file.local.set_len(len))
    }

    fn size(&self) -> io::Result<u64> {
        self.file.local.size()
    }
}

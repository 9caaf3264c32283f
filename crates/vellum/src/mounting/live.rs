//! A live worktree that is mounted: the threads that work for it, and its end.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_fs::log::LogUsage;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_fs::{FsError, LiveFilesystem};
use vellum_library::LiveStateClaim;
use vellum_library::live::{HolderStage, LogOwnership, OpenedLiveState, OpenedSharedLog};
use vellum_store::{PurposeTraffic, RequestPurpose};
use vellum_volume::lease::{HeldLease, LeaseKeeper};
use vellum_volume::operations::CommandScope;
use vellum_volume::{Volume, VolumeError};

use super::MountingError;
use super::end::UnmountReport;
use super::log::MountLog;
use crate::error::{CliError, Result};
use crate::ui::format;

/// How long an ending mount waits for a service that does not answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often it looks whether that is so.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Shortest time between two warnings that the write log is nearly full: a fast writer fills it again and again.
const FILL_WARNING_EVERY: Duration = Duration::from_secs(600);

/// A live worktree at work.
pub struct MountedLiveWorktree {
    /// The worktree.
    pub fs: Arc<LiveFilesystem>,
    /// What publishes it.
    pub publisher: Arc<BackgroundPublisher>,
    tenure: Arc<HeldLease>,
    keeper: LeaseKeeper,
    /// The log from which another machine can continue the worktree, if it has one.
    shared_log: Option<OpenedSharedLog>,
    /// Held as long as it is mounted.
    pub claim: Arc<LiveStateClaim>,
}

impl MountedLiveWorktree {
    /// Starts the threads. `longest`: how old a change may become before it is published; None: as is usual for the store.
    pub fn start_threads(
        claim: LiveStateClaim,
        live: OpenedLiveState,
        log: &Arc<MountLog>,
        longest: Option<Duration>,
    ) -> Result<Self> {
        let OpenedLiveState { fs, tenure, put_out, shared_log } = live;
        if let Some((lease, place)) = put_out {
            log.write_warning(&format!("taken over from {lease}: what it did not publish is in {place}"));
        }
        if let Some(shared_log) = &shared_log {
            report_shared_log(shared_log, log);
        }
        let failed = || CliError::io_error("start", "a thread");
        let error_log = log.clone();
        let dir = claim.dir().display().to_string();
        let when_lost = move |error: &vellum_volume::VolumeError| {
            error_log.write_error(&format!("{error}; what was not published stays in {dir}"));
        };
        fs.write_log().set_fill_hook(warn_of_full_log(log.clone()));
        // The lease is renewed from now on, before anything is published: publishing can take longer than the lease
        // lasts.
        let keeper = LeaseKeeper::start(tenure.clone(), when_lost).map_err(failed())?;
        let publisher = BackgroundPublisher::start(fs.publisher().clone(), longest).map_err(failed())?;
        let publisher = Arc::new(publisher);
        Ok(Self { fs, publisher, tenure, keeper, shared_log, claim: Arc::new(claim) })
    }

    /// What tells whether this process has the worktree's log still; None: the worktree has none.
    pub fn log_ownership(&self) -> Option<LogOwnership> {
        self.shared_log.as_ref().map(OpenedSharedLog::ownership)
    }

    /// Lets `hook` be called when another machine has taken the worktree over, or its log cannot be used any more.
    pub fn add_loss_hook(&self, hook: impl Fn() + Send + 'static) {
        if let Some(shared_log) = &self.shared_log {
            shared_log.add_failure_hook(move |_| hook());
        }
    }

    /// Puts what was written so far into the store. A failure is left to the end.
    pub fn publish_before_end(&self) {
        let _ = publish_while_answered(&self.fs);
    }

    /// Gives up what was written, and takes the worktree off the list. The report tells if it is still there.
    pub fn discard_worktree(self, log: &MountLog) -> UnmountReport {
        let Self { fs, publisher, tenure, keeper, shared_log, claim } = self;
        let _ = claim.record_stage(HolderStage::Ending);
        // Its thread may be at work for the store, and whoever discards does not wait: it ends with the process.
        std::mem::forget(publisher);
        drop(keeper);
        let remove = move || {
            // This process was started with another command.
            let _scope = CommandScope::enter(["try", "--discard"]);
            tenure.remove_worktree()?;
            if let Some(shared_log) = shared_log {
                // Nothing names it any more: if it stays, it only takes room.
                let _ = shared_log.remove_log();
            }
            Ok::<_, VolumeError>(())
        };
        let failure = match run_while_answered(fs.volume(), remove) {
            Some(Ok(())) => return UnmountReport::default(),
            Some(Err(error)) => error.to_string(),
            None => EndFailure::Silence.to_string(),
        };
        log.write_line(&format!("the worktree could not be removed: {failure}"));
        UnmountReport { failure: Some(failure), ..UnmountReport::default() }
    }

    /// Makes everything durable, publishes it unless that is to be skipped, and gives the lease up. What is not published
    /// is safe here, and is told.
    pub fn end_worktree(
        self,
        log: &MountLog,
        skips_publishing: bool,
    ) -> Result<UnmountReport, MountingError> {
        let Self { fs, publisher, tenure, keeper, shared_log, claim } = self;
        // Whoever wants the worktree waits. If that cannot be told, they are refused until the lock is free.
        let _ = claim.record_stage(HolderStage::Ending);
        // First of all on the local disk: whatever becomes of the store, no write is lost. If this fails, publishing
        // is tried nevertheless, and the failure is reported at the end.
        let synced = fs.content().sync_all();
        let published = if skips_publishing { skip_publishing(&fs) } else { publish_while_answered(&fs) };
        let report = match published {
            Ok(()) if skips_publishing => UnmountReport::default(),
            Ok(()) => {
                // Without the publisher nothing can be published after the lease was given up.
                drop(publisher);
                // The lease is renewed until then: an upload may take longer than its term.
                drop(keeper);
                release_while_answered(&fs, tenure, log);
                release_shared_log(&fs, shared_log, log);
                synced?;
                return Ok(UnmountReport::default());
            }
            // It is safe here, and goes into the store when the worktree is mounted again.
            Err(failure) => {
                log.write_error(&format!("not everything could be put into the store: {failure}"));
                let left = fs.unpublished_changes().unwrap_or_default();
                UnmountReport {
                    is_fenced: failure.is_fenced(),
                    failure: Some(failure.to_string()),
                    snapshots: left.snapshots,
                    log_bytes: left.log_bytes,
                }
            }
        };
        // Their threads may wait for the store, and whoever ends the mount would wait for them. They end with the process.
        std::mem::forget((publisher, keeper));
        // What is not in the store is in the log: another machine can go on at once.
        release_shared_log(&fs, shared_log, log);
        match synced {
            // That nothing is durable any more is how a mount with a log notices that it was taken over.
            Err(error) if !report.is_fenced || error.is_fenced_error() => Err(error.into()),
            Ok(()) | Err(_) => Ok(report),
        }
    }
}

/// Writes to the mount's log that the write log is nearly full.
fn warn_of_full_log(log: Arc<MountLog>) -> impl Fn(LogUsage) {
    let told = Mutex::new(None::<Instant>);
    move |usage| {
        let mut told = told.lock();
        if told.is_some_and(|told| told.elapsed() < FILL_WARNING_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        log.write_warning(&format!(
            "the write log is {} % full ({} of {}): when it is full, writes wait for the store; 'vellum status' shows \
             why the store does not accept its content",
            usage.percent(),
            format::format_size(usage.used),
            format::format_size(usage.limit)
        ));
    }
}

/// Why an ending mount leaves something out of the store.
#[derive(Debug, thiserror::Error)]
enum EndFailure {
    #[error(transparent)]
    Publishing(#[from] FsError),
    #[error("the store has not answered for {} seconds", SILENCE_MAX.as_secs())]
    Silence,
    #[error("the mount was ended without the store (--force)")]
    Skipped,
}

impl EndFailure {
    /// Whether another took the worktree over.
    fn is_fenced(&self) -> bool {
        match self {
            Self::Publishing(error) => error.is_fenced_error(),
            Self::Silence | Self::Skipped => false,
        }
    }
}

/// Fails if there is anything to publish.
fn skip_publishing(fs: &LiveFilesystem) -> Result<(), EndFailure> {
    match fs.publisher().unpublished_since()? {
        Some(_) => Err(EndFailure::Skipped),
        None => Ok(()),
    }
}

fn publish_while_answered(fs: &Arc<LiveFilesystem>) -> Result<(), EndFailure> {
    let publishing = fs.clone();
    let published = run_while_answered(fs.volume(), move || publishing.publisher().publish_all());
    Ok(published.ok_or(EndFailure::Silence)??)
}

fn release_while_answered(fs: &LiveFilesystem, tenure: Arc<HeldLease>, log: &MountLog) {
    let reason = match run_while_answered(fs.volume(), move || tenure.release_lease()) {
        Some(Ok(())) => return,
        Some(Err(error)) => error.to_string(),
        None => EndFailure::Silence.to_string(),
    };
    log.write_warning(&format!("the lease could not be given up: {reason}"));
}

/// Says of a log with whom it was shared before, and later why nothing can be changed any more.
fn report_shared_log(shared_log: &OpenedSharedLog, log: &Arc<MountLog>) {
    if let Some(before) = &shared_log.continued_from {
        log.write_warning(&format!("continued from the shared log, where {} left it", before.host));
    }
    let error_log = log.clone();
    shared_log.add_failure_hook(move |failure| {
        error_log.write_error(&format!("nothing can be changed here any more: {failure}"));
    });
}

/// Gives the log up, so that the next mount need not wait, wherever it is.
fn release_shared_log(fs: &Arc<LiveFilesystem>, shared_log: Option<OpenedSharedLog>, log: &MountLog) {
    let Some(shared_log) = shared_log else { return };
    let fs = fs.clone();
    let (sender, done) = mpsc::channel();
    let release = move || {
        // Nothing may be appended afterwards.
        let synced = fs.live_map().sync_changes().map_err(|error| error.to_string());
        let released = synced.and_then(|()| shared_log.release_log().map_err(|error| error.to_string()));
        // Nobody may wait for it any more.
        drop(sender.send(released));
    };
    let released = match std::thread::Builder::new().name("ending".into()).spawn(release) {
        Err(error) => Err(error.to_string()),
        Ok(_) => done.recv_timeout(SILENCE_MAX).unwrap_or_else(|_| Err("its engine does not answer".into())),
    };
    if let Err(reason) = released {
        log.write_warning(&format!(
            "the claim of the shared log could not be given up: {reason}; it ends by itself in some seconds"
        ));
    }
}

/// Runs `work` in a thread. Returns `None`, and leaves the thread alone, if the store is a service that has not answered
/// for [`SILENCE_MAX`].
fn run_while_answered<T: Send + 'static>(
    volume: &Volume,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, done) = mpsc::channel();
    // Nobody may wait for it any more.
    let send = move || drop(sender.send(work()));
    // Without a thread there is nothing to wait for: nothing can be published either.
    std::thread::Builder::new().name("ending".into()).spawn(send).ok()?;
    let mut silence = StoreSilence::begin(volume);
    loop {
        match done.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if silence.duration(volume) > SILENCE_MAX => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// For how long a service has not answered, as far as the requests tell that somebody waits for.
struct StoreSilence {
    counted: RequestCount,
    since: Instant,
}

/// Requests so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RequestCount {
    /// Those that repeat none. Another one means that an earlier one was answered.
    first: u64,
    /// Those that repeat a failed one.
    repeated: u64,
}

impl StoreSilence {
    fn begin(volume: &Volume) -> Self {
        Self { counted: RequestCount::read(volume), since: Instant::now() }
    }

    /// An upload that takes long is no silence: without progress it fails, and is repeated.
    fn duration(&mut self, volume: &Volume) -> Duration {
        let now = RequestCount::read(volume);
        if now.first != self.counted.first {
            *self = Self { counted: now, since: Instant::now() };
        }
        if now.repeated == self.counted.repeated { Duration::ZERO } else { self.since.elapsed() }
    }
}

impl RequestCount {
    /// All zero for a store that is no service.
    fn read(volume: &Volume) -> Self {
        let Some(traffic) = volume.blobs.service_traffic() else { return Self::default() };
        // Upkeep goes on beside, and tells nothing of publishing.
        let counted = [RequestPurpose::Foreground, RequestPurpose::Upload];
        let counts = counted.map(|purpose| *traffic.purposes.get(purpose));
        let repeated = counts.iter().map(|count| count.retries).sum();
        let all: u64 = counts.iter().map(PurposeTraffic::request_count).sum();
        Self { first: all.saturating_sub(repeated), repeated }
    }
}

//! A live worktree that is mounted: the threads that work for it, and its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_fs::LiveFilesystem;
use vellum_fs::log::LogUsage;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_library::LiveStateClaim;
use vellum_library::live::{HolderStage, OpenedLiveState};
use vellum_volume::lease::{HeldLease, LeaseKeeper};

use super::MountingError;
use super::end::UnmountReport;
use super::log::MountLog;
use crate::error::{CliError, Result};
use crate::ui::format;

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
    /// Held as long as it is mounted.
    pub claim: Arc<LiveStateClaim>,
}

impl MountedLiveWorktree {
    /// Starts the threads.
    pub fn start_threads(claim: LiveStateClaim, live: OpenedLiveState, log: &Arc<MountLog>) -> Result<Self> {
        let OpenedLiveState { fs, tenure, put_out } = live;
        if let Some((lease, place)) = put_out {
            log.write_line(&format!("taken over from {lease}: what it did not publish is in {place}"));
        }
        let failed = || CliError::io_error("start", "a thread");
        let error_log = log.clone();
        let dir = claim.dir().display().to_string();
        let when_lost = move |error: &vellum_volume::VolumeError| {
            error_log.write_line(&format!("{error}; what was not published stays in {dir}"));
        };
        fs.write_log().set_fill_hook(warn_of_full_log(log.clone()));
        // The lease is renewed from now on, before anything is published: publishing can take longer than the lease
        // lasts.
        let keeper = LeaseKeeper::start(tenure.clone(), when_lost).map_err(failed())?;
        let publisher = Arc::new(BackgroundPublisher::start(fs.publisher().clone()).map_err(failed())?);
        Ok(Self { fs, publisher, tenure, keeper, claim: Arc::new(claim) })
    }

    /// Makes everything durable, publishes it, and gives the lease up. What cannot be published is safe here, and is
    /// told.
    pub fn publish_and_release(self, log: &MountLog) -> std::result::Result<UnmountReport, MountingError> {
        let Self { fs, publisher, tenure, keeper, claim } = self;
        // Whoever wants the worktree waits. If that cannot be told, they are refused until the lock is free.
        let _ = claim.record_stage(HolderStage::Ending);
        // First of all on the local disk: whatever becomes of the store, no write is lost. If this fails, publishing
        // is tried nevertheless, and the failure is reported at the end.
        let synced = fs.content().sync_all();
        let report = match fs.publisher().publish_all() {
            Ok(()) => {
                // Without the publisher nothing can be published after the lease was given up.
                drop(publisher);
                // The lease is renewed until then: an upload may take longer than its term.
                drop(keeper);
                if let Err(error) = tenure.release_lease() {
                    log.write_line(&format!("the lease could not be given up: {error}"));
                }
                UnmountReport::default()
            }
            // It is safe here, and goes into the store when the worktree is mounted again.
            Err(error) => {
                log.write_line(&format!("not everything could be put into the store: {error}"));
                let left = fs.unpublished_changes().unwrap_or_default();
                let failure = Some(error.to_string());
                let is_fenced = error.is_fenced_error();
                UnmountReport { failure, is_fenced, snapshots: left.snapshots, log_bytes: left.log_bytes }
            }
        };
        synced?;
        Ok(report)
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
        log.write_line(&format!(
            "the write log is {} % full ({} of {}): when it is full, writes wait for the store; 'vellum status' shows \
             why the store does not accept its content",
            usage.percent(),
            format::format_size(usage.used),
            format::format_size(usage.limit)
        ));
    }
}

//! A live worktree that is mounted: the threads that work for it, and its end.

use std::sync::Arc;

use vellum_fs::Fs;
use vellum_fs::publisher::Publisher;
use vellum_library::Claim;
use vellum_library::live::{Live, Stage};
use vellum_volume::lease::{Keeper, Tenure};

use super::MountingError;
use super::end::EndReport;
use super::log::Log;
use crate::error::{CliError, Result};

/// A live worktree at work.
pub struct MountedLive {
    /// The worktree.
    pub fs: Arc<Fs>,
    /// What publishes it.
    pub publisher: Arc<Publisher>,
    tenure: Arc<Tenure>,
    keeper: Keeper,
    /// Held as long as it is mounted.
    pub claim: Arc<Claim>,
}

impl MountedLive {
    /// Starts the threads.
    pub fn start(claim: Claim, live: Live, log: &Arc<Log>) -> Result<Self> {
        let Live { fs, tenure, put_out } = live;
        if let Some((lease, place)) = put_out {
            log.line(&format!("taken over from {lease}: what it did not publish is in {place}"));
        }
        let failed = || CliError::io("start", "a thread");
        let (told, dir) = (log.clone(), claim.dir().display().to_string());
        let when_lost = move |error: &vellum_volume::VolumeError| {
            told.line(&format!("{error}; what was not published stays in {dir}"));
        };
        let keeper = Keeper::start(tenure.clone(), when_lost).map_err(failed())?;
        let publisher = Arc::new(Publisher::start(fs.clone()).map_err(failed())?);
        Ok(Self { fs, publisher, tenure, keeper, claim: Arc::new(claim) })
    }

    /// Makes everything durable, publishes it, and gives the lease up. What cannot be published is safe here, and is
    /// told.
    pub fn end(self, log: &Log) -> std::result::Result<EndReport, MountingError> {
        let Self { fs, publisher, tenure, keeper, claim } = self;
        // Whoever wants the worktree waits. If that cannot be told, they are refused until the lock is free.
        let _ = claim.tell_stage(Stage::Ending);
        drop(keeper);
        let synced = fs.sync();
        let report = match fs.flush() {
            Ok(()) => {
                drop(publisher);
                if let Err(error) = tenure.end() {
                    log.line(&format!("the lease could not be given up: {error}"));
                }
                EndReport::default()
            }
            // It is safe here, and goes into the store when the worktree is mounted again.
            Err(error) => {
                log.line(&format!("not everything could be put into the store: {error}"));
                let left = fs.unpublished().unwrap_or_default();
                let (failure, is_fenced) = (Some(error.to_string()), error.is_fenced());
                EndReport { failure, is_fenced, snapshots: left.snapshots, log_bytes: left.log_bytes }
            }
        };
        synced?;
        Ok(report)
    }
}

//! The threads that a mount may have beside those that serve it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vellum_fs::LiveFilesystem;
use vellum_host::ProgressMeter;
use vellum_store::RequestPurpose;
use vellum_volume::residence::ContentScope;

use crate::error::{CliError, Result};
use crate::mounting::automatic::{AutomaticSnapshots, CachingMount};
use crate::mounting::control::ControlService;
use crate::mounting::follow::{FollowIntervals, WorktreeFollower};
use crate::mounting::log::MountLog;
use crate::mounting::policies::RENEW_EVERY;
use crate::mounting::table;

/// Keeps here what is always to be here.
pub(super) fn start_keeping_policies(service: &ControlService, interval: Option<u64>) -> Result<()> {
    // Everything is here.
    if service.fs.volume().blobs.local_copies().is_none() {
        return Ok(());
    }
    let interval = interval.map_or(RENEW_EVERY, Duration::from_secs);
    let started = service.policies.clone().start_thread(service.end.clone(), service.log.clone(), interval);
    started.map_err(CliError::io_error("start", "a thread"))
}

/// Takes over what other machines do.
pub(super) fn start_following(
    service: Arc<ControlService>,
    mountpoint: &Path,
    interval: Option<u64>,
) -> Result<()> {
    let mount = table::find_mount_at(mountpoint)?;
    // Somebody has unmounted it already.
    let Some(device) = mount.map(|mount| mount.device) else { return Ok(()) };
    let intervals = interval
        .map_or_else(FollowIntervals::default, |secs| FollowIntervals::every(Duration::from_secs(secs)));
    let follower = WorktreeFollower { service, device, intervals };
    follower.start_thread().map_err(CliError::io_error("start", "a thread"))
}

/// Makes snapshots at an interval. `mount` is the one whose kernel keeps written pages, if one does.
pub(super) fn start_automatic_snapshots(
    service: Arc<ControlService>,
    mount: Option<CachingMount>,
    interval: Duration,
) -> Result<()> {
    let snapshots = AutomaticSnapshots { service, mount, interval };
    snapshots.start_thread().map_err(CliError::io_error("start", "a thread"))
}

/// Brings all names to this machine while the mount is used. It ends with the process.
pub(super) fn start_fetching_names(fs: Arc<LiveFilesystem>, log: Arc<MountLog>) -> Result<()> {
    let fetch = move || {
        // No program waits for these reads: they count as read ahead, and not as reads of programs.
        RequestPurpose::ReadAhead.set_for_thread();
        let meter = Arc::new(ProgressMeter::default());
        match fs.hydrate_paths(&[Vec::new()], ContentScope::Names, None, &meter) {
            Ok(fetched) => log.write_line(&format!("the names of {} files are here", fetched.files)),
            // They are fetched when they are looked at.
            Err(error) => log.write_warning(&format!("cannot fetch all names: {error}")),
        }
    };
    let started = std::thread::Builder::new().name("vellum-names".into()).spawn(fetch);
    started.map(drop).map_err(CliError::io_error("start", "a thread"))
}

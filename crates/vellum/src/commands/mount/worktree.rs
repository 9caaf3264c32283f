//! The mount of a live worktree, which this process serves: to its own mountpoint, and to clients if it is shared.
//!
//! Invariant: what this command created or took is given back if it fails.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use vellum_fuse::MountSource;
use vellum_library::live::{self, LiveLimits, LiveStateClaim, LogUse};
use vellum_volume::{Volume, VolumeError};

use super::naming::choose_worktree;
use super::report::{FencedHolder, MountJson, SharedLogJson};
use super::threads::{
    start_automatic_snapshots, start_fetching_names, start_following, start_keeping_policies,
};
use super::{Args, LOG_FILE, MountRetention, MountTarget, MountedTarget, ReadyMount, mount_target};
use crate::error::{CliError, Result};
use crate::mounting::automatic::CachingMount;
use crate::mounting::control::{ControlService, listen_for_control};
use crate::mounting::end::ShutdownSignal;
use crate::mounting::follow::FollowState;
use crate::mounting::live::MountedLiveWorktree;
use crate::mounting::log::MountLog;
use crate::mounting::mountpoint;
use crate::mounting::policies::PolicyKeeper;
use crate::mounting::sharing::{SharingServer, listen_for_clients};

/// Opens the worktree, creates it if there is none of the name, and mounts it.
pub(super) fn mount_worktree(args: &Args, volume: &Arc<Volume>, mountpoint: &Path) -> Result<ReadyMount> {
    // Bound before anything is made, so that an address that is taken fails the command.
    let listener = args.sharing.listen.map(|address| listen_for_clients(volume, address)).transpose()?;
    let name = choose_worktree(args, volume, mountpoint)?;
    let found = live::find_live_worktree(volume, &name)?;
    // A name that was typed must exist: created silently, a mistyped one would look like a worktree that has lost its
    // files.
    if found.is_none() && args.worktree.is_some() {
        return Err(VolumeError::no_worktree(name).into());
    }
    if found.is_some() && args.temporary {
        return Err(VolumeError::Exists { kind: "worktree", name }.into());
    }
    let shared_log = args.log.choose_log(volume, &name, found.as_ref(), args.temporary || args.read_only)?;
    mountpoint::prepare_mountpoint(mountpoint)?;
    // The claim comes first: of two commands that mount a new worktree of one name, one creates it.
    let claim = LiveStateClaim::acquire(volume, &name, Some(mountpoint))?;
    let made = found.is_none();
    if made {
        live::create_live_worktree(volume, &name, volume.read_head()?)?;
    }
    match serve_worktree(args, volume, WorktreePlace { mountpoint, listener }, claim, &shared_log) {
        Ok(ready) => Ok(ReadyMount { report: MountJson { made, ..ready.report }, ..ready }),
        Err(error) => {
            // Only what this command created: a worktree of this name that another one created meanwhile stays.
            if made {
                // That it failed is what the user wants to know, not what became of the attempt.
                let _ = live::remove_live_worktree(volume, &name);
            }
            Err(error)
        }
    }
}

/// Where a worktree is to be seen.
struct WorktreePlace<'a> {
    mountpoint: &'a Path,
    /// Where clients connect, if it is shared.
    listener: Option<TcpListener>,
}

fn serve_worktree(
    args: &Args,
    volume: &Arc<Volume>,
    place: WorktreePlace<'_>,
    claim: LiveStateClaim,
    shared_log: &LogUse,
) -> Result<ReadyMount> {
    args.check_close_of_direct_mount()?;
    let name = claim.worktree_name().to_owned();
    let limits = LiveLimits {
        serves: place
            .listener
            .as_ref()
            .map(TcpListener::local_addr)
            .transpose()
            .map_err(CliError::io_error("listen for", "clients"))?,
        keeps_orphans: args.sharing.listen.is_some(),
        ..args.live_limits()
    };
    // Before the lease is taken, which would stay if the log could not be opened.
    let log = Arc::new(MountLog::open_log(&claim.dir().join(LOG_FILE))?);
    let opened = claim.open_filesystem(volume, limits, shared_log)?;
    let shared_log = opened.shared_log.as_ref().map(SharedLogJson::new);
    let put_out = opened.put_out.as_ref().map(|(lease, place)| FencedHolder::new(lease, place));
    let live = MountedLiveWorktree::start_threads(claim, opened, &log, limits.longest_unpublished)?;
    let end = Arc::<ShutdownSignal>::default();
    let sharing = Arc::<SharingServer>::default();
    let shown = LiveMount { name: &name, live: &live, log: &log, end: &end, sharing: &sharing };
    match mount_live_worktree(args, volume, place, &shown) {
        Ok(MountedTarget { mounted, signals, log, report }) => {
            let report = MountJson { put_out, shared_log, temporary: args.temporary, ..report };
            let keep = if args.temporary { MountRetention::Nothing } else { MountRetention::Everything };
            let live = Some(live);
            Ok(ReadyMount {
                mounted,
                live,
                hold: None,
                client: None,
                standby: None,
                sharing,
                signals,
                log,
                end,
                keep,
                report,
            })
        }
        Err(error) => {
            // The lease goes back: nobody must wait for a mount that never was.
            let _ = live.end_worktree(&log, false);
            Err(error)
        }
    }
}

/// A live worktree that is to be mounted, and what its mount writes to and ends by.
struct LiveMount<'a> {
    name: &'a str,
    live: &'a MountedLiveWorktree,
    log: &'a Arc<MountLog>,
    end: &'a Arc<ShutdownSignal>,
    sharing: &'a Arc<SharingServer>,
}

fn mount_live_worktree(
    args: &Args,
    volume: &Arc<Volume>,
    place: WorktreePlace<'_>,
    shown: &LiveMount<'_>,
) -> Result<MountedTarget> {
    let LiveMount { name, live, log, end, sharing } = *shown;
    let WorktreePlace { mountpoint, listener } = place;
    let fs = live.fs.clone();
    let publisher = live.publisher.clone();
    let dir = live.claim.dir().to_path_buf();
    let policies = Arc::new(PolicyKeeper::open(fs.clone(), dir.clone())?);
    let service = Arc::new(ControlService {
        fs: fs.clone(),
        publisher,
        log: log.clone(),
        forgetter: OnceLock::new(),
        claim: live.claim.clone(),
        end: end.clone(),
        follow: args.follow.then(FollowState::default),
        policies: policies.clone(),
        sharing: sharing.clone(),
    });
    // It listens before the mount exists, because a file in the mount names the socket.
    let control = Some(listen_for_control(&dir, service.clone())?);
    let health = service.clone();
    let target = MountTarget {
        source: MountSource::Live(fs),
        worktree: Some(name),
        snapshot: None,
        dir,
        control,
        problems: Box::new(move || health.list_problems()),
        policies: policies.shared_policies(),
        locks: listener.as_ref().map(|_| sharing.new_local_locks()),
        gate: listener.as_ref().map(|_| sharing.new_gate()),
    };
    let mut made = mount_target(args, volume, mountpoint, target)?;
    if args.fetch_names {
        start_fetching_names(live.fs.clone(), log.clone())?;
    }
    // Nobody else sets it.
    // Only now, because it needs the connection to the kernel.
    let _ = service.forgetter.set(made.mounted.cache_invalidator());
    start_keeping_policies(&service, args.policy_interval)?;
    if args.follow {
        start_following(service.clone(), mountpoint, args.follow_interval)?;
    }
    if let Some(listener) = listener {
        // After the mount: clients that connect while it is being made wait, as the port is bound already.
        made.report.serves = Some(sharing.start(listener, &service)?.to_string());
    }
    if let Some(interval) = args.snapshot_every {
        // Otherwise somebody has unmounted it already.
        if let Some(mount) = CachingMount::find_at(mountpoint)? {
            start_automatic_snapshots(service, Some(mount), interval)?;
        }
    }
    Ok(made)
}

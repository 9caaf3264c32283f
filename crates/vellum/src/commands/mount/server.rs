//! The mount of a process that serves a shared worktree, or stands by to serve it next.
//!
//! A worktree with a shared log can be served by another process next: then this mount has to go on as a client of that one.
//! So it is a client from the beginning, of the server in its own process. A worktree without a log is served by nobody else:
//! its server's mount has it open itself.
//!
//! Invariant: what this command created or took is given back if it fails.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use vellum_library::live::{self, LogUse};
use vellum_volume::Volume;

use super::naming::choose_worktree;
use super::report::{MountJson, SharedLogJson};
use super::shared::{ClientPlace, ServerLink};
use super::threads::{start_automatic_snapshots, start_fetching_names, start_keeping_policies};
use super::worktree::mount_worktree;
use super::{Args, ReadyMount};
use crate::error::Result;
use crate::mounting::mountpoint;
use crate::mounting::sharing::listen_for_clients;
use crate::mounting::sharing::standby::{FirstTerm, JoinedServer, StandbyServer, StandbyState};
use crate::mounting::sharing::term::{ServingOptions, TermListener, UpkeepStarter};

/// Where a served worktree is to be seen.
pub(super) struct ServerPlace<'a> {
    pub mountpoint: &'a Path,
    /// Where clients connect.
    pub address: SocketAddr,
}

/// Serves the worktree, or stands by, and mounts it.
pub(super) fn mount_server(args: &Args, volume: &Arc<Volume>, place: ServerPlace<'_>) -> Result<ReadyMount> {
    let ServerPlace { mountpoint, address } = place;
    let name = choose_worktree(args, volume, mountpoint)?;
    let found = live::find_live_worktree(volume, &name)?;
    let shared_log = args.log.choose_log(volume, &name, found.as_ref(), args.read_only)?;
    if matches!(shared_log, LogUse::None | LogUse::Abandoned) {
        return mount_worktree(args, volume, mountpoint);
    }
    args.check_options_of_direct_mounts()?;
    // Bound before anything is made, so that an address that is taken fails the command.
    let listener = listen_for_clients(volume, address)?;
    mountpoint::prepare_mountpoint(mountpoint)?;
    // The place of a client from the beginning, because this mount goes on as one when another process serves.
    let place = ClientPlace::create(volume, &name, mountpoint)?;
    let state = StandbyState::new(ServingOptions {
        volume: volume.clone(),
        worktree: name,
        mountpoint: Some(mountpoint.into()),
        listener: TermListener::new(listener)?,
        limits: args.live_limits(),
        log: place.log.clone(),
        upkeep: new_upkeep(args),
    });
    // There is one, so it was not set before.
    let _ = place.control.standby.set(state.clone());
    let first = FirstTerm { is_new: found.is_none(), shared_log: &shared_log, takes_over: args.take_over };
    // May be called twice: first for the process that serves, and, if that is lost, for the one in this process.
    let connect = || {
        let named = state.clone();
        let link = ServerLink {
            locator: Box::new(state.locator()),
            stands_by: state.advertised_address(),
            named_successor: Arc::new(move || named.note_named()),
        };
        place.connect(args, volume, link)
    };
    let JoinedServer { term, client } = state.join(&first, connect)?;
    let serves = term.as_ref().map(|term| term.address.to_string());
    let log = term.as_ref().and_then(SharedLogJson::of_term);
    let stands_by = term.is_none().then(|| state.advertised_address());
    let standby = StandbyServer::start(&state, term)?;
    let log_file = place.log.clone();
    match place.mount(args, client) {
        Ok(ready) => {
            let report =
                MountJson { made: found.is_none(), serves, stands_by, shared_log: log, ..ready.report };
            Ok(ReadyMount { standby: Some(standby), report, ..ready })
        }
        Err(error) => {
            // Nobody must wait for a mount that never was.
            let _ = standby.end().map(|term| term.end(&log_file, false));
            Err(error)
        }
    }
}

/// What works beside the server, while this process is the one.
fn new_upkeep(args: &Args) -> UpkeepStarter {
    let Args { policy_interval, snapshot_every, fetch_names, .. } = *args;
    Box::new(move |service| {
        start_keeping_policies(service, policy_interval)?;
        if fetch_names {
            start_fetching_names(service.fs.clone(), service.log.clone())?;
        }
        if let Some(interval) = snapshot_every {
            // Kernels of shared mounts keep nothing that was written.
            start_automatic_snapshots(service.clone(), None, interval)?;
        }
        Ok(())
    })
}

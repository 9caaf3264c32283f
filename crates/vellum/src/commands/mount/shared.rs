//! The mount of a client: its requests are carried out by the process that serves the worktree.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_cluster::client::{ClientOptions, DEFAULT_WAIT, WorktreeClient};
use vellum_cluster::protocol::frame::ClientDescription;
use vellum_fuse::mount::{AttachOptions, mount_service};
use vellum_fuse::transport::mounting::MountParameters;
use vellum_fuse::{MountPosture, ServedFilesystem};
use vellum_host::process::host_name;
use vellum_library::live;
use vellum_volume::{Volume, VolumeError};

use super::report::MountJson;
use super::{Args, LOG_FILE, MountRetention, ReadyMount};
use crate::error::Result;
use crate::mounting::control::listen_for_control;
use crate::mounting::daemon::EndSignals;
use crate::mounting::log::MountLog;
use crate::mounting::sharing::client::{ClientControl, client_dir, remove_client_dir};
use crate::mounting::sharing::{choose_server_locator, connection_identity};
use crate::mounting::{MountingError, mountpoint};

/// What a client's mount takes until it ends.
pub(super) struct ClientMount {
    /// None while it is being dropped.
    client: Option<WorktreeClient>,
    dir: PathBuf,
}

impl Drop for ClientMount {
    fn drop(&mut self) {
        // First of all: it may still write to the log.
        drop(self.client.take());
        remove_client_dir(&self.dir);
    }
}

/// Connects to the process that serves the worktree, and mounts.
pub(super) fn mount_client(
    args: &Args,
    volume: &Arc<Volume>,
    mountpoint: &Path,
    server: Option<&str>,
) -> Result<ReadyMount> {
    let name = args.sharing.shared.clone().unwrap_or_default();
    if live::find_live_worktree(volume, &name)?.is_none() {
        return Err(VolumeError::NoSuchRef { kind: "worktree", name }.into());
    }
    mountpoint::prepare_mountpoint(mountpoint)?;
    let dir = client_dir(volume);
    live::create_state_dir(&dir)?;
    let mut held = ClientMount { client: None, dir: dir.clone() };
    let log = Arc::new(MountLog::open_log(&dir.join(LOG_FILE))?);
    let control = Arc::new(ClientControl::default());
    let socket = listen_for_control(&dir, control.clone())?;
    let locator = choose_server_locator(server, volume, &name)?;
    let report = log.clone();
    let options = ClientOptions {
        locator,
        identity: connection_identity(volume, &name),
        description: describe_client(volume, mountpoint, &socket),
        wait: args.sharing.wait.unwrap_or(DEFAULT_WAIT),
        report: Arc::new(move |text: &str| report.write_warning(text)),
    };
    let client = WorktreeClient::connect(options)?;
    // It is new, so it was not set before.
    let _ = control.server.set(client.command_sender());
    let signals = EndSignals::install()?;
    let mounted = attach_client(args, &client, mountpoint, &log)?;
    held.client = Some(client);
    let report = MountJson {
        mountpoint: mountpoint.display().to_string(),
        worktree: Some(name),
        snapshot: None,
        made: false,
        temporary: false,
        put_out: None,
        read_only: args.read_only,
        pid: std::process::id(),
        log: dir.join(LOG_FILE).display().to_string(),
        metrics: None,
        serves: None,
        shared_log: None,
        client_of: server.map(String::from),
    };
    Ok(ReadyMount {
        mounted,
        live: None,
        hold: None,
        client: Some(held),
        sharing: Arc::default(),
        signals,
        log,
        end: control.end.clone(),
        keep: MountRetention::Everything,
        report,
    })
}

fn describe_client(volume: &Volume, mountpoint: &Path, socket: &Path) -> ClientDescription {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    ClientDescription {
        host: host_name(),
        pid: std::process::id(),
        mountpoint: bytes(mountpoint),
        state: bytes(volume.state.path()),
        control: bytes(socket),
        store: volume.objects.describe_location(),
    }
}

fn attach_client(
    args: &Args,
    client: &WorktreeClient,
    mountpoint: &Path,
    log: &Arc<MountLog>,
) -> Result<ServedFilesystem> {
    let name = args.sharing.shared.clone().unwrap_or_default();
    let log = log.clone();
    let options = AttachOptions {
        parameters: MountParameters {
            name: args.table_name.clone().unwrap_or_else(|| format!("vellum:{name}")),
            read_only: args.read_only,
            allow_other: args.allow_other,
            no_exec: args.is_no_exec(),
        },
        no_rings: args.no_io_uring,
        posture: MountPosture::Shared,
        report: Arc::new(move |text: &str| log.write_warning(text)),
    };
    let mounted = mount_service(client.new_service(), mountpoint, &options);
    Ok(mounted.map_err(MountingError::from)?)
}

//! The mount of a client: its requests are carried out by the process that serves the worktree.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vellum_cluster::client::{
    ClientOptions, CloseGuarantee, DEFAULT_NAMES_PAUSE, DEFAULT_WAIT, ServerLocator, StoredWrites,
    WorktreeClient,
};
use vellum_cluster::protocol::frame::ClientDescription;
use vellum_fs::ChunkUploader;
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
use crate::mounting::sharing::client::{ClientControl, ClientMountPlace, client_dir, remove_client_dir};
use crate::mounting::sharing::kernel::ClientKernel;
use crate::mounting::sharing::{choose_server_locator, connection_identity};
use crate::mounting::{MountingError, mountpoint};

/// What a client's mount takes until it ends.
pub(super) struct ClientMount {
    /// None while it is being dropped, and for a mount that reads from the store alone.
    pub client: Option<WorktreeClient>,
    pub dir: PathBuf,
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
        return Err(VolumeError::no_worktree(name).into());
    }
    mountpoint::prepare_mountpoint(mountpoint)?;
    let place = ClientPlace::create(volume, &name, mountpoint)?;
    let locator = choose_server_locator(server, volume, &name)?;
    // Asked once here, although the client asks for each connection: a worktree that nobody serves fails at once, and
    // the report names the address.
    let address = locator.find_server()?;
    let link = ServerLink { locator, stands_by: String::new(), named_successor: Arc::new(|| {}) };
    let client = place.connect(args, volume, link)?;
    let ready = place.mount(args, client)?;
    Ok(ReadyMount { report: MountJson { client_of: Some(address), ..ready.report }, ..ready })
}

/// Where a client is to be mounted, and what its process has for it.
pub(super) struct ClientPlace<'a> {
    mountpoint: &'a Path,
    held: ClientMount,
    /// Where is told what happens.
    pub log: Arc<MountLog>,
    /// What answers commands.
    pub control: Arc<ClientControl>,
    socket: PathBuf,
}

/// How a client finds its server, and what it may be itself.
pub(super) struct ServerLink {
    pub locator: Box<dyn ServerLocator>,
    /// Where this process would serve next; empty: nowhere.
    pub stands_by: String,
    /// Called when it is to.
    pub named_successor: Arc<dyn Fn() + Send + Sync>,
}

impl<'a> ClientPlace<'a> {
    pub fn create(volume: &Volume, worktree: &str, mountpoint: &'a Path) -> Result<Self> {
        let dir = client_dir(volume);
        live::create_state_dir(&dir)?;
        // Made before the rest, so that whatever fails from here on removes the directory.
        let held = ClientMount { client: None, dir: dir.clone() };
        let log = Arc::new(MountLog::open_log(&dir.join(LOG_FILE))?);
        let place = ClientMountPlace { mountpoint: mountpoint.into(), worktree: worktree.into() };
        let control = Arc::new(ClientControl { place, ..ClientControl::default() });
        // It listens before the mount exists, because a file in the mount names the socket.
        let socket = listen_for_control(&dir, control.clone())?;
        Ok(Self { mountpoint, held, log, control, socket })
    }

    pub fn connect(&self, args: &Args, volume: &Arc<Volume>, link: ServerLink) -> Result<WorktreeClient> {
        let ServerLink { locator, stands_by, named_successor } = link;
        let name = args.sharing.shared.as_deref().unwrap_or_default();
        let report = self.log.clone();
        let described = describe_client(volume, self.mountpoint, &self.socket);
        let client = WorktreeClient::connect(ClientOptions {
            locator,
            identity: connection_identity(volume, name),
            description: ClientDescription { stands_by, ..described },
            wait: args.sharing.wait.unwrap_or(DEFAULT_WAIT),
            close: args.sharing.close.map(CloseGuarantee::from).unwrap_or_default(),
            report: Arc::new(move |text: &str| report.write_warning(text)),
            named_successor,
            stored_writes: args
                .sharing
                .store_writes
                .map(|min_len| StoredWrites { store: Box::new(ChunkUploader::new(volume.clone())), min_len }),
        })?;
        // There is one client, so it was not set before.
        let _ = self.control.server.set(client.command_sender());
        Ok(client)
    }

    pub fn mount(self, args: &Args, client: WorktreeClient) -> Result<ReadyMount> {
        let Self { mountpoint, mut held, log, control, socket: _ } = self;
        // Before the mount exists: a signal between the two would leave a mount without its process.
        let signals = EndSignals::install()?;
        let mounted = attach_client(args, &client, mountpoint, &log)?;
        // It must outlive the mount, whose requests it answers.
        held.client = Some(client);
        let report = MountJson {
            mountpoint: mountpoint.display().to_string(),
            worktree: args.sharing.shared.clone(),
            snapshot: None,
            made: false,
            temporary: false,
            put_out: None,
            read_only: args.read_only,
            pid: std::process::id(),
            log: held.dir.join(LOG_FILE).display().to_string(),
            metrics: None,
            serves: None,
            stands_by: None,
            shared_log: None,
            client_of: None,
        };
        Ok(ReadyMount {
            mounted,
            live: None,
            hold: None,
            client: Some(held),
            standby: None,
            sharing: Arc::default(),
            signals,
            log,
            end: control.end.clone(),
            keep: MountRetention::Everything,
            report,
        })
    }
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
        stands_by: String::new(),
    }
}

fn attach_client(
    args: &Args,
    client: &WorktreeClient,
    mountpoint: &Path,
    log: &Arc<MountLog>,
) -> Result<ServedFilesystem> {
    let name = args.sharing.shared.clone().unwrap_or_default();
    let report = log.clone();
    let options = AttachOptions {
        parameters: MountParameters {
            name: args.table_name.clone().unwrap_or_else(|| format!("vellum:{name}")),
            read_only: args.read_only,
            allow_other: args.allow_other,
            no_exec: args.is_no_exec(),
        },
        no_rings: args.no_io_uring,
        posture: MountPosture::Shared,
        report: Arc::new(move |text: &str| report.write_warning(text)),
    };
    let mounted = mount_service(client.new_service(), mountpoint, &options);
    let mounted = mounted.map_err(MountingError::from)?;
    let kernel = ClientKernel::new(mounted.cache_invalidator(), mountpoint.into(), log.clone());
    let pause = args.sharing.names_pause.map_or(DEFAULT_NAMES_PAUSE, Duration::from_millis);
    client.attach_kernel(Arc::new(kernel), pause);
    Ok(mounted)
}

//! `vellum mount`: a worktree or a snapshot as a filesystem.

mod background;
mod followed;
mod hook;
mod log;
mod naming;
pub mod options;
mod report;
mod server;
mod shared;
mod sharing;
mod snapshot;
mod threads;
mod worktree;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vellum_fuse::metrics::RequestMetrics;
use vellum_fuse::transport::ChangeGate;
use vellum_fuse::{
    FileLocks, MountFile, MountOptions, MountPosture, MountSource, PathPolicies, ServedFilesystem,
};
use vellum_host::escape::format_path;
use vellum_library::TreeHold;
use vellum_library::live::{self, LiveLimits};
use vellum_store::RequestLimits;
use vellum_types::SnapshotId;
use vellum_volume::{StateDir, Volume};

use crate::commands::cache::limit_mount_cache;
use crate::commands::trash::parse_trash_days;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::heap;
use crate::mounting::daemon::{EndSignals, ServedMount};
use crate::mounting::end::ShutdownSignal;
use crate::mounting::live::MountedLiveWorktree;
use crate::mounting::log::MountLog;
use crate::mounting::metrics::{MetricsPages, MountProblems};
use crate::mounting::sharing::standby::StandbyServer;
use crate::mounting::sharing::{SharingRole, SharingServer};
use crate::mounting::{MountingError, daemon, metrics, mountpoint, service_manager};
use crate::secret::read_secret_file;
use crate::ui::format;
pub use background::StartingMount;
use followed::mount_published;
use hook::{find_mount_hook, serve_beside_hook};
use log::LogArgs;
use options::{MountOption, parse_interval};
use report::{MountJson, report_mount};
use server::{ServerPlace, mount_server};
use shared::{ClientMount, mount_client};
use sharing::SharingArgs;
use snapshot::mount_snapshot;
use worktree::mount_worktree;

/// Mount a worktree as a filesystem
///
/// Writes are kept in the volume's state directory. A worktree that does not exist yet is created from VOLUME's
/// current snapshot and named after the mountpoint. '.vellum/snapshots' below the mountpoint, which no listing
/// shows, holds every snapshot.
#[derive(Debug, Clone, clap::Args)]
// clap otherwise refuses an optional word before a required one.
#[command(allow_missing_positional = true)]
pub struct Args {
    /// A directory of the volume; by default the current directory
    volume: Option<PathBuf>,
    /// The directory to mount on, which must exist and be empty
    mountpoint: PathBuf,
    /// The worktree to mount; by default named after the mountpoint, on a device DEVICE.MOUNTPOINT
    #[arg(long, value_name = "NAME")]
    worktree: Option<String>,
    /// Mount this snapshot, read-only
    #[arg(long, value_name = "SNAP", conflicts_with = "worktree")]
    snapshot: Option<String>,
    /// Mount read-only
    #[arg(long)]
    read_only: bool,
    /// Options as mount(8) and fstab(5) have them, separated by commas: ro, worktree=NAME, snapshot=SNAP, allow_other,
    /// noexec, key-file=FILE; 'nofail' ends with 0 and a warning if the store cannot be reached, 'timeout=30s' gives the
    /// mount so long to be ready
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',', value_parser = MountOption::parse)]
    pub options: Vec<MountOption>,
    /// If '.vellum/key' is missing: the mount's process opens the volume with the passphrase, the key file or the recovery
    /// code in FILE, and keeps the key in memory only
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Create a worktree for this mount only; unmounting discards what no snapshot holds
    #[arg(long, conflicts_with = "snapshot")]
    temporary: bool,
    /// Stay in the foreground until the mount is ended
    #[arg(long)]
    foreground: bool,
    /// Allow access by other users, subject to permissions
    #[arg(long)]
    pub allow_other: bool,
    /// Use /dev/fuse even if the kernel offers FUSE over io_uring
    #[arg(long)]
    no_io_uring: bool,
    /// Fetch no content for programs of these names, separated by commas: reading what is not on this machine fails with
    /// 'Permission denied'. For indexers and virus scanners
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    deny_hydrate: Vec<String>,
    /// Memory for recently read content, in bytes or with K, M, G; by default 1/16 of the machine's memory, between
    /// 64M and 1G
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    cache_size: Option<u64>,
    /// The most disk space that the cache of a store in a service may take for content while this is mounted, in bytes or with
    /// K, M, G; 0 keeps none. Of several mounts, and of 'vellum cache --set-size', the smallest counts
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    disk_cache: Option<u64>,
    /// Memory for attributes and names, in bytes or with K, M, G; by default 64M
    #[arg(long, value_name = "SIZE", conflicts_with = "snapshot", value_parser = format::parse_size)]
    inode_cache: Option<u64>,
    /// Disk space for data that is not in the store yet, in bytes or with K, M, G; by default half of the free
    /// space, at most 16 GiB
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    log_limit: Option<u64>,
    /// Put changes into the store at most TIME after they were made, such as 10s: what may be lost with this machine. By
    /// default a minute, and 5 minutes if the store is a service, where each time costs some ten requests
    #[arg(long, value_name = "TIME", conflicts_with = "snapshot", value_parser = parse_interval)]
    rpo: Option<Duration>,
    /// Keep what is deleted in the mount for DAYS, from now on and in later mounts; 0 keeps nothing, and deletes what is
    /// kept: see 'vellum trash'
    #[arg(long, value_name = "DAYS", conflicts_with = "snapshot", value_parser = parse_trash_days())]
    trash_days: Option<u32>,
    /// Take the worktree over from another machine that still holds it; unpublished changes stay on that machine
    #[arg(long, conflicts_with = "snapshot")]
    take_over: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Serve Prometheus metrics over HTTP at ADDRESS: a port of this machine only, or ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = metrics::parse_listen_address)]
    metrics: Option<SocketAddr>,
    /// While the mount is idle, merge what other machines did in their worktrees of this name, as 'vellum pull' and
    /// 'vellum merge --all' do, unless there are conflicts. With --shared: show, read-only, what the process that serves the
    /// worktree puts into the store, and connect to the store alone
    #[arg(long, conflicts_with_all = ["snapshot", "read_only", "temporary"])]
    follow: bool,
    /// Seconds between two looks at what others did
    #[arg(long, hide = true, requires = "follow")]
    follow_interval: Option<u64>,
    /// Seconds between two looks at what is always to be here
    #[arg(long, hide = true)]
    policy_interval: Option<u64>,
    /// Make a snapshot at this interval, such as 10m, if something was changed since the last one; its note is 'automatic'
    #[arg(long, value_name = "TIME", conflicts_with_all = ["snapshot", "read_only"], value_parser = parse_interval)]
    snapshot_every: Option<Duration>,
    #[command(flatten)]
    pub sharing: SharingArgs,
    /// Fetch all names and attributes in the background
    #[arg(long, hide = true)]
    pub fetch_names: bool,
    /// Seconds for which the lease counts that is not renewed
    #[arg(long, hide = true)]
    lease_term: Option<u32>,
    /// Leave the terminal once the mount is ready: how the command runs itself
    #[arg(long, hide = true)]
    detach: bool,
    /// Begin when a line comes on standard input: the worktree does not exist before
    #[arg(long, hide = true, requires = "detach")]
    on_word: bool,
    /// The source that the table of mounts shows
    #[arg(long, hide = true)]
    pub table_name: Option<String>,
}

impl Args {
    /// A worktree that exists, of the volume of this directory.
    pub fn for_worktree(volume: &Path, mountpoint: &Path, name: &str) -> Self {
        Self { worktree: Some(name.into()), ..Self::for_volume(volume, mountpoint) }
    }

    /// A snapshot of the volume that the user stands in.
    pub fn for_snapshot(snapshot: &str, mountpoint: &Path) -> Self {
        let defaults = Self::for_volume(Path::new(""), mountpoint);
        Self { volume: None, snapshot: Some(snapshot.into()), ..defaults }
    }

    /// The volume of this directory, with all else as it is by default.
    pub fn for_volume(volume: &Path, mountpoint: &Path) -> Self {
        Self {
            volume: Some(volume.into()),
            mountpoint: mountpoint.into(),
            worktree: None,
            options: Vec::new(),
            table_name: None,
            key_file: None,
            snapshot: None,
            read_only: false,
            temporary: false,
            foreground: false,
            allow_other: false,
            no_io_uring: false,
            deny_hydrate: Vec::new(),
            cache_size: None,
            disk_cache: None,
            inode_cache: None,
            log_limit: None,
            rpo: None,
            trash_days: None,
            take_over: false,
            log: LogArgs::default(),
            metrics: None,
            follow: false,
            follow_interval: None,
            policy_interval: None,
            snapshot_every: None,
            sharing: SharingArgs::default(),
            fetch_names: false,
            lease_term: None,
            detach: false,
            on_word: false,
        }
    }
}

impl Args {
    /// With which limits the worktree is opened.
    fn live_limits(&self) -> LiveLimits {
        LiveLimits {
            cache: self.cache_size,
            inodes: self.inode_cache,
            log: self.log_limit,
            longest_unpublished: self.rpo,
            trash_days: self.trash_days,
            term: self.lease_term,
            take_over: self.take_over,
            log_wait: self.log.wait,
            ..LiveLimits::default()
        }
    }
}

/// How long a program that reads from a mount waits for a service that does not answer, unless --retry-for says it; then it
/// gets EIO.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Where the process that serves a mount tells what happens.
const LOG_FILE: &str = "daemon.log";

/// Mounts.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let args = args.apply_options()?;
    if args.foreground || args.detach {
        serve_mount(&args, context)
    } else {
        background::mount_in_background(&args, context)
    }
}

/// The state directory of the volume that is to be mounted.
fn open_state_dir(args: &Args, context: &CommandContext) -> Result<StateDir> {
    let start =
        args.volume.as_ref().map_or_else(|| context.cwd.clone(), |typed| context.resolve_local_path(typed));
    let start = start.canonicalize().map_err(CliError::io_error("work in", start.display().to_string()))?;
    match (&args.volume, context.open_mounted_worktree()?) {
        // Inside a mount, the volume is that of the mount: a state directory above the mountpoint may be of another
        // one.
        (None, Some(here)) => Ok(here.volume.state),
        _ => Ok(StateDir::find_enclosing(&start)?),
    }
}

/// The state directory with the key of the volume, if it is to come from a file and is not kept there.
fn unlock_with_file(
    args: &Args,
    context: &CommandContext,
    state: StateDir,
    limits: &RequestLimits,
) -> Result<StateDir> {
    match &args.key_file {
        Some(file) if state.read_worktree_file()?.encrypted && state.read_master_key()?.is_none() => {
            let secret = read_secret_file(&context.resolve_local_path(file))?;
            Ok(Volume::unlock_state_dir(&state, &secret, limits)?)
        }
        Some(_) | None => Ok(state),
    }
}

/// Mounts in this process, and serves until the mount is ended.
fn serve_mount(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // Before any thread exists: each takes a heap when it first allocates.
    heap::limit_mount_heaps();
    heap::start_memory_release().map_err(CliError::io_error("start", "a thread"))?;
    if args.detach {
        // In a session of its own, it gets neither the Ctrl-C of the terminal nor its hang-up.
        rustix::process::setsid()
            .map_err(|error| CliError::io_error("leave", "the terminal")(error.into()))?;
    }
    let retry_for = vellum_store::chosen_retry_time().unwrap_or(ANSWER_WITHIN);
    // Programs that use the mount wait for these requests, and are not told why.
    let limits = RequestLimits { retry_for, ..RequestLimits::default() };
    let state = unlock_with_file(args, context, open_state_dir(args, context)?, &limits)?;
    // Opened before the word to begin: that takes the time that the other process needs to make the worktree.
    let volume = Arc::new(Volume::open_with_limits(&state, &limits)?);
    if let Some(limit) = args.disk_cache {
        limit_mount_cache(&volume, limit)?;
    }
    if args.on_word && !daemon::wait_for_word() {
        return Ok(CommandOutcome::Done);
    }
    let mountpoint = mountpoint::resolve_mountpoint(&context.resolve_local_path(&args.mountpoint))?;
    let ready = match (&args.snapshot, args.sharing.role()) {
        (Some(typed), _) => mount_snapshot(args, &volume, volume.resolve_snapshot(typed)?.id, &mountpoint)?,
        (None, Some(SharingRole::Client { .. })) if args.follow => {
            mount_published(args, &volume, &mountpoint)?
        }
        (None, Some(SharingRole::Client { server })) => {
            mount_client(args, &volume, &mountpoint, server.as_deref())?
        }
        (None, Some(SharingRole::Server(address))) => {
            mount_server(args, &volume, ServerPlace { mountpoint: &mountpoint, address })?
        }
        (None, None) => mount_worktree(args, &volume, &mountpoint)?,
    };
    // Whoever started this process waits for the report: it is written when the mount answers, and not before.
    report_mount(context, &ready.report)?;
    // The reader of the report waits for it, and this process may go on for months.
    context.ui.flush_output()?;
    let ReadyMount { mounted, live, hold, client, sharing, standby, signals, log, end, keep, report } = ready;
    service_manager::notify_ready(&format!("mounted on {}", format_path(&report.mountpoint)));
    let fs = live.as_ref().map(|live| live.fs.clone());
    service_manager::start_watchdog(move || {
        // Whatever it answers, it works: a filesystem that is ending or full must not be killed. It is asked inside of this
        // process, because a request through its own mount could wait for this very thread.
        let _ = fs.as_ref().map(|fs| fs.attributes().statfs());
    })
    .map_err(CliError::io_error("start", "a thread"))?;
    if args.detach {
        // The pipes to the command that started this process end here; that command ends, too.
        log.redirect_output()?;
    }
    let mut needed = vec![volume.state.path().to_path_buf()];
    // A store in a directory is read and written by this process, too.
    needed.extend(volume.objects.local_dir().map(Path::to_path_buf));
    // The command that started a mount in the background runs its hook.
    let hook = if args.detach { None } else { find_mount_hook(&volume.state, context, &report)? };
    let live_dir = live.as_ref().map(|live| live.claim.dir().to_path_buf()).unwrap_or_default();
    let serving =
        ServedMount { mounted, live, mountpoint, needed, sharing, standby, log, end: end.clone(), signals };
    let is_whole = match hook {
        None => daemon::serve_until_unmount(serving)?,
        Some(hook) => serve_beside_hook(serving, hook)?,
    };
    // Nobody uses them any more.
    drop((hold, client));
    match (&args.snapshot, report.worktree) {
        (Some(_), _) => report.snapshot.and_then(|id| id.parse().ok()).iter().for_each(|id| {
            live::remove_snapshot_log_dir(&volume, id);
        }),
        // Whoever discarded it takes it off the list.
        (None, Some(_)) if end.is_discarded() => live::remove_live_state_dir(&live_dir)?,
        // What could not be put into the store is kept, also of a temporary one.
        (None, Some(name)) if keep == MountRetention::Nothing && is_whole => {
            live::remove_live_worktree(&volume, &name)?
        }
        (None, _) => {}
    }
    Ok(CommandOutcome::Done)
}

/// A mount that answers.
struct ReadyMount {
    mounted: ServedFilesystem,
    /// The worktree, if that is what is mounted.
    live: Option<MountedLiveWorktree>,
    /// What keeps what is mounted in the store, if that is where it is read from.
    hold: Option<TreeHold>,
    /// What forwards its requests, if it is a client.
    client: Option<ClientMount>,
    /// What serves it to other machines, if it is shared.
    sharing: Arc<SharingServer>,
    /// What serves the worktree whenever no other machine does, if the mount is its client.
    standby: Option<StandbyServer>,
    signals: EndSignals,
    log: Arc<MountLog>,
    end: Arc<ShutdownSignal>,
    keep: MountRetention,
    report: MountJson,
}

/// What stays of a mount in the volume when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountRetention {
    /// The worktree.
    Everything,
    /// No more than the snapshots.
    Nothing,
}

/// What a mount shows, and where its process keeps its log.
struct MountTarget<'a> {
    source: MountSource,
    worktree: Option<&'a str>,
    snapshot: Option<SnapshotId>,
    dir: PathBuf,
    control: Option<PathBuf>,
    /// What is wrong with it, for those who watch it.
    problems: MountProblems,
    /// Which content is fetched.
    policies: Arc<PathPolicies>,
    /// Where programs lock files, if the worktree is shared.
    locks: Option<Arc<dyn FileLocks>>,
    gate: Option<Arc<dyn ChangeGate>>,
}

/// A mount that was just made.
struct MountedTarget {
    mounted: ServedFilesystem,
    signals: EndSignals,
    log: Arc<MountLog>,
    report: MountJson,
}

fn mount_target(
    args: &Args,
    volume: &Arc<Volume>,
    mountpoint: &Path,
    shown: MountTarget<'_>,
) -> Result<MountedTarget> {
    let log_file = shown.dir.join(LOG_FILE);
    let log = Arc::new(MountLog::open_log(&log_file)?);
    let pid = std::process::id();
    // A process that was killed has not removed its own.
    remove_old_access_logs(&shown.dir);
    let snapshot = shown.snapshot.map(|id| id.to_string());
    let file = MountFile {
        pid,
        worktree: shown.worktree.map(String::from),
        snapshot: snapshot.clone(),
        state: volume.state.path().display().to_string(),
        control: shown.control.map(|path| path.display().to_string()),
        store: volume.objects.describe_location(),
    };
    let name = shown.worktree.map(String::from).or_else(|| snapshot.clone()).unwrap_or_default();
    let posture = match &shown.source {
        MountSource::Followed(_) => MountPosture::Followed,
        MountSource::Live(_) | MountSource::Snapshot(_) if shown.locks.is_some() => MountPosture::Shared,
        MountSource::Live(_) | MountSource::Snapshot(_) => MountPosture::Exclusive,
    };
    let read_only = args.read_only || !matches!(shown.source, MountSource::Live(_));
    let report_log = log.clone();
    let options = MountOptions {
        read_only,
        allow_other: args.allow_other,
        no_exec: args.is_no_exec(),
        keeps_access_times: args.keeps_access_times(),
        no_rings: args.no_io_uring,
        posture,
        locks: shown.locks,
        gate: shown.gate,
        deny_hydrate: args.deny_hydrate.clone(),
        policies: shown.policies,
        name: args.table_name.clone().unwrap_or_else(|| format!("vellum:{name}")),
        file,
        report: Arc::new(move |text: &str| report_log.write_warning(text)),
        // A snapshot may be mounted several times.
        access_log: shown.dir.join(format!("accesslog-{pid}")),
        metrics: new_mount_metrics(&shown.source, volume),
    };
    // The address is bound before the mount is made, so that a port that is taken fails the command.
    let requests = options.metrics.clone();
    let pages =
        MetricsPages { figures: Box::new(move || requests.format_metrics()), problems: shown.problems };
    let metrics = args.metrics.map(|address| metrics::serve_metrics(address, pages)).transpose()?;
    // Before the mount is visible: whoever sees it may send a signal, which must not leave a mount without its process.
    let signals = EndSignals::install()?;
    let mounted = vellum_fuse::mount_filesystem(shown.source, volume, mountpoint, options)
        .map_err(MountingError::from)?;
    let report = MountJson {
        mountpoint: mountpoint.display().to_string(),
        worktree: shown.worktree.map(String::from),
        snapshot,
        made: false,
        temporary: false,
        put_out: None,
        shared_log: None,
        read_only,
        pid,
        log: log_file.display().to_string(),
        metrics: metrics.map(|address| address.to_string()),
        serves: None,
        stands_by: None,
        client_of: None,
    };
    Ok(MountedTarget { mounted, signals, log, report })
}

/// What counts the requests of a mount, and tells what lies beneath it and what its process takes.
fn new_mount_metrics(source: &MountSource, volume: &Arc<Volume>) -> Arc<RequestMetrics> {
    let live = match source {
        MountSource::Live(fs) => Some(fs.clone()),
        MountSource::Snapshot(_) | MountSource::Followed(_) => None,
    };
    let volume = volume.clone();
    Arc::new(RequestMetrics::with_exposer(move |out| {
        metrics::expose_process_metrics(out);
        if let Some(fs) = &live {
            fs.expose_metrics(out);
        }
        if let Some(objects) = volume.objects.as_metered() {
            objects.expose_metrics(out);
        }
        if let Some(traffic) = volume.blobs.service_traffic() {
            traffic.expose_metrics(out);
        }
        if let Some(cache) = volume.blobs.local_copies().and_then(|copies| copies.pack_cache()) {
            cache.expose_metrics(out);
        }
    }))
}

/// Removes the access logs of mounts whose processes are gone.
fn remove_old_access_logs(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("accesslog-")?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // A leftover does no harm, and the next mount tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

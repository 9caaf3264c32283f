//! Creates, serves and ends a mount.
//!
//! Invariant: when [`mount_filesystem`] returns, the mount answers requests. A mount ends when it is unmounted, by any
//! process; [`ServedFilesystem::wait_until_unmounted`] then returns.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_fs::LiveFilesystem;
use vellum_types::SnapshotId;
use vellum_volume::Volume;

use crate::adapter::invalidation::{CacheInvalidator, KernelCacheTracker};
use crate::adapter::{
    ContentReaders, FailureObserver, FuseAdapter, KernelChannel, MountedState, PathPolicies,
};
use crate::error::{MountError, Result};
use crate::followed::FollowedTree;
use crate::locks::FileLocks;
use crate::metrics::RequestMetrics;
use crate::metrics::access_log::AccessLogPipe;
use crate::posture::MountPosture;
use crate::transport::mounting::{MountParameters, abort_mount, attach_mount};
use crate::transport::{
    ChangeGate, FuseConnection, FuseDevice, GatedService, RequestService, Watchdog, perform_handshake,
};
use crate::virt::{MountFile, SnapshotsDir, VirtualDir};

/// Threads that read requests from the device. Requests wait for disks and networks, so one thread is too few. But the
/// kernel wakes idle threads in turn, and a thread that has slept for long is slow to answer, so more are not better.
/// While one program sends requests, one of the threads answers alone.
pub const THREADS: usize = 4;

/// How far the kernel reads ahead, KiB: as much as one request carries.
const READ_AHEAD_KIB: u32 = 1024;

/// The share of all dirty pages that the mount may have, percent: five times the kernel's default for FUSE, some
/// hundred MiB. So writes to the same place are merged in memory, and most of a large file is written back before its
/// program has to wait.
const DIRTY_PERCENT: u32 = 5;

/// What is mounted.
pub enum MountSource {
    /// A live worktree.
    Live(Arc<LiveFilesystem>),
    /// A snapshot, read-only.
    Snapshot(SnapshotId),
    /// What another machine publishes, read-only.
    Followed(Arc<FollowedTree>),
}

/// How it is mounted.
pub struct MountOptions {
    /// Whether changes through the mount are refused.
    pub read_only: bool,
    /// Whether other users than the one who mounts may use it.
    pub allow_other: bool,
    /// Whether no program may be executed from it.
    pub no_exec: bool,
    /// Whether reading changes no access times.
    pub keeps_access_times: bool,
    /// Whether requests come through the device even if the kernel offers io_uring.
    pub no_rings: bool,
    /// What the kernel may cache.
    pub posture: MountPosture,
    /// Where programs lock files, if not in their kernel.
    pub locks: Option<Arc<dyn FileLocks>>,
    /// Where changes wait that other machines have to know of first.
    pub gate: Option<Arc<dyn ChangeGate>>,
    /// Names of programs for which no content is fetched.
    pub deny_hydrate: Vec<String>,
    /// Which content is fetched, by path.
    pub policies: Arc<PathPolicies>,
    /// The name in `/proc/self/mountinfo` and `df`.
    pub name: String,
    /// The content of `.vellum/mount.json`.
    pub file: MountFile,
    /// Called with failures beneath the filesystem.
    pub report: Arc<FailureObserver>,
    /// The pipe to create, from which the access log can be read.
    pub access_log: PathBuf,
    /// Counts the requests of the mount.
    pub metrics: Arc<RequestMetrics>,
}

/// A mount that is served by threads of this process.
pub struct ServedFilesystem {
    connection: FuseConnection,
    _attached: AttachedMount,
    invalidator: Arc<CacheInvalidator>,
    _watchdog: Option<Watchdog>,
    /// None: whatever answers the requests has it.
    _access_log: Option<AccessLogPipe>,
}

/// A mount on a directory. It is aborted when this is dropped, if it still exists: its requests would not be answered.
struct AttachedMount {
    mountpoint: PathBuf,
    /// Shows whether the mount exists.
    device: FuseDevice,
}

impl Drop for AttachedMount {
    fn drop(&mut self) {
        if self.device.is_connected() {
            // If this fails, processes still see the mountpoint; their requests fail with ENOTCONN when this process ends.
            let _ = abort_mount(&self.mountpoint);
        }
    }
}

/// How a service is attached to a directory.
pub struct AttachOptions {
    /// What the kernel is told of the mount.
    pub parameters: MountParameters,
    /// Whether requests come through the device even if the kernel offers io_uring.
    pub no_rings: bool,
    /// What the kernel may cache.
    pub posture: MountPosture,
    /// Called when requests are not answered.
    pub report: Arc<FailureObserver>,
}

/// Mounts on `mountpoint`, which must be an empty directory.
pub fn mount_filesystem(
    source: MountSource,
    volume: &Arc<Volume>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<ServedFilesystem> {
    let device = FuseDevice::open().map_err(MountError::NoDevice)?;
    let attach = AttachOptions {
        parameters: MountParameters {
            name: options.name.clone(),
            read_only: options.read_only || !matches!(source, MountSource::Live(_)),
            allow_other: options.allow_other,
            no_exec: options.no_exec,
        },
        no_rings: options.no_rings,
        posture: options.posture,
        report: options.report.clone(),
    };
    // The adapter needs a way to the kernel before the mount exists. It is filled in after the handshake, when the
    // first request can come.
    let kernel = KernelChannel::default();
    let adapter = build_adapter(source, volume, &options, kernel.clone())?;
    let cache_tracker = adapter.cache_tracker();
    // Before the mount is attached: a process may look into `.vellum` as soon as it is.
    let access_log = options.metrics.log.serve_pipe(&options.access_log).map_err(MountError::Session)?;
    let channels = KernelChannels { kernel, cache_tracker };
    let service = GatedService::new(adapter, options.gate.clone());
    let served = attach_service(device, service, mountpoint, &attach, channels)?;
    Ok(ServedFilesystem { _access_log: Some(access_log), ..served })
}

/// Mounts on `mountpoint`, which must be an empty directory. `service` answers all requests but the handshake.
pub fn mount_service(
    service: impl RequestService,
    mountpoint: &Path,
    options: &AttachOptions,
) -> Result<ServedFilesystem> {
    let device = FuseDevice::open().map_err(MountError::NoDevice)?;
    attach_service(device, service, mountpoint, options, KernelChannels::default())
}

/// What a service needs of the kernel, and what it remembers of it.
#[derive(Default)]
struct KernelChannels {
    kernel: KernelChannel,
    cache_tracker: Arc<KernelCacheTracker>,
}

fn attach_service(
    device: FuseDevice,
    service: impl RequestService,
    mountpoint: &Path,
    options: &AttachOptions,
    channels: KernelChannels,
) -> Result<ServedFilesystem> {
    let KernelChannels { kernel, cache_tracker } = channels;
    let device = attach_mount(device, mountpoint, &options.parameters)?;
    let connected = device.try_clone().map_err(MountError::Session)?;
    // From here on, the mount is detached if a step fails. Otherwise every process that touches the directory would
    // hang.
    let attached = AttachedMount { mountpoint: mountpoint.into(), device: connected };
    let may_use_rings = !options.no_rings && options.posture.may_use_rings();
    let rings = perform_handshake(&device, may_use_rings, options.posture).map_err(MountError::Session)?;
    // It is new, so it was not set before.
    let _ = kernel.set(device.new_notifier().map_err(MountError::Session)?);
    let notifier = device.new_notifier().map_err(MountError::Session)?;
    let connection = FuseConnection::start(device, rings, service, THREADS).map_err(MountError::Session)?;
    // Only now: it asks for the attributes of the mountpoint, which the threads of the mount have to answer.
    let number = raise_mount_limits(mountpoint);
    let watch =
        |number| connection.start_watchdog(number, options.report.clone()).map_err(MountError::Session);
    let watchdog = number.map(watch).transpose()?;
    let invalidator = Arc::new(CacheInvalidator::new(notifier, cache_tracker));
    Ok(ServedFilesystem {
        connection,
        _attached: attached,
        invalidator,
        _watchdog: watchdog,
        _access_log: None,
    })
}

/// What a service is made of that answers the requests which one other machine forwards.
pub struct ForwardedMount {
    /// The worktree.
    pub fs: Arc<LiveFilesystem>,
    /// The content of `.vellum/mount.json` on the other machine.
    pub file: MountFile,
    /// The pipe on the other machine from which its access log can be read.
    pub access_log: PathBuf,
    /// Called with failures beneath the filesystem.
    pub report: Arc<FailureObserver>,
    /// Where its programs lock files.
    pub locks: Arc<dyn FileLocks>,
}

/// Starts the service for one other machine. What its kernel knows is counted apart from what others know.
pub fn start_forwarded_service(mount: ForwardedMount) -> io::Result<FuseAdapter> {
    let ForwardedMount { fs, file, access_log, report, locks } = mount;
    let snapshots = SnapshotsDir::new(fs.volume().clone(), Some(fs.clone()));
    let metrics = Arc::new(RequestMetrics::with_exposer(|_| {}));
    let virt = VirtualDir::new(snapshots, &file, &access_log, metrics.clone());
    // It has no way to that kernel, and needs none: nothing is cached there that would have to be dropped.
    let kernel = KernelChannel::default();
    let adapter = FuseAdapter::start(MountedState::Live(fs), virt, metrics, report, kernel)?;
    Ok(adapter.with_posture(MountPosture::Shared, Some(locks)))
}

fn build_adapter(
    source: MountSource,
    volume: &Arc<Volume>,
    options: &MountOptions,
    kernel: KernelChannel,
) -> Result<FuseAdapter> {
    let live = match &source {
        MountSource::Live(fs) => Some(fs.clone()),
        MountSource::Snapshot(_) | MountSource::Followed(_) => None,
    };
    let snapshots = SnapshotsDir::new(volume.clone(), live);
    let metrics = options.metrics.clone();
    let virt = VirtualDir::new(snapshots, &options.file, &options.access_log, metrics.clone());
    let main = match source {
        MountSource::Live(fs) => {
            // Access times are changes, which a read-only mount must not make.
            if options.read_only || options.keeps_access_times {
                fs.live_map().freeze_access_times();
            }
            MountedState::Live(fs)
        }
        MountSource::Snapshot(id) => {
            let record = volume
                .catalog
                .get_record(&id)
                .map_err(|error| MountError::Session(io::Error::other(error)))?;
            MountedState::Frozen(Arc::new(volume.open_tree(record.root)))
        }
        MountSource::Followed(followed) => MountedState::Followed(followed),
    };
    let adapter = FuseAdapter::start(main, virt, metrics, options.report.clone(), kernel)
        .map_err(MountError::Session)?
        .with_posture(options.posture, options.locks.clone());
    Ok(match volume.blobs.local_copies() {
        Some(_) => {
            let readers = ContentReaders::new(&options.deny_hydrate);
            adapter.with_content_readers(readers, options.policies.clone())
        }
        // Nothing is fetched, whoever reads.
        None => adapter,
    })
}

/// Raises the kernel's limits for readahead and dirty pages, which are lower for FUSE than for other filesystems.
/// Returns the kernel's number of the mount; None if the mountpoint cannot be read.
pub fn raise_mount_limits(mountpoint: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(mountpoint).ok()?;
    let major = rustix::fs::major(stat.st_dev);
    let minor = rustix::fs::minor(stat.st_dev);
    let limits = [("read_ahead_kb", READ_AHEAD_KIB), ("max_ratio", DIRTY_PERCENT)];
    for (name, value) in limits {
        // Only root may. Without it, reading or writing is only slower.
        let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), value.to_string());
    }
    Some(minor)
}

impl ServedFilesystem {
    /// Returns what tells the kernel to drop things from its caches.
    #[must_use]
    pub fn cache_invalidator(&self) -> Arc<CacheInvalidator> {
        self.invalidator.clone()
    }

    /// Waits until the mount has ended. If it cannot be served any more, it is ended.
    pub fn wait_until_unmounted(self) -> Result<()> {
        self.connection.wait_until_unmounted().map_err(MountError::Session)
    }
}

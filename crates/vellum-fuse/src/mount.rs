//! Creating, serving and ending a mount.
//!
//! Invariant: when [`mount_filesystem`] returns, the mount answers requests. Everything is ended by unmounting: whoever does it,
//! [`ServedFilesystem::wait_until_unmounted`] then returns.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_fs::LiveFilesystem;
use vellum_fs::history::frozen::{FrozenChunks, FrozenTree};
use vellum_types::SnapshotId;
use vellum_volume::Volume;

use crate::adapter::removed::RemovedDirNodes;
use crate::adapter::seeking::{KernelChannel, SeekWorker};
use crate::adapter::{FailureObserver, FuseAdapter, MountedState};
use crate::connection::{FuseConnection, FuseDevice, Watchdog, perform_handshake};
use crate::dirs::{DirListings, KernelCachedNodes};
use crate::error::{MountError, Result};
use crate::forget::{CacheInvalidator, KernelKnowledge};
use crate::mounting::{MountParameters, attach_mount, detach_mount};
use crate::orphans::OrphanRemover;
use crate::tally::RequestMetrics;
use crate::tally::access_log::AccessLogPipe;
use crate::virt::{MountFile, VirtualDir};

/// Threads that answer requests from the device. Requests wait for disks and networks, so one would be too few; but the kernel wakes
/// them in turns, and each that slept takes longer to answer. While one program asks, one of them does it alone.
pub const THREADS: usize = 4;

/// How far the kernel reads ahead, KiB: as much as one request carries.
const READ_AHEAD_KIB: u32 = 1024;
/// How much of what may be dirty in all filesystems together may be so in this one, percent: five times what the kernel
/// gives a FUSE filesystem. It is some hundred MiB: what is written here and there again meets in memory, and of a large
/// file the most is on its way before its writer waits.
const DIRTY_PERCENT: u32 = 5;

/// What is mounted.
pub enum MountSource {
    /// A live worktree.
    Live(Arc<LiveFilesystem>),
    /// A snapshot, read-only.
    Snapshot(SnapshotId),
}

/// How it is mounted.
pub struct MountOptions {
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// Requests come through the device, also where the kernel offers rings.
    pub no_rings: bool,
    /// What `/proc/self/mountinfo` and `df` say is mounted.
    pub name: String,
    /// What `.vellum/mount.json` says.
    pub file: MountFile,
    /// Where failures beneath the filesystem are reported.
    pub report: Arc<FailureObserver>,
    /// The pipe to be made, from which lines about requests can be read.
    pub access_log: PathBuf,
    /// What counts its requests.
    pub tally: Arc<RequestMetrics>,
}

/// A mount that is served by threads of this process.
pub struct ServedFilesystem {
    connection: FuseConnection,
    _attached: AttachedMount,
    forgetter: Arc<CacheInvalidator>,
    _watchdog: Option<Watchdog>,
    _access_log: AccessLogPipe,
}

/// A mount on a directory. It is taken out of sight when this is dropped, if it is still there: nobody would answer.
struct AttachedMount {
    mountpoint: PathBuf,
    /// The end that is asked whether it is.
    device: FuseDevice,
}

impl Drop for AttachedMount {
    fn drop(&mut self) {
        if self.device.is_connected() {
            // Who still sees it is told by the kernel that it is dead.
            let _ = detach_mount(&self.mountpoint);
        }
    }
}

/// Mounts on `mountpoint`, which must be an empty directory.
pub fn mount_filesystem(
    source: MountSource,
    volume: &Arc<Volume>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<ServedFilesystem> {
    let device = FuseDevice::open().map_err(MountError::NoDevice)?;
    let attachment = MountParameters {
        name: options.name.clone(),
        read_only: options.read_only || matches!(source, MountSource::Snapshot(_)),
        allow_other: options.allow_other,
    };
    let kernel = KernelChannel::default();
    let adapter = build_adapter(source, volume, &options, kernel.clone())?;
    let known = KernelKnowledge {
        negative_lookups: adapter.negative_lookups.clone(),
        cached_listings: adapter.cached_listings.clone(),
    };
    let access_log = adapter.tally.log.serve_pipe(&options.access_log).map_err(MountError::Session)?;
    let device = attach_mount(device, mountpoint, &attachment)?;
    let end = device.try_clone().map_err(MountError::Session)?;
    let attached = AttachedMount { mountpoint: mountpoint.into(), device: end };
    let rings = perform_handshake(&device, !options.no_rings).map_err(MountError::Session)?;
    // Nobody has told it before: it is new.
    let _ = kernel.set(device.new_notifier().map_err(MountError::Session)?);
    let notifier = device.new_notifier().map_err(MountError::Session)?;
    let connection = FuseConnection::start(device, rings, adapter, THREADS).map_err(MountError::Session)?;
    let number = raise_mount_limits(mountpoint);
    let watch =
        |number| connection.start_watchdog(number, options.report.clone()).map_err(MountError::Session);
    let watchdog = number.map(watch).transpose()?;
    let forgetter = Arc::new(CacheInvalidator::new(notifier, known));
    Ok(ServedFilesystem {
        connection,
        _attached: attached,
        forgetter,
        _watchdog: watchdog,
        _access_log: access_log,
    })
}

fn build_adapter(
    source: MountSource,
    volume: &Arc<Volume>,
    options: &MountOptions,
    kernel: KernelChannel,
) -> Result<FuseAdapter> {
    let tally = options.tally.clone();
    let chunks = Arc::new(FrozenChunks::new(volume.clone()));
    let live = match &source {
        MountSource::Live(fs) => Some(fs.clone()),
        MountSource::Snapshot(_) => None,
    };
    let virt = VirtualDir::new(volume.clone(), chunks.clone(), live, options);
    let main = match source {
        MountSource::Live(fs) => {
            if options.read_only {
                fs.freeze_access_times();
            }
            MountedState::Live(fs)
        }
        MountSource::Snapshot(id) => {
            let record = volume
                .catalog
                .get_record(&id)
                .map_err(|error| MountError::Session(io::Error::other(error)))?;
            MountedState::Frozen(Arc::new(FrozenTree::new(volume.open_tree(record.root), chunks)))
        }
    };
    let orphans = match &main {
        MountedState::Live(fs) => Some(OrphanRemover::start(fs.clone(), options.report.clone())),
        MountedState::Frozen(_) => None,
    };
    let orphans = orphans.transpose().map_err(MountError::Session)?;
    let seek_worker = SeekWorker::start(kernel).map_err(MountError::Session)?;
    Ok(FuseAdapter {
        main,
        virt,
        tally,
        listings: DirListings::default(),
        seek_worker,
        cached_listings: Arc::default(),
        negative_lookups: Arc::default(),
        removed_dirs: RemovedDirNodes::default(),
        cached_files: KernelCachedNodes::default(),
        report: options.report.clone(),
        orphans,
    })
}

/// The kernel limits how far it reads ahead, and how much it keeps to be written, to less than other filesystems get;
/// root may say more. Gives the kernel's number of the mount.
pub fn raise_mount_limits(mountpoint: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(mountpoint).ok()?;
    let major = rustix::fs::major(stat.st_dev);
    let minor = rustix::fs::minor(stat.st_dev);
    let limits = [("read_ahead_kb", READ_AHEAD_KIB), ("max_ratio", DIRTY_PERCENT)];
    for (name, value) in limits {
        // Without it, reading or writing is only slower.
        let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), value.to_string());
    }
    Some(minor)
}

impl ServedFilesystem {
    /// What tells the kernel to forget.
    #[must_use]
    pub fn cache_invalidator(&self) -> Arc<CacheInvalidator> {
        self.forgetter.clone()
    }

    /// Waits until the mount was ended, by whomever.
    pub fn wait_until_unmounted(self) -> Result<()> {
        self.connection.wait_until_unmounted().map_err(MountError::Session)
    }
}

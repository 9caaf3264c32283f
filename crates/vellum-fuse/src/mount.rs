//! Making, serving and ending a mount.
//!
//! Invariant: when [`mount`] returns, the mount answers requests. Everything is ended by unmounting: whoever does it,
//! [`Mounted::wait`] then returns.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use vellum_fs::Fs;
use vellum_fs::frozen::{Chunks, Frozen};
use vellum_types::SnapshotId;
use vellum_volume::Volume;

use crate::adapter::seeking::{Seeking, ToKernel};
use crate::adapter::{Adapter, Main, Report};
use crate::dirs::Dirs;
use crate::error::{MountError, Result};
use crate::forget::Forgetter;
use crate::tally::Tally;
use crate::tally::access_log::Pipe;
use crate::virt::{MountFile, Virtual};

/// How the mounts are called in `/proc/self/mountinfo`: `fuse.vellum`.
pub const SUBTYPE: &str = "vellum";

/// Threads that answer requests. Requests wait for disks and networks, so one would be too few; but the kernel wakes
/// them in turns, and each that slept takes longer to answer: unlinking takes half as long with one as with eight.
const THREADS: usize = 4;

/// How far the kernel reads ahead, KiB: as much as one request carries.
const READ_AHEAD_KIB: u32 = 1024;

/// What is mounted.
pub enum Source {
    /// A live worktree.
    Live(Arc<Fs>),
    /// A snapshot, read-only.
    Snapshot(SnapshotId),
}

/// How it is mounted.
pub struct Options {
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// What `/proc/self/mountinfo` and `df` say is mounted.
    pub name: String,
    /// What `.vellum/mount.json` says.
    pub file: MountFile,
    /// Where failures beneath the filesystem are reported.
    pub report: Arc<Report>,
    /// The pipe to be made, from which lines about requests can be read.
    pub access_log: PathBuf,
}

/// A mount that is served by threads of this process.
pub struct Mounted {
    session: BackgroundSession,
    forgetter: Arc<Forgetter>,
    _access_log: Pipe,
}

/// Mounts on `mountpoint`, which must be an empty directory.
pub fn mount(source: Source, volume: &Arc<Volume>, mountpoint: &Path, options: Options) -> Result<Mounted> {
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        return Err(MountError::NoDevice(error));
    }
    let config = config(&options, matches!(source, Source::Snapshot(_)));
    let kernel = ToKernel::default();
    let adapter = adapter(source, volume, &options, kernel.clone())?;
    let missed = adapter.missed.clone();
    let access_log = adapter.tally.log.serve(&options.access_log).map_err(MountError::Session)?;
    let session = Session::new(adapter, mountpoint, &config).map_err(|error| refused(mountpoint, error))?;
    // Nobody has told it before: it is new.
    let _ = kernel.set(session.notifier());
    let device = session.as_fd().try_clone_to_owned().map_err(MountError::Session)?;
    let session = session.spawn().map_err(MountError::Session)?;
    set_read_ahead(mountpoint);
    let forgetter = Arc::new(Forgetter::new(session.notifier(), missed, device));
    Ok(Mounted { session, forgetter, _access_log: access_log })
}

fn adapter(source: Source, volume: &Arc<Volume>, options: &Options, kernel: ToKernel) -> Result<Adapter> {
    let tally = Arc::new(Tally::default());
    let chunks = Arc::new(Chunks::new(volume.clone()));
    let virt = Virtual::new(volume.clone(), chunks.clone(), tally.clone(), options);
    let main = match source {
        Source::Live(fs) => Main::Live(fs),
        Source::Snapshot(id) => {
            let record =
                volume.catalog.get(&id).map_err(|error| MountError::Session(io::Error::other(error)))?;
            Main::Frozen(Arc::new(Frozen::new(volume.tree(record.root), chunks)))
        }
    };
    let seeking = Seeking::start(kernel).map_err(MountError::Session)?;
    Ok(Adapter {
        main,
        virt,
        tally,
        dirs: Dirs::default(),
        seeking,
        missed: Arc::default(),
        report: options.report.clone(),
    })
}

fn config(options: &Options, snapshot: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.name.clone()),
        // Not `Subtype`: fuser keeps that from the kernel where it mounts by itself.
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
        MountOption::DefaultPermissions,
        if options.read_only || snapshot { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}

fn refused(mountpoint: &Path, source: io::Error) -> MountError {
    // fuser says so when it finds no helper to run.
    if source.kind() == io::ErrorKind::NotFound && !rustix::process::geteuid().is_root() {
        return MountError::NoHelper;
    }
    MountError::Refused { mountpoint: mountpoint.into(), source }
}

/// The kernel limits readahead to its own default when it is asked in FUSE's handshake; root may say more.
fn set_read_ahead(mountpoint: &Path) {
    let Ok(stat) = rustix::fs::stat(mountpoint) else { return };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    // Without it, reading is only slower.
    let _ = std::fs::write(file, READ_AHEAD_KIB.to_string());
}

impl Mounted {
    /// What tells the kernel to forget.
    #[must_use]
    pub fn forgetter(&self) -> Arc<Forgetter> {
        self.forgetter.clone()
    }

    /// Waits until the mount was ended, by whomever.
    pub fn wait(self) -> Result<()> {
        self.session.join().map_err(MountError::Session)
    }
}

/// Ends the mount on `mountpoint`; an error if it is in use.
pub fn unmount(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::empty(), &["-u"])
}

/// Takes the mount on `mountpoint` out of sight; it ends when nobody uses it any more.
pub fn detach(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::DETACH, &["-u", "-z"])
}

fn unmount_with(mountpoint: &Path, flags: UnmountFlags, helper: &[&str]) -> Result<()> {
    let failed = |source| MountError::Unmount { mountpoint: mountpoint.into(), source };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.into())),
        Err(Errno::PERM) => help_unmount(mountpoint, helper),
        Err(error) => Err(failed(error.into())),
    }
}

/// Whoever is not root may unmount what is theirs with the helper's help.
fn help_unmount(mountpoint: &Path, arguments: &[&str]) -> Result<()> {
    let failed = |source| MountError::Unmount { mountpoint: mountpoint.into(), source };
    let mut command = Command::new("fusermount3");
    command.args(arguments).arg("--").arg(mountpoint).stdin(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::NoHelper),
        output => output.map_err(failed)?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else if said.contains("busy") {
        Err(MountError::Busy(mountpoint.into()))
    } else {
        Err(failed(io::Error::other(said.trim().to_owned())))
    }
}

//! A user who stands in a mount: the volume behind it, and the process that serves it.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use vellum_host::ProgressMeter;
use vellum_host::wait::{LongWait, go_on_waiting, sleep_unless_stopped};
use vellum_map::MapRoot;
use vellum_store::StoreAddress;
use vellum_types::{BlobId, ErrorKind, SnapshotId};
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::history::HistoryEntry;
use vellum_volume::{StateDir, Volume};

use super::CommandContext;
use crate::error::{CliError, Result};
use crate::experiment::{TRY_STATE_VARIABLE, TRY_VARIABLE};
use crate::mounting::MountingError;
use crate::mounting::control::{self, ControlReply, ControlRequest, PendingReply};
use crate::mounting::table::{self, MountTableEntry};

/// How long a command that waits for the store pauses before it asks the process of the mount again. The process does not send
/// requests for some seconds after one was not answered.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How soon a request to stop is noticed while the process works.
const STOP_NOTICED: Duration = Duration::from_millis(100);
/// What whoever stops waiting is told.
const KEPT_HERE: &str =
    "nothing is lost: it is kept on this machine, and goes into the store in the background";

/// The process that serves a mounted worktree. Requests to it need no store.
#[derive(Clone)]
pub struct MountProcess {
    /// Where the user finds the worktree: its mountpoint, or that of a part of it that is bound somewhere else.
    pub mountpoint: PathBuf,
    /// The worktree.
    pub worktree: String,
    /// The state directory of the volume.
    state: PathBuf,
    control: PathBuf,
}

/// A mounted worktree, with the volume opened for it.
pub struct MountedWorktree {
    /// The volume.
    pub volume: Volume,
    process: MountProcess,
}

/// What a snapshot of a mounted worktree would record.
pub struct CurrentTree {
    /// Its tree, in the store.
    pub root: MapRoot,
    /// What is left out of it.
    pub exclusions: SnapshotExclusions,
}

impl Deref for MountedWorktree {
    type Target = MountProcess;

    fn deref(&self) -> &MountProcess {
        &self.process
    }
}

impl CommandContext {
    /// The mounted worktree that the user stands in, if it is one.
    pub fn open_mounted_worktree(&self) -> Result<Option<MountedWorktree>> {
        self.find_mount_process()?.map(MountProcess::open_volume).transpose()
    }

    /// The process that serves the mounted worktree that the user stands in, if it is one.
    pub fn find_mount_process(&self) -> Result<Option<MountProcess>> {
        find_mount_above(&self.cwd)?.map(|mount| MountProcess::find_for_mount(&mount)).transpose()
    }
}

/// The mount that a directory lies in, if it is one of ours.
pub fn find_mount_above(cwd: &Path) -> Result<Option<MountTableEntry>> {
    let mounts = table::read_mounts()?;
    let innermost = cwd.ancestors().find_map(|dir| {
        // Mounts are listed in the order in which they were made, and a later one covers an earlier one.
        mounts.iter().rev().find(|mount| mount.mountpoint == dir)
    });
    let Some(innermost) = innermost else { return Ok(None) };
    // The filesystem that the directory is really on: a mount of a directory above may have been made later, and hide
    // what the table names. A mount whose process is gone does not tell.
    let device = table::find_device(cwd).unwrap_or(innermost.device);
    let seen = match innermost.device == device {
        true => Some(innermost),
        false => {
            let shown =
                |mount: &&MountTableEntry| mount.device == device && cwd.starts_with(&mount.mountpoint);
            mounts.iter().filter(shown).max_by_key(|mount| mount.mountpoint.components().count())
        }
    };
    Ok(seen.filter(|mount| table::is_vellum_mount(mount)).cloned())
}

/// Where the mount begins that a directory lies in, if it is one of ours.
pub fn find_mountpoint_above(cwd: &Path) -> Result<Option<PathBuf>> {
    Ok(find_mount_above(cwd)?.map(|mount| mount.mountpoint))
}

impl MountProcess {
    /// The process behind a mount.
    pub fn find_for_mount(mount: &MountTableEntry) -> Result<Self> {
        let failed = || CliError::io_error("ask", mount.mountpoint.display().to_string());
        let file = table::read_file_of_device(mount)?.map_err(failed())?;
        let mountpoint = mount.mountpoint.clone();
        // The processes of mounts that can only be read take no requests.
        let (worktree, control) = match (file.worktree, file.control) {
            (Some(worktree), Some(control)) => (worktree, control),
            (Some(_), None) => return Err(MountingError::OnlyFollowed(mountpoint).into()),
            (None, _) => return Err(MountingError::OnlySnapshot(mountpoint).into()),
        };
        let process = Self { mountpoint, worktree, state: file.state.into(), control: control.into() };
        Ok(process.look_from_try())
    }

    /// In a try, the fork may cover the state directory, which is then shown elsewhere.
    fn look_from_try(self) -> Self {
        let is_here = std::env::var_os(TRY_VARIABLE).is_some_and(|name| name == *self.worktree);
        let view = std::env::var_os(TRY_STATE_VARIABLE).filter(|_| is_here).map(PathBuf::from);
        let Some(view) = view else { return self };
        let control = self.control.strip_prefix(&self.state).map(|within| view.join(within));
        Self { control: control.unwrap_or(self.control), state: view, ..self }
    }

    /// The state directory of the volume.
    pub fn state_dir(&self) -> Result<StateDir> {
        // The state directory is found from the directory that holds it.
        let root = self.state.parent().unwrap_or(Path::new("/"));
        Ok(StateDir::find_enclosing(root)?)
    }

    /// Opens the volume for the worktree.
    pub fn open_volume(self) -> Result<MountedWorktree> {
        let volume = Volume::open(&self.state_dir()?)?.with_worktree(&self.worktree);
        Ok(MountedWorktree { volume, process: self })
    }

    /// The process behind what is mounted on a directory; None: nothing of ours is.
    pub fn find_at(mountpoint: &Path) -> Result<Option<Self>> {
        let mount = table::find_mount_at(mountpoint)?.filter(table::is_vellum_mount);
        mount.map(|mount| Self::find_for_mount(&mount)).transpose()
    }

    /// Asks for word of the end of the mount. From now on it does not end without an answer.
    pub fn await_end(&self) -> Result<PendingReply> {
        let mut question = PendingReply::send_request(&self.control, &ControlRequest::AwaitEnd)?;
        question.poll_reply(None)?;
        Ok(question)
    }

    /// Asks the process.
    pub fn send_request(&self, request: &ControlRequest) -> Result<ControlReply> {
        control::request_reply(&self.control, request)
    }

    /// Asks the process for what is to be in the store when it answers. While a service does not answer, it is asked again:
    /// for the time of --retry-for, or until the user interrupts it. Not if requests are switched off.
    pub fn send_until_stored(
        &self,
        request: &ControlRequest,
        context: &CommandContext,
    ) -> Result<ControlReply> {
        let begun = Instant::now();
        let stopped = || CliError::Stopped { resume: KEPT_HERE.into() };
        loop {
            let failure = match self.send_stoppable_request(request) {
                Ok(None) => return Err(stopped()),
                Ok(Some(answer)) => return Ok(answer),
                Err(failure) => failure,
            };
            let pause = vellum_store::chosen_retry_time()
                .map_or(ASKED_AGAIN, |all| all.saturating_sub(begun.elapsed()).min(ASKED_AGAIN));
            let passes = is_store_failure(&failure) && self.has_store_in_service() && !is_offline(context);
            if pause.is_zero() || !passes {
                return Err(failure);
            }
            let reason = failure.to_string();
            let store = self.worktree.clone();
            let wait = || LongWait::StoreRetry { store: store.clone(), reason: reason.clone(), pause };
            if !sleep_unless_stopped(pause, wait) {
                return Err(stopped());
            }
        }
    }

    /// Whether the store is reached over a network. What is wrong with a directory does not pass by waiting.
    fn has_store_in_service(&self) -> bool {
        let file = self.state_dir().and_then(|state| Ok(state.read_worktree_file()?));
        match file.map(|file| StoreAddress::parse(&file.store)) {
            Ok(Ok(StoreAddress::Service(_) | StoreAddress::Sftp(_))) => true,
            Ok(Ok(StoreAddress::Directory(_) | StoreAddress::Memory(_)) | Err(_)) | Err(_) => false,
        }
    }

    /// Asks the process; none if the user asked to stop before it answered.
    fn send_stoppable_request(&self, request: &ControlRequest) -> Result<Option<ControlReply>> {
        let mut pending = PendingReply::send_request(&self.control, request)?;
        // Before each look: from the first one on, Ctrl-C ends this in order.
        while go_on_waiting(|| LongWait::StoreAnswer) {
            if let Some(answer) = pending.poll_reply(Some(STOP_NOTICED))? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// Asks the process for something that takes time, and shows how far it is.
    pub fn send_long_request(&self, request: &ControlRequest, meter: &ProgressMeter) -> Result<ControlReply> {
        PendingReply::send_request(&self.control, request)?.wait_with_progress(meter)
    }

    /// Lets the kernel hand over what it has not written yet.
    pub fn sync_filesystem(&self) -> Result<()> {
        let failed = || CliError::io_error("write back", self.mountpoint.display().to_string());
        let dir = std::fs::File::open(&self.mountpoint).map_err(failed())?;
        let sync = || retry_on_intr(|| rustix::fs::syncfs(&dir));
        match sync() {
            // Once: somebody wrote to a file that was open when the worktree was restored. They were told, and of the
            // present state nothing is missing.
            Err(Errno::STALE) => sync(),
            done => done,
        }
        .map_err(|error| failed()(error.into()))
    }
}

/// Whether the process of a mount may have failed because the store does not answer.
fn is_store_failure(failure: &CliError) -> bool {
    matches!(failure, CliError::Mounting(MountingError::Daemon { kind: ErrorKind::Io, .. }))
}

/// Whether requests to the store are switched off. A cache that cannot be used says nothing.
fn is_offline(context: &CommandContext) -> bool {
    let cache = context.find_pack_cache().ok().and_then(|(_, cache)| cache);
    cache.is_some_and(|cache| cache.is_offline().unwrap_or(false))
}

impl MountedWorktree {
    /// The last snapshot, in the store. Those that wait are published first.
    pub fn published_head(&self) -> Result<Option<HistoryEntry>> {
        // Only the process of the mount knows of snapshots that are not published, and only what is in the store
        // has a record that can be read here.
        self.send_request(&ControlRequest::Settle)?;
        let Some(id) = self.volume.read_head()? else { return Ok(None) };
        Ok(Some(HistoryEntry { id, record: self.volume.catalog.get_record(&id)? }))
    }

    /// The tree of the worktree as it is now, published, without what the last snapshot left out.
    pub fn publish_current_tree(&self) -> Result<MapRoot> {
        Ok(self.publish_tree_excluding(None)?.root)
    }

    /// The tree that a snapshot would record now, published; without exclusions, what the last snapshot left out is left out.
    pub fn publish_tree_excluding(&self, exclusions: Option<SnapshotExclusions>) -> Result<CurrentTree> {
        self.sync_filesystem()?;
        let answer = self.send_request(&ControlRequest::CurrentTree { exclusions })?;
        // The process of the mount has just written packs that the index of this process does not know yet.
        self.volume.blobs.refresh_index().map_err(vellum_volume::VolumeError::from)?;
        let root: Option<BlobId> = answer.root.and_then(|text| text.parse().ok());
        let root = root.ok_or_else(|| MountingError::NoAnswer(self.control.clone()))?;
        Ok(CurrentTree { root: MapRoot(root), exclusions: answer.exclusions.unwrap_or_default() })
    }

    /// Fails if a snapshot has something in the place of what the last one left out of the worktree, or of these paths.
    pub fn check_restorable(&self, target: SnapshotId, paths: &[Vec<u8>]) -> Result<()> {
        let request = ControlRequest::CheckRestorable { target: target.to_string(), paths: paths.to_vec() };
        self.send_request(&request).map(drop)
    }
}

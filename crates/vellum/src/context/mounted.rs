//! A user who stands in a mount: the volume behind it, and the process that serves it.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use rustix::io::{Errno, retry_on_intr};
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_types::BlobId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::{StateDir, Volume};

use super::CommandContext;
use crate::error::{CliError, Result};
use crate::experiment::{TRY_STATE_VARIABLE, TRY_VARIABLE};
use crate::mounting::MountingError;
use crate::mounting::control::{self, ControlReply, ControlRequest, PendingReply};
use crate::mounting::table::{self, MountTableEntry};

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
        // The mount of a snapshot is read-only: it has no worktree, and its process takes no requests.
        let (Some(worktree), Some(control)) = (file.worktree, file.control) else {
            return Err(MountingError::OnlySnapshot(mount.mountpoint.clone()).into());
        };
        let mountpoint = mount.mountpoint.clone();
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

impl MountedWorktree {
    /// The last snapshot, in the store. Those that wait are published first.
    pub fn published_head(&self) -> Result<Option<HistoryEntry>> {
        // Only the process of the mount knows of snapshots that are not published, and only what is in the store
        // has a record that can be read here.
        self.send_request(&ControlRequest::Settle)?;
        let Some(id) = self.volume.read_head()? else { return Ok(None) };
        Ok(Some(HistoryEntry { id, record: self.volume.catalog.get_record(&id)? }))
    }

    /// The tree of the worktree as it is now, published.
    pub fn publish_current_tree(&self) -> Result<MapRoot> {
        self.sync_filesystem()?;
        let answer = self.send_request(&ControlRequest::Flush)?;
        // The process of the mount has just written packs that the index of this process does not know yet.
        self.volume.blobs.refresh_index().map_err(vellum_volume::VolumeError::from)?;
        let root: Option<BlobId> = answer.root.and_then(|text| text.parse().ok());
        root.map(MapRoot).ok_or_else(|| MountingError::NoAnswer(self.control.clone()).into())
    }
}

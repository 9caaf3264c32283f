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
    for dir in cwd.ancestors() {
        // The innermost mount decides: another filesystem may be mounted below ours.
        if let Some(mount) = table::find_mount_at(dir)? {
            return Ok(table::is_vellum_mount(&mount).then_some(mount));
        }
    }
    Ok(None)
}

/// Where the mount begins that a directory lies in, if it is one of ours.
pub fn find_mountpoint_above(cwd: &Path) -> Result<Option<PathBuf>> {
    Ok(find_mount_above(cwd)?.map(|mount| mount.mountpoint))
}

impl MountProcess {
    fn find_for_mount(mount: &MountTableEntry) -> Result<Self> {
        let failed = || CliError::io_error("ask", mount.mountpoint.display().to_string());
        // The file that describes the process is at the root, which a bind mount of a directory does not show.
        let whole = if mount.is_whole_filesystem() { None } else { table::find_whole_mount(mount.device)? };
        let file = table::read_mount_file(whole.as_ref().unwrap_or(mount)).map_err(failed())?;
        // The mount of a snapshot is read-only: it has no worktree, and its process takes no requests.
        let (Some(worktree), Some(control)) = (file.worktree, file.control) else {
            return Err(MountingError::OnlySnapshot(mount.mountpoint.clone()).into());
        };
        let mountpoint = mount.mountpoint.clone();
        let state = file.state.into();
        Ok(Self { mountpoint, worktree, state, control: control.into() })
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

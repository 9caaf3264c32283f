//! Snapshots that a mount makes by itself, at an interval.
//!
//! Invariants: none is made of what the last snapshot holds already, nor while a merge waits for the user; none begins
//! after the mount has begun to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::FsError;
use vellum_fs::history::exclusions::ExclusionChoice;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_host::error_chain::format_error_chain;
use vellum_store::RequestPurpose;
use vellum_types::SnapshotId;
use vellum_volume::SnapshotOrigin;
use vellum_volume::merge::check_no_merge_in;

use super::control::ControlService;
use super::table::{self, FilesystemDevice};
use crate::error::Result;

/// The note of such a snapshot.
const NOTE: &str = "automatic";

/// Makes snapshots of a mounted worktree.
pub struct AutomaticSnapshots {
    /// What serves the worktree.
    pub service: Arc<ControlService>,
    /// The mount whose kernel keeps written pages; None if none does.
    pub mount: Option<CachingMount>,
    /// Between two of them.
    pub interval: Duration,
}

/// A mount whose kernel keeps what programs wrote for some time.
pub struct CachingMount {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The mount.
    pub device: FilesystemDevice,
}

impl CachingMount {
    /// The mount at a place; None: there is none any more.
    pub fn find_at(mountpoint: &Path) -> Result<Option<Self>> {
        let found = table::find_mount_at(mountpoint)?;
        Ok(found.map(|mount| Self { mountpoint: mountpoint.into(), device: mount.device }))
    }
}

impl AutomaticSnapshots {
    /// Starts the thread. It ends with the mount.
    pub fn start_thread(self) -> std::io::Result<()> {
        let make = move || {
            RequestPurpose::Upkeep.set_for_thread();
            let mut problem = None;
            while !self.service.end.wait_until_ending(self.interval) {
                let failure = match self.create_snapshot_if_changed() {
                    Ok(Some(id)) => {
                        self.service.log.write_line(&format!("automatic snapshot {id}"));
                        None
                    }
                    Ok(None) => None,
                    Err(error) => Some(format_error_chain(&error)),
                };
                // One that fails each time is told once.
                if let Some(failure) = failure.as_ref().filter(|failure| problem.as_ref() != Some(*failure)) {
                    self.service.log.write_warning(&format!("no automatic snapshot: {failure}"));
                }
                problem = failure;
            }
        };
        std::thread::Builder::new().name("vellum-snapshots".into()).spawn(make).map(drop)
    }

    fn create_snapshot_if_changed(&self) -> Result<Option<SnapshotId>, FsError> {
        let fs = &self.service.fs;
        // It would take open conflicts for finished work.
        if check_no_merge_in(&fs.volume().state, fs.worktree_name()).is_err() {
            return Ok(None);
        }
        // With the write-back cache, the kernel may hold pages that programs wrote long ago: they belong into the
        // snapshot.
        self.sync_filesystem();
        // Asked after the kernel has handed its pages over, which are changes, too.
        if !fs.is_changed()? {
            return Ok(None);
        }
        let request =
            LiveSnapshotRequest { note: NOTE.into(), tags: Vec::new(), origin: SnapshotOrigin::User };
        // Nobody says anew what is left out.
        let made = fs.create_snapshot_excluding(&request, &[], ExclusionChoice::Kept)?;
        self.service.publisher.request_publish();
        Ok(Some(made))
    }

    /// Pages that the kernel has not handed over yet belong into the snapshot. If that fails, the next one has them.
    fn sync_filesystem(&self) {
        let Some(CachingMount { mountpoint, device }) = &self.mount else { return };
        // A mount that is out of sight has no path any more: the snapshot is made of what has arrived.
        let Ok(dir) = std::fs::File::open(mountpoint) else { return };
        // Something else may be mounted over it.
        if table::find_device(mountpoint) != Some(*device) {
            return;
        }
        // It is stale once for somebody who wrote to a file that was open at a restore: they were told.
        if rustix::fs::syncfs(&dir) == Err(Errno::STALE) {
            let _ = rustix::fs::syncfs(&dir);
        }
    }
}

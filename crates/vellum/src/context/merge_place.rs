//! Where a merge takes place: a checked-out directory or a mount, with the few operations that it needs of either.

use std::io::Read;
use std::path::Path;

use vellum_checkout::{CheckoutProblem, CheckoutWorktree, RestoreReport, RestoreRequest};
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::history::HistoryEntry;
use vellum_volume::state::WorktreeLock;

use super::CommandContext;
use super::mounted::MountedWorktree;
use super::paths::UserPaths;
use crate::error::Result;
use crate::mounting::MountingError;
use crate::mounting::control::{ControlReply, ControlRequest};
use crate::ui::progress::ProgressTask;

/// A worktree in which something is merged.
pub enum MergePlace {
    /// Plain files.
    Directory(Box<CheckoutWorktree>),
    /// A mount.
    Mount(Box<MountedWorktree>),
}

/// What a change of the worktree's files did.
#[derive(Debug, Default)]
pub struct PlaceReport {
    /// The snapshot of what no other held.
    pub safety: Option<SnapshotId>,
    /// Files written; unknown in a mount, where none is.
    pub written: u64,
    /// Entries removed.
    pub deleted: u64,
    /// Entries that could not be given to their owner or group.
    pub owners_not_set: u64,
    /// What could not be done.
    pub problems: Vec<CheckoutProblem>,
}

impl From<RestoreReport> for PlaceReport {
    fn from(report: RestoreReport) -> Self {
        let RestoreReport { safety, written, deleted, owners_not_set, problems, .. } = report;
        Self { safety, written, deleted, owners_not_set, problems }
    }
}

const SCANNING: ProgressTask = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };
const RECORDING: ProgressTask = ProgressTask { first: "Scanning", verb: "Recording", item: "file" };
const MERGING: ProgressTask = ProgressTask { first: "Preparing", verb: "Merging", item: "file" };

impl MergePlace {
    /// The worktree that the user stands in.
    pub fn open(context: &CommandContext) -> Result<Self> {
        Ok(match context.open_mounted_worktree()? {
            Some(mounted) => Self::Mount(Box::new(mounted)),
            None => Self::Directory(Box::new(context.open_worktree()?)),
        })
    }

    /// Its volume.
    pub fn volume(&self) -> &Volume {
        match self {
            Self::Directory(worktree) => &worktree.volume,
            Self::Mount(mounted) => &mounted.volume,
        }
    }

    /// The directory that shows it.
    pub fn root(&self) -> &Path {
        match self {
            Self::Directory(worktree) => worktree.root_path(),
            Self::Mount(mounted) => &mounted.mountpoint,
        }
    }

    /// How typed paths relate to it.
    pub fn paths(&self, context: &CommandContext) -> UserPaths {
        context.paths_at_root(self.root())
    }

    /// Waits until no other command changes it. In a mount, until no other command merges: the process of the mount keeps
    /// the order of all else, and a merge consists of several requests to it.
    pub fn lock(&self, context: &CommandContext) -> Result<WorktreeLock> {
        match self {
            Self::Directory(worktree) => Ok(worktree.lock_worktree(context.lock_wait_notice())?),
            Self::Mount(mounted) => Ok(mounted.volume.lock_merge(context.lock_wait_notice())?),
        }
    }

    /// The snapshot that it stands on, in the store.
    pub fn head(&self) -> Result<Option<HistoryEntry>> {
        Ok(match self {
            Self::Directory(worktree) => worktree.head_snapshot()?,
            Self::Mount(mounted) => mounted.published_head()?,
        })
    }

    /// A snapshot by its id.
    pub fn entry(&self, id: SnapshotId) -> Result<HistoryEntry> {
        Ok(HistoryEntry { id, record: self.volume().catalog.get_record(&id)? })
    }

    /// Whether it holds something else than its last snapshot.
    pub fn has_unsaved_changes(&self, context: &CommandContext) -> Result<bool> {
        Ok(match self {
            Self::Directory(worktree) => {
                context.run_with_progress(SCANNING, |meter| worktree.has_unsaved_changes(meter))?
            }
            Self::Mount(mounted) => {
                // Pages that the kernel has not handed over are changes, too.
                mounted.sync_filesystem()?;
                mounted.send_request(&ControlRequest::Status)?.changed
            }
        })
    }

    /// Takes a snapshot of what no snapshot holds.
    pub fn save_changes(&self, context: &CommandContext, note: String) -> Result<HistoryEntry> {
        let id = match self {
            Self::Directory(worktree) => {
                context.run_with_progress(RECORDING, |meter| worktree.save_before_merge(note, meter))?.id
            }
            Self::Mount(mounted) => take_mount_snapshot(mounted, note, &[])?,
        };
        self.entry(id)
    }

    /// Records what it holds as a snapshot that descends from others than the last one.
    pub fn record_merge(
        &self,
        context: &CommandContext,
        parents: &[SnapshotId],
        note: String,
    ) -> Result<HistoryEntry> {
        let id = match self {
            Self::Directory(worktree) => {
                context.run_with_progress(RECORDING, |meter| worktree.record_merge(parents, note, meter))?.id
            }
            Self::Mount(mounted) => take_mount_snapshot(mounted, note, parents)?,
        };
        self.entry(id)
    }

    /// Fails if it cannot be brought to a snapshot.
    pub fn check_reachable(&self, context: &CommandContext, target: &HistoryEntry) -> Result<()> {
        match self {
            Self::Directory(worktree) => {
                Ok(context.run_with_progress(SCANNING, |meter| worktree.check_reachable(target, meter))?)
            }
            // What the last snapshot left out can be in the way, and nothing else.
            Self::Mount(mounted) => mounted.check_restorable(target.id, &[]),
        }
    }

    /// An error if a path that somebody has to look at is absent.
    pub fn check_present<'p>(&self, paths: impl Iterator<Item = &'p [u8]>) -> Result<()> {
        match self {
            // A mount shows every path, and fetches content when it is read, so that nothing can be absent there.
            Self::Directory(worktree) => Ok(worktree.check_present(paths)?),
            Self::Mount(_) => Ok(()),
        }
    }

    /// Brings it to a snapshot, on which it stands then.
    pub fn stand_on(&self, context: &CommandContext, target: &HistoryEntry) -> Result<PlaceReport> {
        match self {
            Self::Directory(worktree) => {
                bring_to_snapshot(worktree, context, &RestoreRequest::for_all(target))
            }
            Self::Mount(mounted) => {
                // Pages that the kernel still holds belong to the state before the restore. Handed over after it,
                // they would be refused with ESTALE.
                mounted.sync_filesystem()?;
                // What no snapshot holds is saved by the process before it restores.
                let request =
                    ControlRequest::Restore { target: target.id.to_string(), discard: false, expected: None };
                let safety = mounted.send_request(&request)?.snapshot.and_then(|id| id.parse().ok());
                Ok(PlaceReport { safety, ..PlaceReport::default() })
            }
        }
    }

    /// Brings paths to what a snapshot has, whatever they hold.
    pub fn restore_paths(
        &self,
        context: &CommandContext,
        target: &HistoryEntry,
        paths: Vec<Vec<u8>>,
    ) -> Result<PlaceReport> {
        match self {
            Self::Directory(worktree) => {
                // 'vellum resolve' with a side replaces whatever was edited in these paths: the user asked for it.
                let request = RestoreRequest { paths, discard: true, ..RestoreRequest::for_all(target) };
                bring_to_snapshot(worktree, context, &request)
            }
            Self::Mount(mounted) => {
                // As above: what the kernel holds back must not arrive after the files were replaced.
                mounted.sync_filesystem()?;
                let target = target.id.to_string();
                let request = ControlRequest::RestorePaths { target, paths, discard: true, expected: None };
                mounted.send_request(&request)?;
                Ok(PlaceReport::default())
            }
        }
    }

    /// Lets it stand on a snapshot, and leaves its files alone: what they hold is a change since then. A mount stands on
    /// what its files are.
    pub fn set_head(&self, id: SnapshotId) -> Result<()> {
        match self {
            Self::Directory(worktree) => Ok(worktree.volume.set_head(id)?),
            Self::Mount(_) => Ok(()),
        }
    }

    /// Whether something is at a path.
    pub fn has_path(&self, path: &[u8]) -> bool {
        // The symlink itself is asked about: one whose target does not exist is an entry like any other.
        self.local_path(path).symlink_metadata().is_ok()
    }

    /// The beginning of a file; None if there is no file.
    pub fn read_file(&self, path: &[u8], max: u64) -> Option<Vec<u8>> {
        let place = self.local_path(path);
        // A symlink could lead out of the worktree, and opening a FIFO would wait until somebody writes to it.
        if !place.symlink_metadata().is_ok_and(|found| found.is_file()) {
            return None;
        }
        let mut content = Vec::new();
        std::fs::File::open(place).ok()?.take(max).read_to_end(&mut content).ok()?;
        Some(content)
    }

    fn local_path(&self, path: &[u8]) -> std::path::PathBuf {
        self.root().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path))
    }
}

fn bring_to_snapshot(
    worktree: &CheckoutWorktree,
    context: &CommandContext,
    request: &RestoreRequest,
) -> Result<PlaceReport> {
    Ok(context.run_with_progress(MERGING, |meter| worktree.bring_to_snapshot(request, meter))?.into())
}

fn take_mount_snapshot(
    mounted: &MountedWorktree,
    note: String,
    parents: &[SnapshotId],
) -> Result<SnapshotId> {
    // Pages that programs have written, and the kernel has not handed over yet, belong into this snapshot.
    mounted.sync_filesystem()?;
    let parents = parents.iter().map(ToString::to_string).collect();
    let answer: ControlReply = mounted.send_request(&ControlRequest::MergeSnapshot { note, parents })?;
    // A merge reads the tree from the store.
    mounted.send_request(&ControlRequest::Settle)?;
    // The process of the mount has written packs that the index of this process does not know yet.
    mounted.volume.blobs.refresh_index().map_err(vellum_volume::VolumeError::from)?;
    let made = answer.snapshot.and_then(|id| id.parse().ok());
    made.ok_or_else(|| MountingError::NoAnswer(mounted.mountpoint.clone()).into())
}

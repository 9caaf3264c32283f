//! Checked-out worktrees: plain files in a directory of this machine, and the snapshots of a volume.
//!
//! Invariant: each operation that changes the worktree holds its lock, as the command line does, so that programs and
//! commands can use it at the same time.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vellum_checkout::{
    CheckoutError, CheckoutSnapshotRequest, CheckoutWorktree, ForkRequest, RestoreRequest,
};
use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::history::AncestorWalk;
use vellum_volume::state::WorktreeLock;
use vellum_volume::{SnapshotOrigin, VolumeError};

pub use vellum_checkout::CheckoutProblem;
pub use vellum_volume::diff::{ChangeAspects, ChangeKind, ChangeSide, FileChange};

use crate::error::Result;
use crate::snapshot::{Snapshot, SnapshotInfo};

/// A directory whose files belong to a worktree.
///
/// ```
/// use vellum_library::{Checkout, Tree, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temp = tempfile::tempdir()?;
/// # let dir = temp.path().join("data");
/// Volume::create(&dir)?;
/// std::fs::write(dir.join("model.bin"), "weights")?;
///
/// let data = Checkout::open(&dir)?;
/// let first = data.create_snapshot("before training")?;
/// std::fs::write(dir.join("model.bin"), "other weights")?;
/// assert_eq!(data.list_changes()?.changes.len(), 1);
///
/// let restored = data.restore_snapshot(&first.id.to_string())?;
/// assert_eq!(std::fs::read(dir.join("model.bin"))?, b"weights");
/// // What no snapshot had is in one now.
/// let safety = data.open_snapshot(&restored.safety.unwrap().to_string())?;
/// assert_eq!(safety.read("model.bin")?, b"other weights");
/// # Ok(())
/// # }
/// ```
pub struct Checkout {
    worktree: CheckoutWorktree,
}

/// A snapshot of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Whether it holds the same as the one before it.
    pub is_unchanged: bool,
    /// Paths that could not be recorded as they are; all else was.
    pub problems: Vec<CheckoutProblem>,
}

/// How a directory differs from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutChanges {
    /// The differences, by path.
    pub changes: Vec<FileChange>,
    /// Paths that could not be read.
    pub problems: Vec<CheckoutProblem>,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutRestore {
    /// The snapshot of what no other one held, which was made before; restoring it undoes the restore.
    pub safety: Option<SnapshotId>,
    /// Files written.
    pub written: u64,
    /// Entries removed.
    pub deleted: u64,
    /// Paths that could not be restored; all else was.
    pub problems: Vec<CheckoutProblem>,
}

impl Checkout {
    /// Opens the worktree of a directory, or of one of its parents.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        // Made absolute once: the program may change its working directory while this is open.
        let dir = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        Ok(Self { worktree: CheckoutWorktree::open(&dir)? })
    }

    pub(crate) fn worktree(&self) -> &CheckoutWorktree {
        &self.worktree
    }

    /// Its directory.
    #[must_use]
    pub fn root_path(&self) -> &Path {
        self.worktree.root_path()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.worktree.volume.worktree.worktree
    }

    /// Records the directory as it is now. Fails if a restore or a merge is unfinished: the directory is a mixture then.
    pub fn create_snapshot(&self, note: &str) -> Result<CheckoutSnapshot> {
        // With the lock before anything is looked at: a restore by another process may begin in between.
        let _lock = self.lock_worktree()?;
        self.worktree.volume.check_no_merge()?;
        if let Some(interrupted) = self.worktree.find_interrupted_restore()? {
            return Err(CheckoutError::Interrupted(interrupted.target.to_string()).into());
        }
        let request = CheckoutSnapshotRequest {
            note: note.to_owned(),
            paths: Vec::new(),
            origin: SnapshotOrigin::User,
            only_if_changed: false,
        };
        let made = self.worktree.create_snapshot(&request, &ProgressMeter::default())?;
        Ok(CheckoutSnapshot { id: made.id, is_unchanged: made.unchanged, problems: made.problems })
    }

    /// How the directory differs from the snapshot that it stands on; from an empty one if there is none.
    pub fn list_changes(&self) -> Result<CheckoutChanges> {
        let compared = self.worktree.compare_with_snapshot(None, &[], &ProgressMeter::default())?;
        Ok(CheckoutChanges { changes: compared.changes, problems: compared.problems })
    }

    /// Makes the directory what a snapshot holds. What no snapshot has of what is there is recorded before. A restore that
    /// is interrupted is finished by the next one of the same snapshot.
    pub fn restore_snapshot(&self, text: &str) -> Result<CheckoutRestore> {
        self.restore_request(text, |request| request)
    }

    /// The same for these paths alone, relative to the root; what a snapshot does not have there is removed.
    pub fn restore_paths<P: AsRef<Path>>(&self, text: &str, paths: &[P]) -> Result<CheckoutRestore> {
        let paths: Vec<_> = paths.iter().map(|path| path.as_ref().as_os_str().as_bytes().to_vec()).collect();
        if paths.is_empty() {
            // No paths mean all of them below, which is the opposite of what an empty list asks for.
            return Ok(CheckoutRestore { safety: None, written: 0, deleted: 0, problems: Vec::new() });
        }
        self.restore_request(text, |request| RestoreRequest { paths, ..request })
    }

    /// The same as [`Self::restore_snapshot`]; what no snapshot has is lost.
    pub fn restore_discarding_changes(&self, text: &str) -> Result<CheckoutRestore> {
        self.restore_request(text, |request| RestoreRequest { discard: true, ..request })
    }

    fn restore_request(
        &self,
        text: &str,
        adapt: impl FnOnce(RestoreRequest) -> RestoreRequest,
    ) -> Result<CheckoutRestore> {
        let target = self.worktree.volume.resolve_snapshot(text)?;
        let request = adapt(RestoreRequest::for_all(&target));
        // Locked before the plan is made: a plan is right only for the files that it was made for.
        let _lock = self.lock_worktree()?;
        // A merge is about the whole directory. Single paths may be restored in it, as a way to resolve a conflict.
        if request.paths.is_empty() {
            self.worktree.volume.check_no_merge()?;
        }
        let meter = ProgressMeter::default();
        let plan = self.worktree.plan_restore(&request, &meter)?;
        let done = self.worktree.execute_restore(plan, &meter)?;
        Ok(CheckoutRestore {
            safety: done.safety,
            written: done.written,
            deleted: done.deleted,
            problems: done.problems,
        })
    }

    /// The snapshots that it descends from, newest first.
    pub fn list_history(&self) -> Result<Vec<SnapshotInfo>> {
        let volume = &self.worktree.volume;
        let tags = volume.list_tags()?;
        AncestorWalk::from_heads(&volume.catalog, volume.read_head()?)?
            .map(|entry| {
                let entry = entry?;
                Ok(SnapshotInfo::from_published(entry.id, &entry.record, &tags))
            })
            .collect()
    }

    /// Opens a snapshot of the volume: by its id, leading digits of it, a tag, or `HEAD`, on which the worktree stands;
    /// each can be followed by `~N`.
    pub fn open_snapshot(&self, text: &str) -> Result<Snapshot> {
        Snapshot::open_published(&self.worktree.volume, text)
    }

    /// Creates another worktree of the volume in a directory that is empty or not there, with the files of a snapshot.
    /// Where the filesystem can, its files share their blocks with those of this one.
    pub fn fork_worktree(&self, name: &str, dir: impl AsRef<Path>, from: &str) -> Result<Self> {
        let from = self.worktree.volume.resolve_snapshot(from)?;
        let to = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        let request = ForkRequest { name: name.to_owned(), to: to.clone(), from, engine: None };
        let done = self.worktree.fork_worktree(&request, &ProgressMeter::default())?;
        match done.problems.first() {
            None => Self::open(&to),
            // An error of this library has room for one path. The first problem stands for all.
            Some(problem) => {
                let path = format_path(&problem.path);
                let source = std::io::Error::other(problem.message.clone());
                Err(CheckoutError::Path { action: "fork", path, source }.into())
            }
        }
    }

    /// Fails if the directory is a copy of the worktree's.
    pub(crate) fn lock_worktree(&self) -> Result<WorktreeLock> {
        Ok(self.worktree.lock_worktree(|| ())?)
    }
}

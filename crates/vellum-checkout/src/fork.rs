//! Forks: new checked-out worktrees of the same volume, made from the files of this one if they are unchanged.

mod undo;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, stat_file};
use vellum_host::clone::{CopyStrategy, clone_or_copy_content};
use vellum_types::Ino;
use vellum_volume::StateDir;
use vellum_volume::history::HistoryEntry;
use vellum_volume::state::STATE_DIR;

use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::materialize::{CloneSource, ForkEngine, MaterializeRequest};
use crate::plan::{CurrentDir, PlanInput, WantedPart};
use crate::restore::RestoreRequest;
use crate::scan::OpenTreeDirs;
use crate::worktree::CheckoutWorktree;

/// What to fork.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// Name of the new worktree.
    pub name: String,
    /// Where its files go: a directory that is empty or not there.
    pub to: PathBuf,
    /// The snapshot that it begins with.
    pub from: HistoryEntry,
    /// How its files are made; None: as well as can be.
    pub engine: Option<ForkEngine>,
}

/// What a fork did.
#[derive(Debug)]
pub struct ForkReport {
    /// Files that share blocks with this worktree's.
    pub reflinked: u64,
    /// Files copied from this worktree.
    pub copied: u64,
    /// Files made from chunks.
    pub from_chunks: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What could not be done.
    pub problems: Vec<CheckoutProblem>,
}

impl CheckoutWorktree {
    /// Makes a new worktree. What fails leaves nothing; killed, the same fork run again finishes.
    pub fn fork_worktree(&self, request: &ForkRequest, meter: &ProgressMeter) -> Result<ForkReport> {
        if let Some(fork) = self.find_interrupted_fork(request)? {
            return finish_fork(&fork, request, meter);
        }
        let was_there = HeldDir::open_root(&request.to).is_ok();
        // If filling fails, the worktree is removed from the store first, so that nobody lists a fork without
        // files, then its files, and the state directory last.
        let fork = self.begin_fork(request).inspect_err(|_| remove_created_dir(&request.to, was_there))?;
        self.fill_fork(&fork, request, meter).inspect_err(|_| {
            // Nobody stands on it yet; if it stays, it is listed.
            let _ = self.volume.remove_worktree(&request.name);
            undo::remove_fork_entries(&fork.root, &self.volume.open_tree(request.from.record.root));
            let _ = fork.volume.state.clone().remove_dir();
            remove_created_dir(&request.to, was_there);
        })
    }

    fn fill_fork(&self, fork: &Self, request: &ForkRequest, meter: &ProgressMeter) -> Result<ForkReport> {
        let looked = self.capture_unstored(&[], meter)?;
        let target = self.volume.open_tree(request.from.record.root);
        let steps = PlanInput {
            target: &target,
            now: Some(CurrentDir { tree: &looked.tree, captured: &looked.captured, state: &looked.state }),
            paths: &[],
            base: Ino::ROOT,
            elsewhere: true,
            part: WantedPart::Everything,
        }
        .build_plan()?;
        let clones = CloneSource { tree: &looked.tree, dirs: OpenTreeDirs::new(&looked.tree, &self.root) };
        let done = MaterializeRequest {
            volume: &self.volume,
            target: &target,
            root: &fork.root,
            base: Ino::ROOT,
            now: None,
            clones: Some(clones),
            engine: request.engine,
            meter,
        }
        .execute_steps(&steps)?;
        // The head is set after all files are there, and the journal is removed last. A fork that is killed
        // before has a journal and is completed by the next run; one that is killed in between is completed
        // without work.
        fork.volume.set_head(request.from.id)?;
        fork.write_restored_stat_cache(&request.from, &target, &done.problems);
        fork.end_restore()?;
        Ok(ForkReport {
            reflinked: done.reflinked,
            copied: done.copied,
            from_chunks: done.from_chunks,
            bytes: done.bytes,
            problems: done.problems,
        })
    }

    /// A fork of this name and place that was killed before it ended.
    fn find_interrupted_fork(&self, request: &ForkRequest) -> Result<Option<Self>> {
        let Ok(to) = std::path::absolute(&request.to) else { return Ok(None) };
        let Ok(state) = StateDir::find_enclosing(&to) else { return Ok(None) };
        // A directory inside of some other worktree finds that one's state.
        if state.root() != to {
            return Ok(None);
        }
        let file = state.read_worktree_file()?;
        if file.volume != self.volume.worktree.volume || file.worktree != request.name {
            return Ok(None);
        }
        let fork = Self::open(&to)?;
        let begun = fork.find_interrupted_restore()?.is_some()
            // Killed before it could say what it was about to do.
            || fork.head_snapshot()?.is_none() && contains_only_state(&fork.root)?;
        Ok(begun.then_some(fork))
    }

    fn begin_fork(&self, request: &ForkRequest) -> Result<Self> {
        let to = create_dir_for_fork(&request.to)?;
        let state = StateDir::create(&to)?;
        let begin = || -> Result<Self> {
            if request.engine == Some(ForkEngine::Reflink) {
                // The probe comes before the worktree is registered in the store: a request that this
                // filesystem cannot fulfil leaves nothing there.
                self.probe_reflink(&to)?;
            }
            let fork = Self::from_volume(self.volume.fork_into(&state, &request.name)?)?;
            let restore = RestoreRequest::for_all(&request.from);
            // The journal is written before the first file. From here on a killed fork is recognised by it
            // and completed as a restore.
            fork.begin_restore(&restore, None)?;
            Ok(fork)
        };
        begin().inspect_err(|_| {
            // Nothing is in it but the state made a moment ago; if it stays, it is in nobody's way but a retry's.
            let _ = state.remove_dir();
        })
    }

    /// Tries to share a block between the two worktrees before anything depends on it.
    fn probe_reflink(&self, to: &Path) -> Result<()> {
        let state = |root: &HeldDir| root.open_dir(STATE_DIR.as_bytes()).and_then(|dir| dir.stage_file());
        // A state directory that lies elsewhere may be on another filesystem than the files.
        let from = match self.volume.state.is_elsewhere() {
            true => self.root.stage_file()?,
            false => state(&self.root)?,
        };
        let into = state(&HeldDir::open_root(to)?)?;
        let failed = |error| CheckoutError::path_error("probe", STATE_DIR.as_bytes())(error);
        // A block is written first: for an empty file the kernel returns success without asking the
        // filesystem to share anything.
        from.file()?.write_all_at(&[0; 4096], 0).map_err(failed)?;
        let stat = stat_file(from.file()?)?;
        match clone_or_copy_content(from.file()?, into.file()?, &stat) {
            Ok(copied) if copied.strategy == CopyStrategy::Reflink => Ok(()),
            Ok(_) | Err(_) => {
                let reason = "the two directories do not lie on one filesystem that can share blocks".into();
                Err(CheckoutError::Engine { engine: ForkEngine::Reflink.display_name(), reason })
            }
        }
    }
}

/// Removes the directory of a fork that failed, if it was not there before and is empty.
#[expect(
    clippy::disallowed_methods,
    reason = "the user names this directory: it may be reached through symlinks"
)]
fn remove_created_dir(dir: &Path, was_there: bool) {
    if !was_there {
        // Whatever somebody else put there stays.
        let _ = std::fs::remove_dir(dir);
    }
}

/// Whether nothing is in a directory but the state of its worktree, or what leads to that.
pub(crate) fn contains_only_state(dir: &HeldDir) -> Result<bool> {
    Ok(dir.read_names()?.iter().all(|listed| listed.name == STATE_DIR.as_bytes()))
}

/// As [`create_empty_dir`], but what a fork leaves that is killed in its first moments is in nobody's way.
fn create_dir_for_fork(to: &Path) -> Result<PathBuf> {
    match create_empty_dir(to) {
        Err(CheckoutError::NotEmpty(_))
            if contains_only_state(&HeldDir::open_root(to)?)? && StateDir::find_enclosing(to).is_err() =>
        {
            create_fork_dir(to)
        }
        made => made,
    }
}

/// Makes the directory if it is not there, and refuses one that holds something.
pub(crate) fn create_empty_dir(to: &Path) -> Result<PathBuf> {
    let to = create_fork_dir(to)?;
    if HeldDir::open_root(&to)?.read_names()?.is_empty() {
        Ok(to)
    } else {
        Err(CheckoutError::NotEmpty(vellum_host::escape::format_path(to.as_os_str().as_encoded_bytes())))
    }
}

/// Makes the directory if it is not there; gives its absolute path.
#[expect(
    clippy::disallowed_methods,
    reason = "the user names this directory: it may be reached through symlinks"
)]
fn create_fork_dir(to: &Path) -> Result<PathBuf> {
    let failed =
        |error| CheckoutError::path_error("make the directory", to.as_os_str().as_encoded_bytes())(error);
    std::fs::create_dir_all(to).map_err(failed)?;
    // The path is recorded in the state directory and in the volume, so it must not depend on the working
    // directory or on symlinks.
    to.canonicalize().map_err(failed)
}

fn finish_fork(fork: &CheckoutWorktree, request: &ForkRequest, meter: &ProgressMeter) -> Result<ForkReport> {
    let restore = RestoreRequest::for_all(&request.from);
    // The journal of the fork makes this a restore that was interrupted: what is already there and equal is
    // kept.
    let plan = fork.plan_restore(&restore, meter)?;
    let done = fork.execute_restore(plan, meter)?;
    // A restore makes all files from chunks.
    let reflinked = 0;
    let copied = 0;
    Ok(ForkReport {
        reflinked,
        copied,
        from_chunks: done.written,
        bytes: done.bytes,
        problems: done.problems,
    })
}

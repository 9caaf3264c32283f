//! New directories that are filled before they get their names, which makes small files a quarter cheaper.
//!
//! Invariant: whether or not its files fail, a directory gets its name once the last of them is done or given up; a
//! killed run leaves at most one temporary directory for each thread. Deliberately absent: directories in which others
//! are created, which must have their names before; large files, which are written after the directory has its name, so
//! that their partial files are found again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vellum_host::beneath::HiddenDir;

use super::carrier::TransferContext;
use crate::local::receive::{SMALL, SyncJob};
use crate::model::listing::{EntryFlags, ListingEntryId};
use crate::plan::{StepAction, StepPhase, SyncStep, WriteMethod};

/// Fewest files: the cost of a temporary name and a rename is that of a few files.
const FILES: usize = 4;
/// Most bytes, which a killed run has to write again.
const BYTES: u64 = 256 << 20;

/// The new directories of a plan that are filled while hidden.
#[derive(Default)]
pub(super) struct HiddenDirectories(HashMap<ListingEntryId, HiddenDirectory>);

/// One hidden directory.
struct HiddenDirectory {
    /// The step that creates it.
    step: SyncStep,
    hidden: Mutex<HiddenDirectoryState>,
    /// The number of steps in it that are not done yet.
    left: AtomicUsize,
    bytes: u64,
}

/// Its state.
#[derive(Default)]
enum HiddenDirectoryState {
    #[default]
    Unmade,
    Made(Arc<HiddenDir>),
    /// It could not be created, or has its name already.
    Gone,
}

impl HiddenDirectories {
    /// Selects the directories for which it pays.
    pub fn for_job(job: &SyncJob<'_>) -> Self {
        // Files that arrive slowly should be visible early, and stay if the run is killed.
        let writing = &job.options.writing;
        if writing.temp_dir.is_some()
            || writing.delays_names
            || job.source.needs_old_version()
            || job.source.has_request_per_file()
            || job.options.effort.bandwidth.is_some()
        {
            return Self::default();
        }
        let parent =
            |step: &SyncStep| step.source.and_then(|id| job.from.entry(id).parent()).map(|dir| dir.id());
        let made = job.plan.phase_steps(StepPhase::Dirs);
        let hidden_dir = |step: &SyncStep| {
            let hidden = Mutex::default();
            let left = AtomicUsize::new(0);
            Some((step.source?, HiddenDirectory { step: *step, hidden, left, bytes: 0 }))
        };
        // A hidden directory is created with private permissions; one of which only the name is copied would
        // keep them.
        let is_bare = |step: &&SyncStep| {
            step.source.is_some_and(|dir| job.from.entry(dir).flags().contains(EntryFlags::IMPLIED))
        };
        let dressed = made.iter().filter(|step| !is_bare(step));
        let mut hidden_dirs: HashMap<ListingEntryId, HiddenDirectory> =
            dressed.filter_map(hidden_dir).collect();
        // Directories in which others are created, or into which something is renamed, must have their names
        // before the files are written.
        for dir in made.iter().chain(job.plan.phase_steps(StepPhase::Rename)).filter_map(parent) {
            hidden_dirs.remove(&dir);
        }
        for step in job.plan.phase_steps(StepPhase::Files).iter().filter(|step| is_small_creation(step, job))
        {
            if let Some(hidden_dir) = parent(step).and_then(|dir| hidden_dirs.get_mut(&dir)) {
                *hidden_dir.left.get_mut() += 1;
                hidden_dir.bytes += step.source.map_or(0, |id| job.from.entry(id).size());
            }
        }
        // A large directory would stay hidden for minutes, and a run that is killed would lose all of it.
        hidden_dirs.retain(|_, hidden_dir| *hidden_dir.left.get_mut() >= FILES && hidden_dir.bytes <= BYTES);
        Self(hidden_dirs)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a step creates one of them.
    pub fn is_created_by(&self, step: &SyncStep) -> bool {
        step.source.is_some_and(|dir| self.0.contains_key(&dir))
    }

    /// Whether a step writes into one of them before it has its name.
    pub fn is_filled_by(&self, step: &SyncStep, job: &SyncJob<'_>) -> bool {
        !self.is_empty() && is_small_creation(step, job) && self.find_containing(step, job).is_some()
    }

    fn find_containing(&self, step: &SyncStep, job: &SyncJob<'_>) -> Option<&HiddenDirectory> {
        self.0.get(&job.from.entry(step.source?).parent()?.id())
    }

    /// Carries out steps that write into them.
    pub fn fill_dirs(&self, carrier: &TransferContext<'_>, steps: &[SyncStep]) {
        let job = carrier.job();
        for steps in steps.chunk_by(|one, other| carrier.has_same_parent(one, other)) {
            let Some(hidden_dir) = steps.first().and_then(|step| self.find_containing(step, job)) else {
                continue;
            };
            hidden_dir.fill_dir(carrier, steps.iter().filter(|step| is_small_creation(step, job)));
        }
    }
}

impl HiddenDirectory {
    fn fill_dir<'s>(&self, carrier: &TransferContext<'_>, steps: impl Iterator<Item = &'s SyncStep> + Clone) {
        let count = steps.clone().count();
        let hidden = self.ensure_created(carrier);
        carrier.execute_steps_in(steps, hidden.as_deref());
        drop(hidden);
        // Exactly one worker sees the count reach zero, after all others have finished their files. `AcqRel`
        // makes their writes to the shared state visible to it.
        if self.left.fetch_sub(count, Ordering::AcqRel) == count
            && let HiddenDirectoryState::Made(hidden) =
                std::mem::replace(&mut *self.hidden.lock(), HiddenDirectoryState::Gone)
        {
            carrier.publish_hidden_dir(&self.step, &hidden);
        }
    }

    /// The directory, created by the first thread; if that fails, its entries fail because it is missing.
    fn ensure_created(&self, carrier: &TransferContext<'_>) -> Option<Arc<HiddenDir>> {
        // Held while the directory is created, so that two workers do not create two.
        let mut hidden = self.hidden.lock();
        if matches!(*hidden, HiddenDirectoryState::Unmade) {
            *hidden = carrier
                .create_hidden_dir(&self.step)
                .map_or(HiddenDirectoryState::Gone, |made| HiddenDirectoryState::Made(Arc::new(made)));
        }
        match &*hidden {
            HiddenDirectoryState::Made(made) => Some(Arc::clone(made)),
            HiddenDirectoryState::Unmade | HiddenDirectoryState::Gone => None,
        }
    }
}

/// Whether a step creates a small new entry that is written at once.
fn is_small_creation(step: &SyncStep, job: &SyncJob<'_>) -> bool {
    step.old.is_none()
        && match step.action {
            StepAction::Write(WriteMethod::Whole) => {
                step.source.is_some_and(|id| job.from.entry(id).size() <= SMALL)
            }
            StepAction::Symlink | StepAction::Special => true,
            _ => false,
        }
}

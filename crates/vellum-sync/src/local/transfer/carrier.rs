//! Carrying out single steps, on any thread.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, HiddenDir};

use crate::ends::SourceEnd;
use crate::ends::local::OpenListingDirs;
use crate::error::{Result, SyncError};
use crate::local::receive::{
    DelayedNames, EntryDestination, EntryWriter, IdleWorkers, SyncJob, SyncProblem, SyncReport,
    map_name_conflict,
};
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId};
use crate::model::options::RETRIES;
use crate::model::path::join_path;
use crate::plan::{StepAction, StepPhase, SyncStep, WriteMethod, compare_attributes, compare_content};

/// Mode of directories until they get their own, so that other users cannot read them before.
const PRIVATE: u32 = 0o700;

/// The state that all threads of a run share.
pub(super) struct TransferContext<'a> {
    receiver: EntryWriter<'a>,
    meter: &'a ProgressMeter,
    /// Directories by entries of the source.
    dirs: OpenListingDirs,
    /// Directories by entries of the destination.
    old_dirs: OpenListingDirs,
    /// Basis directories, with their directories by entries of the source; None for one that does not exist.
    basis: Vec<Option<OpenListingDirs>>,
    steps: AtomicU64,
    /// Names that could not be linked, and are separate files.
    unlinked: AtomicU64,
    /// Those of them that already had the right content.
    unchanged: AtomicU64,
    /// An entry was not written.
    pub failed: AtomicBool,
    /// All further steps would fail as well.
    over: AtomicBool,
    /// The connection is lost.
    pub cut: AtomicBool,
    problems: Mutex<Vec<SyncProblem>>,
}

impl<'a> TransferContext<'a> {
    pub fn new(root: &HeldDir, receiver: EntryWriter<'a>, meter: &'a ProgressMeter) -> Self {
        let basis = receiver.job.options.basis.iter().flat_map(|basis| &basis.dirs);
        // A basis directory that does not exist takes nothing from the run: its entries come from the source.
        let opened = |path: &Vec<u8>| HeldDir::open_trusted_root(Path::new(OsStr::from_bytes(path))).ok();
        let dir_links = Arc::new(receiver.job.options.preserve.dir_links.iter().cloned().collect());
        Self {
            basis: basis.map(|path| opened(path).map(OpenListingDirs::new)).collect(),
            receiver,
            meter,
            dirs: OpenListingDirs::new_with_dir_links(root.clone(), &dir_links),
            old_dirs: OpenListingDirs::new_with_dir_links(root.clone(), &dir_links),
            steps: AtomicU64::new(0),
            unlinked: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            problems: Mutex::default(),
        }
    }

    /// Makes the report.
    pub fn into_report(self) -> SyncReport {
        let mut problems = self.problems.into_inner();
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        SyncReport {
            steps: self.steps.into_inner(),
            unlinked: self.unlinked.into_inner(),
            unchanged: self.unchanged.into_inner(),
            written: self.receiver.flow.written.into_inner(),
            spared: self.receiver.flow.spared.into_inner(),
            problems,
            stopped: self.meter.is_stopped(),
            ..SyncReport::default()
        }
    }

    /// The writer of entries.
    pub fn receiver(&self) -> &EntryWriter<'a> {
        &self.receiver
    }

    /// The delayed files.
    pub fn delayed(&self) -> Option<&DelayedNames> {
        self.receiver.delayed.as_ref()
    }

    /// Corrects the number of steps: a counted step was not carried out after all.
    pub fn uncount(&self) {
        self.steps.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a stop is requested.
    pub fn is_stopped(&self) -> bool {
        self.meter.is_stopped()
    }

    /// The job.
    pub fn job(&self) -> &'a SyncJob<'a> {
        self.receiver.job
    }

    /// The idle threads.
    pub fn idle_workers(&self) -> &IdleWorkers {
        &self.receiver.flow.idle_workers
    }

    /// The size of a source file.
    pub fn source_size(&self, id: ListingEntryId) -> u64 {
        self.receiver.job.from.entry(id).size()
    }

    /// The source.
    pub fn source(&self) -> &dyn SourceEnd {
        self.receiver.job.source
    }

    /// Whether the source entries of two steps are in the same directory.
    pub fn has_same_parent(&self, one: &SyncStep, other: &SyncStep) -> bool {
        let parent = |id| self.receiver.job.from.entry(id).parent().map(|parent| parent.id());
        one.source.zip(other.source).is_some_and(|(one, other)| parent(one) == parent(other))
    }

    /// Carries out steps; checks for a stop before each.
    pub fn execute_steps<'s>(&self, steps: impl IntoIterator<Item = &'s SyncStep>) {
        self.execute_steps_in(steps.into_iter(), None);
    }

    /// The same; entries of `hidden` are written into that directory before it has its name.
    pub fn execute_steps_in<'s>(
        &self,
        steps: impl Iterator<Item = &'s SyncStep>,
        hidden: Option<&HiddenDir>,
    ) {
        for step in steps {
            if self.should_stop() {
                return;
            }
            match self.execute_with_retries(step, hidden) {
                Err(SyncError::Stopped) => return,
                outcome => self.record_outcome(step, outcome),
            }
        }
    }

    /// Whether no further step may begin.
    pub fn should_stop(&self) -> bool {
        self.meter.is_stopped() || self.over.load(Ordering::Relaxed)
    }

    /// Records the result of a step.
    fn record_outcome(&self, step: &SyncStep, outcome: Result<Vec<String>>) {
        match outcome {
            Ok(failed) => {
                self.steps.fetch_add(1, Ordering::Relaxed);
                let path = if failed.is_empty() { Vec::new() } else { self.step_path(step) };
                for message in failed {
                    self.report_problem(SyncProblem { path: path.clone(), message, vanished: false });
                }
            }
            Err(error) => self.report_failure(&self.step_path(step), &error),
        }
        self.meter.add_progress(1, 0);
    }

    /// Creates the hidden directory of a step; None after a failure, which is reported.
    pub fn create_hidden_dir(&self, step: &SyncStep) -> Option<HiddenDir> {
        let entry = step.source.map(|id| self.job().from.entry(id)).filter(|_| !self.should_stop())?;
        let made = self.open_parent(&entry).and_then(|parent| Ok(parent.create_hidden_dir()?));
        made.map_err(|error| self.record_outcome(step, Err(error))).ok()
    }

    /// Renames a hidden directory to its final name. If that exists by now, the entries are moved into the existing
    /// directory.
    pub fn publish_hidden_dir(&self, step: &SyncStep, hidden: &HiddenDir) {
        let Some(entry) = step.source.map(|id| self.job().from.entry(id)) else { return };
        let named = hidden.commit(entry.name());
        if named.as_ref().is_err_and(|error| error.errno() == Some(Errno::EXIST)) {
            match self.dirs.open_dir(&entry).and_then(|dir| Ok(hidden.move_entries_into(&dir)?)) {
                Ok(stayed) => stayed.into_iter().for_each(|(name, error)| {
                    self.report_failure(&join_path(&entry.path(), &name), &map_name_conflict(error));
                }),
                Err(error) => self.report_failure(&entry.path(), &error),
            }
        }
        self.record_outcome(step, named.map(|()| Vec::new()).map_err(map_name_conflict));
    }

    /// Records a failure.
    pub fn report_failure(&self, path: &[u8], error: &SyncError) {
        let vanished = matches!(error, SyncError::Vanished);
        self.failed.fetch_or(!vanished, Ordering::Relaxed);
        self.over.fetch_or(error.is_final(), Ordering::Relaxed);
        let is_cut = matches!(error, SyncError::Lost | SyncError::LostTo { .. });
        self.cut.fetch_or(is_cut, Ordering::Relaxed);
        self.report_problem(SyncProblem { path: path.to_vec(), message: error.format_chain(), vanished });
    }

    /// Whether a problem of this path is reported.
    pub fn has_problem_at(&self, path: &[u8]) -> bool {
        self.problems.lock().iter().any(|problem| problem.path == path)
    }

    pub fn report_problem(&self, problem: SyncProblem) {
        self.problems.lock().push(problem);
    }

    fn step_path(&self, step: &SyncStep) -> Vec<u8> {
        let job = self.receiver.job;
        match (step.source, step.old) {
            (Some(source), _) => job.from.entry(source).path(),
            (None, Some(old)) => job.to.entry(old).path(),
            (None, None) => Vec::new(),
        }
    }

    fn execute_with_retries(&self, step: &SyncStep, hidden: Option<&HiddenDir>) -> Result<Vec<String>> {
        let mut left = self.receiver.job.options.effort.retries.unwrap_or(RETRIES);
        loop {
            match self.execute_step(step, hidden) {
                // Only changes of the source during the transfer, and content that arrived wrong, are tried
                // again. Other failures would be repeated.
                Err(error) if left > 0 && should_retry(&error) => left -= 1,
                other => return other,
            }
        }
    }

    fn execute_step(&self, step: &SyncStep, hidden: Option<&HiddenDir>) -> Result<Vec<String>> {
        let job = self.receiver.job;
        if step.action == StepAction::Delete {
            return self.delete_entry(step).map(|()| Vec::new());
        }
        let Some(entry) = step.source.map(|id| job.from.entry(id)) else { return Ok(Vec::new()) };
        if step.action == StepAction::Attributes {
            return self.apply_attributes(step, &entry);
        }
        // The directory of the step is reached by the path of the source's entry, through directories that
        // this run created or found, never through a symlink.
        let dir = hidden.map_or_else(|| self.open_parent(&entry), |hidden| Ok(hidden.dir().clone()))?;
        match step.action {
            StepAction::MakeDir => dir
                .create_dir(entry.name(), choose_dir_mode(&entry))
                .map(|()| Vec::new())
                .map_err(map_name_conflict),
            StepAction::Write(how) => {
                self.receiver.write_file(EntryDestination { dir: &dir, hidden }, step, how, &entry)
            }
            StepAction::Symlink | StepAction::Special => self.receiver.create_node(&dir, step, &entry),
            StepAction::Link => self.link_entry(&dir, step, &entry),
            StepAction::Rename => self.rename_entry(&dir, step, &entry),
            StepAction::LinkBasis(number) | StepAction::CopyBasis(number) => {
                self.transfer_from_basis(number, &dir, step, &entry)
            }
            StepAction::Attributes | StepAction::Delete => Ok(Vec::new()),
        }
    }

    fn transfer_from_basis(
        &self,
        number: u8,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let home = EntryDestination { dir, hidden: None };
        let basis = self.basis.get(usize::from(number)).and_then(Option::as_ref);
        let parent = entry.parent().unwrap_or(*entry);
        match (basis.and_then(|dirs| dirs.open_dir(&parent).ok()), step.action) {
            (Some(from), StepAction::LinkBasis(_)) => self.receiver.link_from_basis(&from, home, step, entry),
            (Some(from), _) => self.receiver.copy_from_basis(&from, home, step, entry),
            // The basis directory no longer has the entry, so it is taken from the source.
            (None, _) if entry.is_file() => self.receiver.write_file(home, step, WriteMethod::Whole, entry),
            (None, _) => self.receiver.create_node(dir, step, entry),
        }
    }

    pub fn open_parent(&self, entry: &ListingEntry<'_>) -> Result<HeldDir> {
        entry.parent().map_or_else(|| self.dirs.open_dir(entry), |parent| self.dirs.open_dir(&parent))
    }

    /// Opens the destination's directory at the path of a directory of the source.
    pub fn open_dir(&self, dir: &ListingEntry<'_>) -> Result<HeldDir> {
        self.dirs.open_dir(dir)
    }

    fn apply_attributes(&self, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        if entry.is_dir() {
            let dir = self.dirs.open_dir(entry)?;
            return self.receiver.apply_attributes(&dir.hold_self(), step, entry);
        }
        let dir = self.open_parent(entry)?;
        self.receiver.check_old_unchanged(&dir, step)?;
        let node = dir.hold_node(entry.name())?;
        self.receiver.apply_attributes(&node, step, entry)
    }

    fn link_entry(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        let Some(leader) = step.other.map(|id| self.receiver.job.from.entry(id)) else {
            return Ok(Vec::new());
        };
        let from = self.open_parent(&leader)?;
        if self.receiver.link_file((&from, leader.name()), dir, step, entry)?.is_some() {
            return Ok(Vec::new());
        }
        let failed = self.copy_instead_of_linking(dir, step, entry)?;
        self.unlinked.fetch_add(1, Ordering::Relaxed);
        Ok(failed)
    }

    /// Creates a separate file where the filesystem cannot link.
    fn copy_instead_of_linking(
        &self,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let job = self.receiver.job;
        // An earlier run has copied the file: it has no other names, and its content and attributes are
        // right.
        let is_copied = |old: &ListingEntry<'_>| {
            old.kind() == entry.kind()
                && !old.flags().contains(EntryFlags::LINKED)
                && compare_content(entry, old, job.options).is_empty()
        };
        // On a filesystem without hard links, each run would find the names unlinked and copy the files
        // again.
        if let Some(old) = step.old.map(|old| job.to.entry(old)).filter(is_copied) {
            if !compare_attributes(entry, &old, job.options).is_empty() {
                return self.apply_attributes(step, entry);
            }
            self.receiver.check_old_unchanged(dir, step)?;
            self.unchanged.fetch_add(1, Ordering::Relaxed);
            self.uncount();
            return Ok(Vec::new());
        }
        match entry.is_file() {
            true => self.receiver.write_file(
                EntryDestination { dir, hidden: None },
                step,
                WriteMethod::Whole,
                entry,
            ),
            false => self.receiver.create_node(dir, step, entry),
        }
    }

    fn rename_entry(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        let Some(old) = step.old.map(|id| self.receiver.job.to.entry(id)) else { return Ok(Vec::new()) };
        let from = self.open_old_parent(&old)?;
        self.receiver.check_old_unchanged(&from, step)?;
        // The destination had nothing under the new name when it was listed. Something that appeared since
        // then is not replaced.
        from.rename_no_replace(old.name(), dir, entry.name())?;
        let node = dir.hold_node(entry.name())?;
        self.receiver.apply_attributes(&node, step, entry)
    }

    /// Opens the directory at the path of an entry of the destination's listing.
    pub fn open_old_dir(&self, dir: &ListingEntry<'_>) -> Result<HeldDir> {
        self.old_dirs.open_dir(dir)
    }

    fn open_old_parent(&self, old: &ListingEntry<'_>) -> Result<HeldDir> {
        old.parent().map_or_else(|| self.old_dirs.open_dir(old), |parent| self.old_dirs.open_dir(&parent))
    }

    fn delete_entry(&self, step: &SyncStep) -> Result<()> {
        let Some(old) = step.old.map(|id| self.receiver.job.to.entry(id)) else { return Ok(()) };
        let dir = self.open_old_parent(&old)?;
        self.receiver.check_old_unchanged(&dir, step)?;
        let done = self.receiver.delete_entry(&dir, &old);
        // Directories are kept open by the entry of the listing. A new directory of the same path would be
        // taken for the old one.
        if step.phase == StepPhase::Clear && old.is_dir() {
            // Another directory may get its place.
            self.old_dirs.clear_cache();
        }
        done
    }
}

/// The mode with which a directory is created. If only its name is copied, the umask determines the mode, which stays.
fn choose_dir_mode(dir: &ListingEntry<'_>) -> u32 {
    if dir.flags().contains(EntryFlags::IMPLIED) { 0o777 } else { PRIVATE }
}

/// Whether another try may succeed.
fn should_retry(error: &SyncError) -> bool {
    match error {
        SyncError::PartlyWritten(error) => should_retry(error),
        error => matches!(error, SyncError::Changed | SyncError::Unequal),
    }
}

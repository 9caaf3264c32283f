//! One step after the other, on any thread.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use vellum_checkout::beneath::{HeldDir, HiddenDir};
use vellum_volume::ProgressMeter;

use crate::error::{Result, SyncError};
use crate::listing::{EntryFlags, ListingEntry, ListingEntryId};
use crate::local::OpenListingDirs;
use crate::options::RETRIES;
use crate::path::join;
use crate::plan::{StepAction, StepPhase, SyncStep, WriteMethod};
use crate::receive::{
    DelayedNames, EntryDestination, EntryWriter, IdleWorkers, SyncJob, SyncProblem, SyncReport, taken,
};

/// Mode of directories until they have their own: nobody else reads what may be secret.
const PRIVATE: u32 = 0o700;

/// What all threads of a run share.
pub(super) struct TransferContext<'a> {
    receiver: EntryWriter<'a>,
    meter: &'a ProgressMeter,
    /// Directories by entries of the source.
    dirs: OpenListingDirs,
    /// Directories by entries of the destination.
    old_dirs: OpenListingDirs,
    /// Basis directories, and the directories in them by entries of the source; None for one that is not there.
    basis: Vec<Option<OpenListingDirs>>,
    steps: AtomicU64,
    /// Something was not written.
    pub failed: AtomicBool,
    /// All else would fail as well.
    over: AtomicBool,
    /// The other side is gone.
    pub cut: AtomicBool,
    problems: Mutex<Vec<SyncProblem>>,
}

impl<'a> TransferContext<'a> {
    pub fn new(root: &HeldDir, receiver: EntryWriter<'a>, meter: &'a ProgressMeter) -> Self {
        let basis = receiver.job.options.basis.iter().flat_map(|basis| &basis.dirs);
        let opened = |path: &Vec<u8>| HeldDir::open_root(Path::new(OsStr::from_bytes(path))).ok();
        Self {
            basis: basis.map(|path| opened(path).map(OpenListingDirs::new)).collect(),
            receiver,
            meter,
            dirs: OpenListingDirs::new(root.clone()),
            old_dirs: OpenListingDirs::new(root.clone()),
            steps: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            problems: Mutex::default(),
        }
    }

    /// What became of it.
    pub fn report(self) -> SyncReport {
        let mut problems = self.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        SyncReport {
            steps: self.steps.into_inner(),
            written: self.receiver.flow.written.into_inner(),
            spared: self.receiver.flow.spared.into_inner(),
            problems,
            stopped: self.meter.stopped(),
            ..SyncReport::default()
        }
    }

    /// What writes entries.
    pub fn receiver(&self) -> &EntryWriter<'a> {
        &self.receiver
    }

    /// The files that wait for their names.
    pub fn delayed(&self) -> Option<&DelayedNames> {
        self.receiver.delayed.as_ref()
    }

    /// A step that was counted was not carried out after all.
    pub fn uncount(&self) {
        self.steps.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.meter.stopped()
    }

    /// What is carried out.
    pub fn job(&self) -> &'a SyncJob<'a> {
        self.receiver.job
    }

    /// Who of all threads has nothing to do.
    pub fn hands(&self) -> &IdleWorkers {
        &self.receiver.flow.hands
    }

    /// Bytes of a file of the source.
    pub fn size(&self, id: ListingEntryId) -> u64 {
        self.receiver.job.from.entry(id).size()
    }

    /// Whether content is there as soon as it is asked for.
    pub fn is_near(&self) -> bool {
        !self.receiver.job.source.looks_at_old()
    }

    /// Whether two steps concern entries of the source in one directory.
    pub fn are_beside(&self, one: &SyncStep, other: &SyncStep) -> bool {
        let parent = |id| self.receiver.job.from.entry(id).parent().map(|parent| parent.id());
        one.source.zip(other.source).is_some_and(|(one, other)| parent(one) == parent(other))
    }

    /// Carries out steps; stops between two when it is asked to.
    pub fn one_by_one<'s>(&self, steps: impl IntoIterator<Item = &'s SyncStep>) {
        self.one_by_one_in(steps.into_iter(), None);
    }

    /// The same with what is written into a directory that nobody sees yet.
    pub fn one_by_one_in<'s>(&self, steps: impl Iterator<Item = &'s SyncStep>, hidden: Option<&HiddenDir>) {
        for step in steps {
            if self.is_over() {
                return;
            }
            match self.with_retries(step, hidden) {
                Err(SyncError::Stopped) => return,
                outcome => self.note(step, outcome),
            }
        }
    }

    /// Whether nothing more is begun.
    pub fn is_over(&self) -> bool {
        self.meter.stopped() || self.over.load(Ordering::Relaxed)
    }

    /// Notes what became of a step.
    fn note(&self, step: &SyncStep, outcome: Result<Vec<String>>) {
        match outcome {
            Ok(failed) => {
                self.steps.fetch_add(1, Ordering::Relaxed);
                let path = if failed.is_empty() { Vec::new() } else { self.path(step) };
                for message in failed {
                    self.tell_problem(SyncProblem { path: path.clone(), message, vanished: false });
                }
            }
            Err(error) => self.tell(&self.path(step), &error),
        }
        self.meter.add(1, 0);
    }

    /// Makes the directory of a step so that nobody sees it; None, and told, if that fails.
    pub fn hide(&self, step: &SyncStep) -> Option<HiddenDir> {
        let entry = step.source.map(|id| self.job().from.entry(id)).filter(|_| !self.is_over())?;
        let made = self.parent(&entry).and_then(|parent| Ok(parent.hidden_dir()?));
        made.map_err(|error| self.note(step, Err(error))).ok()
    }

    /// Gives a directory that nobody saw its name. If that was taken meanwhile, what is in it goes where it leads.
    pub fn name(&self, step: &SyncStep, hidden: &HiddenDir) {
        let Some(entry) = step.source.map(|id| self.job().from.entry(id)) else { return };
        let named = hidden.commit(entry.name());
        if named.as_ref().is_err_and(|error| error.errno() == Some(Errno::EXIST)) {
            match self.dirs.get(&entry).and_then(|dir| Ok(hidden.pour(&dir)?)) {
                Ok(stayed) => stayed.into_iter().for_each(|(name, error)| {
                    self.tell(&join(&entry.path(), &name), &taken(error));
                }),
                Err(error) => self.tell(&entry.path(), &error),
            }
        }
        self.note(step, named.map(|()| Vec::new()).map_err(taken));
    }

    /// Notes a failure.
    pub fn tell(&self, path: &[u8], error: &SyncError) {
        let vanished = matches!(error, SyncError::Vanished);
        self.failed.fetch_or(!vanished, Ordering::Relaxed);
        self.over.fetch_or(error.is_final(), Ordering::Relaxed);
        let is_cut = matches!(error, SyncError::Lost | SyncError::LostTo { .. });
        self.cut.fetch_or(is_cut, Ordering::Relaxed);
        self.tell_problem(SyncProblem { path: path.to_vec(), message: error.chain(), vanished });
    }

    pub fn tell_problem(&self, problem: SyncProblem) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }

    fn path(&self, step: &SyncStep) -> Vec<u8> {
        let job = self.receiver.job;
        match (step.source, step.old) {
            (Some(source), _) => job.from.entry(source).path(),
            (None, Some(old)) => job.to.entry(old).path(),
            (None, None) => Vec::new(),
        }
    }

    fn with_retries(&self, step: &SyncStep, hidden: Option<&HiddenDir>) -> Result<Vec<String>> {
        let mut left = self.receiver.job.options.effort.retries.unwrap_or(RETRIES);
        loop {
            match self.step(step, hidden) {
                Err(error) if left > 0 && is_worth_another_try(&error) => left -= 1,
                other => return other,
            }
        }
    }

    fn step(&self, step: &SyncStep, hidden: Option<&HiddenDir>) -> Result<Vec<String>> {
        let job = self.receiver.job;
        if step.action == StepAction::Delete {
            return self.delete(step).map(|()| Vec::new());
        }
        let Some(entry) = step.source.map(|id| job.from.entry(id)) else { return Ok(Vec::new()) };
        if step.action == StepAction::Attributes {
            return self.attributes(step, &entry);
        }
        let dir = hidden.map_or_else(|| self.parent(&entry), |hidden| Ok(hidden.dir().clone()))?;
        match step.action {
            StepAction::MakeDir => {
                dir.make_dir(entry.name(), mode_of_new(&entry)).map(|()| Vec::new()).map_err(taken)
            }
            StepAction::Write(how) => {
                self.receiver.write(EntryDestination { dir: &dir, hidden }, step, how, &entry)
            }
            StepAction::Symlink | StepAction::Special => self.receiver.make(&dir, step, &entry),
            StepAction::Link => self.link(&dir, step, &entry),
            StepAction::Rename => self.rename(&dir, step, &entry),
            StepAction::LinkBasis(number) | StepAction::CopyBasis(number) => {
                self.take_from_basis(number, &dir, step, &entry)
            }
            StepAction::Attributes | StepAction::Delete => Ok(Vec::new()),
        }
    }

    fn take_from_basis(
        &self,
        number: u8,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let home = EntryDestination { dir, hidden: None };
        let basis = self.basis.get(usize::from(number)).and_then(Option::as_ref);
        let parent = entry.parent().unwrap_or(*entry);
        match (basis.and_then(|dirs| dirs.get(&parent).ok()), step.action) {
            (Some(from), StepAction::LinkBasis(_)) => self.receiver.link_from(&from, home, step, entry),
            (Some(from), _) => self.receiver.copy_from(&from, home, step, entry),
            // What was there when it was listed comes from the source.
            (None, _) if entry.is_file() => self.receiver.write(home, step, WriteMethod::Whole, entry),
            (None, _) => self.receiver.make(dir, step, entry),
        }
    }

    pub fn parent(&self, entry: &ListingEntry<'_>) -> Result<HeldDir> {
        entry.parent().map_or_else(|| self.dirs.get(entry), |parent| self.dirs.get(&parent))
    }

    fn attributes(&self, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        if entry.is_dir() {
            let dir = self.dirs.get(entry)?;
            return self.receiver.attributes(&dir.self_node(), step, entry);
        }
        let dir = self.parent(entry)?;
        self.receiver.still(&dir, step)?;
        let node = dir.node(entry.name())?;
        self.receiver.attributes(&node, step, entry)
    }

    fn link(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        let Some(leader) = step.other.map(|id| self.receiver.job.from.entry(id)) else {
            return Ok(Vec::new());
        };
        let from = self.parent(&leader)?;
        match self.receiver.link((&from, leader.name()), dir, step, entry)? {
            Some(()) => Ok(Vec::new()),
            None if entry.is_file() => {
                self.receiver.write(EntryDestination { dir, hidden: None }, step, WriteMethod::Whole, entry)
            }
            None => self.receiver.make(dir, step, entry),
        }
    }

    fn rename(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        let Some(old) = step.old.map(|id| self.receiver.job.to.entry(id)) else { return Ok(Vec::new()) };
        let from = self.old_parent(&old)?;
        self.receiver.still(&from, step)?;
        from.rename_no_replace(old.name(), dir, entry.name())?;
        let node = dir.node(entry.name())?;
        self.receiver.attributes(&node, step, entry)
    }

    fn old_parent(&self, old: &ListingEntry<'_>) -> Result<HeldDir> {
        old.parent().map_or_else(|| self.old_dirs.get(old), |parent| self.old_dirs.get(&parent))
    }

    fn delete(&self, step: &SyncStep) -> Result<()> {
        let Some(old) = step.old.map(|id| self.receiver.job.to.entry(id)) else { return Ok(()) };
        let dir = self.old_parent(&old)?;
        self.receiver.still(&dir, step)?;
        let done = self.receiver.delete(&dir, &old);
        if step.phase == StepPhase::Clear && old.is_dir() {
            // Another directory may get its place.
            self.old_dirs.forget();
        }
        done
    }
}

/// The mode with which a directory is made. One of which nothing but its name is copied keeps it: the umask's affair.
fn mode_of_new(dir: &ListingEntry<'_>) -> u32 {
    if dir.flags().has(EntryFlags::IMPLIED) { 0o777 } else { PRIVATE }
}

/// Whether the same may go well when it is tried again.
fn is_worth_another_try(error: &SyncError) -> bool {
    match error {
        SyncError::PartlyWritten(error) => is_worth_another_try(error),
        error => matches!(error, SyncError::Changed | SyncError::Unequal),
    }
}

//! From a scanned directory to changes of the map: the heart of `snapshot`, `status` and `diff`.
//!
//! Three steps: assign an inode number to every entry (`number`), list the inodes that may differ from the base
//! (`jobs`), and read, split and encode these in parallel (`inode`), so that their changes come out in the order of
//! the map's keys.
//!
//! Invariant: the changes, applied to the base, are the directory as it was read. What could not be read stays as it
//! is in the base, or is omitted if the base does not have it; both are reported.

mod content;
mod inode;
mod jobs;
mod number;
mod sink;
mod stream;
mod unseen;

use std::collections::{BTreeSet, HashMap, HashSet};

use rayon::prelude::*;
use vellum_chunker::Chunker;
use vellum_host::ProgressMeter;
use vellum_host::parallel::run_parallel;
use vellum_types::{Ino, MapKey};
use vellum_volume::{FsTree, SnapshotStatistics};

use crate::absent::{AbsentNames, AbsentPaths, ShadowedDirs};
use crate::error::{CheckoutProblem, Result};
use crate::scan::{OpenTreeDirs, ScanDir, ScanEntryId, ScanEntryRef, ScanTree};
use crate::statcache::RecordedEntry;

pub use content::{ChunkSink, RecordedContent};
pub(crate) use number::InodeNumbers;
pub use sink::{ChangeSink, LayerSink, TreeSink};
pub use stream::StreamedContent;

pub(crate) use content::ContentReader;
use inode::{InodeOutcome, InodeReader, UnreadablePolicy};
use jobs::CaptureJob;
use unseen::{DirEntryName, UnexaminedEntries, UnscannedLinkNames};
use vellum_host::beneath::HeldDir;
use vellum_host::metadata::FileStat;

/// Jobs that are worked on together, at most: enough to keep all threads busy.
const BATCH_JOBS: usize = 512;

/// Bytes of content that are worked on together, about; bounds memory. A larger file is a batch of its own.
const BATCH_BYTES: u64 = 8 << 20;

/// What an inode costs beside its content, in bytes of content: opening and closing a file.
const JOB_COST: u64 = 8 << 10;

/// A scan, and what it is compared with.
pub struct CaptureRequest<'a> {
    /// The directory that was scanned.
    pub root: &'a HeldDir,
    /// What was found in it.
    pub tree: &'a ScanTree,
    /// The state that changes are relative to; None before the first snapshot. The scan's cache, if it has one,
    /// describes this state.
    pub base: Option<&'a FsTree>,
    /// The first inode number that is given out if there is no base.
    pub first_number: Ino,
    /// What is absent of the base on purpose: it stays as the base has it.
    pub(crate) absent: &'a AbsentNames,
    /// Files that are read though they did not change.
    pub forced: ForcedReads<'a>,
    /// The base's statistics.
    pub statistics: SnapshotStatistics,
    /// Whether only some paths were scanned.
    pub partial: bool,
    /// Finds chunk boundaries.
    pub chunker: &'a Chunker,
    /// Counts, and knows when to stop.
    pub meter: &'a ProgressMeter,
}

/// Which files are read even if their attributes say that they did not change.
#[derive(Debug, Clone, Copy)]
pub enum ForcedReads<'a> {
    /// These inodes of the base: the store has lost their content.
    Listed(&'a BTreeSet<Ino>),
    /// Those at and below these paths: what is about to be removed must be what the base has.
    Below(&'a AbsentPaths),
    /// All of them.
    All,
}

impl ForcedReads<'_> {
    fn includes(&self, entry: &ScanEntryRef<'_>, ino: Ino) -> bool {
        match self {
            Self::Listed(inodes) => inodes.contains(&ino),
            Self::Below(paths) => paths.find_covering(&entry.path()).is_some(),
            Self::All => true,
        }
    }
}

/// What was captured.
pub struct CaptureResult {
    numbers: InodeNumbers,
    shadowed: ShadowedDirs,
    /// Directories that are gone, but for what is absent in them.
    kept: HashSet<Ino>,
    later: HashMap<ScanEntryId, Option<FileStat>>,
    /// Inodes that could not be read or kept changing.
    unknown: HashSet<Ino>,
    /// What the state holds now, in numbers.
    pub statistics: SnapshotStatistics,
    /// What could not be read.
    pub problems: Vec<CheckoutProblem>,
    /// Entries to take out of the state again, since they turned out to be unreadable or gone.
    pub corrections: Vec<UnreadableNewEntry>,
    /// Whether a cached entry was too young to be trusted: then a new cache pays, though nothing changed.
    pub was_racy: bool,
}

/// A new entry that could not be read after all.
#[derive(Debug, Clone)]
pub struct UnreadableNewEntry {
    /// Its names, each with its directory.
    pub names: Vec<DirEntryName>,
    /// Keys of its own to remove.
    pub keys: Vec<Vec<u8>>,
}

impl UnreadableNewEntry {
    /// The keys to remove.
    pub fn removed_keys(&self) -> impl Iterator<Item = Vec<u8>> {
        let names = self.names.iter().map(|(dir, name)| MapKey::for_dentry(*dir, name).into_bytes());
        names.chain(self.keys.iter().cloned())
    }
}

impl CaptureRequest<'_> {
    /// Reads what may have changed and hands the changes to `changes`, in the order of their keys; content goes to
    /// `chunks`.
    pub fn capture_changes(
        &self,
        chunks: ChunkSink<'_>,
        changes: &mut (dyn ChangeSink + Send),
    ) -> Result<CaptureResult> {
        let numbers = InodeNumbers::assign_numbers(self)?;
        let shadowed = ShadowedDirs::find_shadowed(self.absent, self.tree, self.base, &numbers)?;
        // The order matters: removed inodes are found only when all numbers in use are known, and the names
        // that the scan did not see are looked up only for the inodes that have a job.
        let gaps = UnexaminedEntries::from_scan(self.tree, self.absent, &shadowed);
        let plan = jobs::plan_capture_jobs(self, &numbers, &gaps)?;
        let unseen = match self.base {
            // A complete scan of everything has seen all names of each file, so the walk over the whole base
            // is not needed.
            Some(base) if self.has_unseen_names() => {
                UnscannedLinkNames::find_unscanned(self.tree, base, &numbers, &gaps, &plan)?
            }
            _ => UnscannedLinkNames::default(),
        };
        let (count, bytes) = plan.sum_cost(self.tree);
        self.meter.set_expected_total(count, bytes);
        let reader = InodeReader {
            tree: self.tree,
            base: self.base,
            numbers: &numbers,
            gaps: &gaps,
            kept: &plan.kept,
            unseen: &unseen,
            dirs: OpenTreeDirs::new(self.tree, self.root),
            content: ContentReader { chunker: self.chunker, sink: chunks, meter: self.meter },
        };
        let mut sum = CaptureTotals { statistics: self.statistics, ..CaptureTotals::default() };
        // The sink requires ascending keys. The filesystem's own record has the lowest inode number, so it
        // comes before all jobs.
        if numbers.is_super_record_changed(self.base) {
            changes.apply_change(
                MapKey::for_attr(Ino::SUPER).as_bytes(),
                Some(&numbers.super_block().encode()),
            )?;
        }
        let mut done: Vec<InodeOutcome> = Vec::new();
        // The outcomes of one batch go to the sink while the next batch is read: the sink is one thread,
        // because keys have to arrive in order. If reading fails, the outcomes of this batch are dropped with
        // the whole capture.
        for batch in plan.split_batches(self.tree) {
            self.meter.check_stopped()?;
            // The collector takes a session that was not renewed for dead and may then delete packs that this
            // snapshot relies on. A batch is short, a capture may take hours.
            reader.content.sink.renew_session()?;
            let ready = std::mem::take(&mut done);
            let work = || batch.par_iter().map(|job| reader.run_job(*job)).collect::<Result<Vec<_>>>();
            let (emitted, worked) = run_parallel(|| rayon::join(|| sum.emit_outcomes(ready, changes), work));
            emitted?;
            done = worked?;
            self.meter.add_progress(batch.len() as u64, 0);
        }
        sum.emit_outcomes(done, changes)?;
        // It borrows from the plan, of which a part goes into the result.
        drop(reader);
        let kept = plan.kept;
        Ok(sum.into_result(CapturedNames { numbers, shadowed, kept }, self.tree))
    }

    /// Whether files may have names that the scan did not look at, or that are absent.
    fn has_unseen_names(&self) -> bool {
        self.partial || !self.tree.is_complete() || !self.absent.is_empty()
    }
}

/// Which inode is where.
struct CapturedNames {
    numbers: InodeNumbers,
    shadowed: ShadowedDirs,
    kept: HashSet<Ino>,
}

/// What the jobs came to, so far.
#[derive(Default)]
struct CaptureTotals {
    statistics: SnapshotStatistics,
    later: HashMap<ScanEntryId, Option<FileStat>>,
    problems: Vec<CheckoutProblem>,
    corrections: Vec<UnreadableNewEntry>,
}

impl CaptureTotals {
    fn emit_outcomes(
        &mut self,
        outcomes: Vec<InodeOutcome>,
        changes: &mut (dyn ChangeSink + Send),
    ) -> Result<()> {
        for outcome in outcomes {
            for (key, value) in &outcome.changes {
                changes.apply_change(key, value.as_deref())?;
            }
            outcome.tally.add_to_statistics(&mut self.statistics);
            if let Some((entry, stat)) = outcome.later {
                self.later.insert(entry, stat);
            }
            match outcome.trouble {
                None => {}
                Some(UnreadablePolicy::Reported(problem)) => self.problems.push(problem),
                Some(UnreadablePolicy::Corrected(problem, correction)) => {
                    self.problems.extend(problem);
                    self.corrections.push(correction);
                }
            }
        }
        Ok(())
    }

    fn into_result(mut self, names: CapturedNames, tree: &ScanTree) -> CaptureResult {
        let CapturedNames { numbers, shadowed, kept } = names;
        self.problems.extend(tree.problems().iter().map(CheckoutProblem::from));
        self.problems.sort_by(|a, b| a.path.cmp(&b.path));
        let was_racy = numbers.was_racy;
        let Self { statistics, later, problems, corrections } = self;
        let unknown = later
            .iter()
            .filter(|(_, stat)| stat.is_none())
            .map(|(id, _)| numbers.number_of_entry(*id))
            .collect();
        CaptureResult { numbers, shadowed, kept, later, unknown, statistics, problems, corrections, was_racy }
    }
}

impl CaptureResult {
    /// The inode number of an entry.
    #[must_use]
    pub fn number_of_entry(&self, id: ScanEntryId) -> Ino {
        self.numbers.number_of_entry(id)
    }

    /// The inode number of a directory.
    #[must_use]
    pub fn number_of_dir(&self, dir: &ScanDir<'_>) -> Ino {
        self.numbers.number_of_dir(dir)
    }

    /// Whether an entry is the only name of its file, or the first of several.
    #[must_use]
    pub fn is_first_name(&self, id: ScanEntryId) -> bool {
        self.numbers.links_of_inode(self.number_of_entry(id)).is_none_or(|links| links.first == id)
    }

    /// Whether a directory stands in the place of an absent one, or below such a place: what is not in it is absent.
    #[must_use]
    pub fn is_shadowed_dir(&self, ino: Ino) -> bool {
        self.shadowed.contains(ino)
    }

    /// Whether a directory is gone, but for what is absent in it.
    #[must_use]
    pub fn is_kept_dir(&self, ino: Ino) -> bool {
        self.kept.contains(&ino)
    }

    /// What the stat cache is to remember of an entry; nothing of one that could not be read or kept changing. Of a
    /// directory of which not all was recorded, only the number: it is to be looked at again.
    #[must_use]
    pub fn recorded_state(&self, entry: ScanEntryRef<'_>) -> Option<RecordedEntry> {
        let ino = self.numbers.number_of_entry(entry.id());
        if entry.scanned_dir().is_some_and(|dir| !dir.is_fully_scanned()) {
            // With an outdated change time the entry never counts as unchanged, so that the next scan
            // captures the directory. The number has to stay: without it the directory would get a new one.
            return Some(RecordedEntry { ino, stat: Some(entry.stat().with_outdated_ctime()) });
        }
        if self.unknown.contains(&ino) {
            return None;
        }
        Some(RecordedEntry { ino, stat: self.later.get(&entry.id()).copied().flatten() })
    }
}

/// Which jobs there are, in the order of inode numbers.
pub(crate) struct CapturePlan {
    jobs: Vec<CaptureJob>,
    /// Directories that are gone, but for what is absent in them.
    kept: HashSet<Ino>,
}

impl CapturePlan {
    fn sum_cost(&self, tree: &ScanTree) -> (u64, u64) {
        (self.jobs.len() as u64, self.jobs.iter().map(|job| job.content_bytes(tree)).sum())
    }

    /// The jobs in portions that fit in memory and keep all threads busy.
    fn split_batches<'p>(&'p self, tree: &'p ScanTree) -> impl Iterator<Item = &'p [CaptureJob]> {
        let mut rest = self.jobs.as_slice();
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = |job: &&CaptureJob| {
                bytes += job.content_bytes(tree) + JOB_COST;
                bytes <= BATCH_BYTES
            };
            // At least one job is taken, or a file that is larger than a batch would end the iteration.
            let count = rest.iter().take(BATCH_JOBS).take_while(fits).count().max(1).min(rest.len());
            let (batch, tail) = rest.split_at(count);
            rest = tail;
            (!batch.is_empty()).then_some(batch)
        })
    }
}

//! Visiting one directory: its names, its rules, the attributes of its entries, and their cached entries.

use std::ops::Range;

use vellum_host::beneath::{BeneathError, HeldDir, ListedName, is_temp_name};
use vellum_host::exclusions::CACHE_TAG;
use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use super::exclusions::is_cache_dir;
use super::rules::{IgnoreRules, read_rules};
use super::selection::SelectedPart;
use super::tree::{DirCoverage, NONE, ScanEntry, UNCHANGED, entry_name_in};
use super::walk::{FoundSubdirectory, ScanWalk, ScannedDir, VisitOutcome, VisitTask};
use super::{STATE_DIR, ScanExclusions, ScanProblemCause};
use crate::statcache::{CachedDir, StatCache};

/// A directory with this many names is examined by several threads: starting one costs as much as examining about fifty
/// entries.
const SPLIT_FROM: usize = 4096;
/// How often an entry is tried that `statx` shows as a directory, and that opening shows as something else.
const TRIES: usize = 4;

/// The names to examine in a directory, in order.
type NamesToExamine<'n> = Vec<ListedName<'n>>;

/// The result of one thread for a range of names.
#[derive(Default)]
struct ExaminedRange {
    entries: Vec<ScanEntry>,
    names: Vec<u8>,
    left_out: u32,
    problems: Vec<(Box<[u8]>, ScanProblemCause)>,
}

/// The facts that are the same for all entries of a directory.
struct DirSurroundings<'s> {
    dir: &'s HeldDir,
    is_root: bool,
    /// Path of the directory with a trailing slash; only if there are rules.
    prefix: Vec<u8>,
    rules: Option<&'s IgnoreRules>,
    exclusions: &'s ScanExclusions,
}

impl ScanWalk<'_> {
    /// Visits the directory of a task, and stores its contents.
    pub(super) fn visit_dir(&self, mut task: VisitTask) {
        for _ in 0..TRIES {
            let error = match self.visit_once(&task) {
                Ok(()) => return,
                Err(error) => error,
            };
            // The root was opened before the scan, so its name is not looked up again and it cannot be
            // replaced.
            if !is_concurrent_change(&error) || task.parent == NONE {
                return self.report_problem(task.node, b"", ScanProblemCause::UnreadableDir(error));
            }
            // It was a directory at the last `statx` and has been replaced or removed since.
            match self.stat_task_entry(&task) {
                Ok(now) if now.kind == FileKind::Dir => {
                    self.set_outcome(&task, VisitOutcome::Became(now));
                    task.stat = now;
                }
                Ok(now) => return self.set_outcome(&task, VisitOutcome::Became(now)),
                Err(error) if is_concurrent_change(&error) => {
                    return self.set_outcome(&task, VisitOutcome::Gone);
                }
                Err(error) => {
                    return self.report_problem(task.node, b"", ScanProblemCause::UnreadableDir(error));
                }
            }
        }
        self.report_problem(task.node, b"", ScanProblemCause::Restless);
    }

    fn visit_once(&self, task: &VisitTask) -> Result<(), BeneathError> {
        let dir = self.open_task_dir(task)?;
        let (listing, found, rules) = self.read_dir(task, &dir)?;
        self.store_listing(task, dir, listing, found, rules.as_ref());
        Ok(())
    }

    fn read_dir(
        &self,
        task: &VisitTask,
        dir: &HeldDir,
    ) -> Result<(ScannedDir, Vec<FoundSubdirectory>, Option<IgnoreRules>), BeneathError> {
        let now = dir.stat_self()?;
        // The name was replaced between `statx` and opening. What is read belongs to the new directory, and
        // so must the attributes.
        if (now.dev, now.ino) != (task.stat.dev, task.stat.ino) {
            self.set_outcome(task, VisitOutcome::Became(now));
        }
        let is_root = task.parent == NONE;
        if self.input.exclusions.other_file_systems && now.dev != task.device {
            // Recorded as the empty directory that a mount point is without what is mounted on it.
            let listing = ScannedDir {
                entries: Vec::new(),
                names: Vec::new(),
                coverage: DirCoverage::Whole,
                cached: task.cached,
                left_out: 1,
            };
            return Ok((listing, Vec::new(), None));
        }
        let names = match task.part {
            // The root is shared with other scans, so it is read through a descriptor with a position of its
            // own. Other directories were opened for this visit, and one descriptor is enough.
            SelectedPart::Whole if is_root => Some(dir.read_names()?),
            SelectedPart::Whole => Some(dir.read_names_once()?),
            SelectedPart::Some(_) => None,
        };
        let names = names.map(|mut names| {
            names.sort_names();
            names
        });
        let (mut to_examine, coverage): (NamesToExamine<'_>, _) = match (&names, task.part) {
            (Some(names), _) => (names.iter().collect(), DirCoverage::Whole),
            (None, part) => self.select_names(part),
        };
        let named = to_examine.len();
        // Of a partial listing, only opening the mark tells.
        let may_be_marked =
            names.is_none() || to_examine.binary_search_by(|listed| listed.name.cmp(CACHE_TAG)).is_ok();
        // Whoever scans a cache itself means what is in it.
        if self.input.exclusions.caches && !is_root && may_be_marked && is_cache_dir(dir) {
            to_examine.retain(|listed| listed.name == CACHE_TAG);
        }
        let left_out = u32::try_from(named - to_examine.len()).unwrap_or(u32::MAX);
        let rules = self.load_rules(task, dir, &to_examine, names.is_some());
        let exclusions = self.input.exclusions;
        let prefix = match rules.is_some() || exclusions.patterns.is_some() {
            true => append_slash(self.node_path(task.node)),
            false => Vec::new(),
        };
        let surroundings = DirSurroundings { dir, is_root, prefix, rules: rules.as_ref(), exclusions };
        let mut examined = self.examine_all(&surroundings, &to_examine);
        for (name, cause) in examined.problems.drain(..) {
            self.report_problem(task.node, &name, cause);
        }
        let found = self.match_entries(task, &mut examined);
        let mut entries = examined.entries;
        let mut names = examined.names;
        entries.shrink_to_fit();
        names.shrink_to_fit();
        let left_out = left_out.saturating_add(examined.left_out);
        let listing = ScannedDir { entries, names, coverage, cached: task.cached, left_out };
        Ok((listing, found, rules))
    }

    /// The selected names of a directory that is above selected paths.
    fn select_names(&self, part: SelectedPart) -> (NamesToExamine<'_>, DirCoverage) {
        let node = match part {
            SelectedPart::Some(node) => node,
            SelectedPart::Whole => 0,
        };
        let names = self.input.selection.into_iter().flat_map(|selection| selection.selected_children(node));
        let names: NamesToExamine<'_> = names.map(|(name, _)| ListedName { name, is_dir: None }).collect();
        let coverage = DirCoverage::Names(names.iter().map(|listed| listed.name.into()).collect());
        (names, coverage)
    }

    fn load_rules(
        &self,
        task: &VisitTask,
        dir: &HeldDir,
        names: &NamesToExamine<'_>,
        all: bool,
    ) -> Option<IgnoreRules> {
        let mut rules = task.rules.clone();
        for file in &self.input.exclusions.rule_files {
            // All names are known: without a rule file among them, the failing open is saved in nearly every
            // directory. A partial listing cannot tell.
            if all && names.binary_search_by(|listed| listed.name.cmp(file.as_bytes())).is_err() {
                continue;
            }
            let (with_file, messages) = read_rules(dir, file, &self.node_path(task.node), rules.as_ref());
            rules = with_file;
            for message in messages {
                self.report_problem(task.node, file.as_bytes(), ScanProblemCause::Rules(message));
            }
        }
        rules
    }

    fn examine_all(&self, surroundings: &DirSurroundings<'_>, names: &NamesToExamine<'_>) -> ExaminedRange {
        if names.len() < SPLIT_FROM || self.input.threads < 2 {
            return surroundings.examine_names(names);
        }
        let share = names.len().div_ceil(self.input.threads);
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                names.chunks(share).map(|names| scope.spawn(|| surroundings.examine_names(names))).collect();
            workers
                .into_iter()
                // A worker that panicked has examined nothing: its names must not look removed.
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                // In the order of the ranges, so that the names stay sorted.
                .fold(ExaminedRange::default(), ExaminedRange::append_range)
        })
    }

    /// Matches the entries with the cache, and returns the subdirectories.
    fn match_entries(&self, task: &VisitTask, examined: &mut ExaminedRange) -> Vec<FoundSubdirectory> {
        let mut cached = CachedBlockMatcher::new(self.input.cache, task.cached);
        let mut found = Vec::new();
        for (place, entry) in (0..).zip(&mut examined.entries) {
            let name = entry_name_in(&examined.names, entry);
            let child = cached.match_entry(name, entry);
            if entry.stat.kind == FileKind::Dir {
                let part = match (task.part, self.input.selection) {
                    (SelectedPart::Some(node), Some(selection)) => {
                        selection.selected_child(node, name).unwrap_or(SelectedPart::Whole)
                    }
                    _ => SelectedPart::Whole,
                };
                found.push(FoundSubdirectory { entry: place, part, cached: child });
            }
        }
        found
    }
}

/// Whether the directory was removed or replaced concurrently. (Reading a removed directory that is still open fails in
/// this way, too.)
fn is_concurrent_change(error: &BeneathError) -> bool {
    error.is_not_found() || error.is_not_a_directory()
}

/// Steps through a cached block along with the entries of its directory.
struct CachedBlockMatcher<'c> {
    source: Option<(&'c StatCache, CachedDir)>,
    range: Range<u32>,
}

impl<'c> CachedBlockMatcher<'c> {
    fn new(cache: Option<&'c StatCache>, dir: Option<CachedDir>) -> Self {
        let source = cache.zip(dir);
        Self { source, range: 0..source.map_or(0, |(cache, dir)| cache.entry_count(dir)) }
    }

    /// Compares an entry with the cached one of its name; returns the cached block of a directory.
    fn match_entry(&mut self, name: &[u8], entry: &mut ScanEntry) -> Option<CachedDir> {
        let (cache, dir) = self.source?;
        // Both lists are ordered by name, so one pass over both finds all pairs.
        while self.range.start < self.range.end {
            let Some(cached) = cache.entry_at(dir, self.range.start).filter(|cached| cached.name >= name)
            else {
                self.range.start += 1;
                continue;
            };
            if cached.name != name {
                return None;
            }
            entry.cached = self.range.start;
            self.range.start += 1;
            if cached.is_unchanged(&entry.stat) {
                entry.flags |= UNCHANGED;
            }
            return cached.child;
        }
        None
    }
}

impl DirSurroundings<'_> {
    fn examine_names(&self, names: &[ListedName<'_>]) -> ExaminedRange {
        let mut examined =
            ExaminedRange { entries: Vec::with_capacity(names.len()), ..ExaminedRange::default() };
        let mut path = self.prefix.clone();
        for listed in names {
            let is_our_own = self.is_root && listed.name == STATE_DIR || is_temp_name(listed.name);
            if is_our_own
                // Most filesystems tell in the listing whether an entry is a directory, and then an ignored
                // entry costs no `statx`. Others report DT_UNKNOWN.
                || listed.is_dir.is_some_and(|is_dir| self.is_excluded(&mut path, listed.name, is_dir))
            {
                examined.left_out += 1;
                continue;
            }
            match self.dir.stat(listed.name) {
                Ok(stat) => {
                    let is_dir = stat.kind == FileKind::Dir;
                    if listed.is_dir != Some(is_dir) && self.is_excluded(&mut path, listed.name, is_dir) {
                        examined.left_out += 1;
                    } else {
                        examined.push_entry(listed.name, stat);
                    }
                }
                // It vanished between listing and `statx`, and is as if it had been removed before the scan.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    examined.problems.push((listed.name.into(), ScanProblemCause::Unexaminable(error)))
                }
            }
        }
        examined
    }

    /// Whether patterns or rules exclude an entry, or it is the state directory of another volume's worktree, which may
    /// contain a key.
    fn is_excluded(&self, path: &mut Vec<u8>, name: &[u8], is_dir: bool) -> bool {
        if is_dir && name == STATE_DIR {
            return true;
        }
        let patterns = self.exclusions.patterns.as_ref();
        if patterns.is_none() && self.rules.is_none() {
            return false;
        }
        path.truncate(self.prefix.len());
        path.extend_from_slice(name);
        let decide = |rules: &IgnoreRules| rules.find_verdict(path, is_dir);
        patterns.and_then(decide).or_else(|| self.rules.and_then(decide)).unwrap_or(false)
    }
}

impl ExaminedRange {
    fn push_entry(&mut self, name: &[u8], stat: FileStat) {
        // A name fits in 255 bytes and all names of a directory in 4 GiB: both were checked when they were listed.
        let name_start = self.names.len() as u32;
        let name_len = name.len() as u8;
        self.names.extend_from_slice(name);
        self.entries.push(ScanEntry { stat, name_start, child: NONE, cached: NONE, name_len, flags: 0 });
    }

    fn append_range(mut self, other: Self) -> Self {
        let shift = self.names.len() as u32;
        self.names.extend_from_slice(&other.names);
        let moved = other
            .entries
            .into_iter()
            .map(|entry| ScanEntry { name_start: entry.name_start + shift, ..entry });
        self.entries.extend(moved);
        self.left_out += other.left_out;
        self.problems.extend(other.problems);
        self
    }
}

fn append_slash(mut path: Vec<u8>) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path
}

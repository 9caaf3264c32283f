//! Removes files that are as the last snapshot has them, and makes them absent.
//!
//! Invariant: a file is removed only if its content was read and is what the snapshot has, nobody has it open, and it has
//! not changed since. The list names it, durably, before it goes.

use std::collections::{BTreeSet, HashSet};

use vellum_host::ProgressMeter;
use vellum_types::{FileKind, Ino};
use vellum_volume::FsTree;
use vellum_volume::diff::compare_inodes;
use vellum_volume::history::HistoryEntry;
use vellum_volume::lost::LostContent;

use super::{AbsentPaths, join_name};
use crate::capture::ForcedReads;
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::materialize::{CloneSource, MaterializeRequest};
use crate::plan::PlanSteps;
use crate::restore::collect_changed_inodes;
use crate::scan::{OpenTreeDirs, ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanExclusions};
use crate::worktree::{CLOCK_TICK, CapturedDirectory, CheckoutWorktree};

/// What was removed.
#[derive(Debug, Default)]
pub struct EvictReport {
    /// Files of all kinds but directories.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// What stays, and why.
    pub refused: Vec<CheckoutProblem>,
}

impl CheckoutWorktree {
    /// Removes what is at and below some paths as the last snapshot has it. `list_open` is asked, when all files have been
    /// read, for the inode numbers of what is in use on the filesystem of the directory. The caller holds the lock.
    pub fn evict_paths(
        &self,
        paths: &[Vec<u8>],
        list_open: impl FnOnce() -> BTreeSet<u64>,
        meter: &ProgressMeter,
    ) -> Result<EvictReport> {
        self.check_settled()?;
        self.check_named_paths(paths)?;
        let Some(head) = self.head_snapshot()? else {
            return Err(CheckoutError::AbsentNowhere("there is none yet"));
        };
        // What the directory has may be the last that there is.
        if self.plan_renewal(Some(&head))? != LostContent::Nothing {
            return Err(CheckoutError::LostSnapshot);
        }
        let base = self.volume.open_tree(head.record.root);
        // What was written before this command is then older than the scan by more than the clock's steps.
        std::thread::sleep(CLOCK_TICK);
        let mut named = AbsentPaths::default();
        paths.iter().for_each(|path| named.add_path(path));
        let is_everything = paths.iter().any(Vec::is_empty);
        let forced = if is_everything { ForcedReads::All } else { ForcedReads::Below(&named) };
        let looked = self.capture_forced(&[], forced, meter)?;
        let mut plan = EvictPlan {
            // Only now that the files were read, which may take long: what was opened meanwhile is in use, too.
            open: list_open(),
            exclusions: &self.scan_exclusions()?,
            base: &base,
            looked: &looked,
            dirty: collect_changed_inodes(&looked.state)?,
            steps: PlanSteps::default(),
            gone: Vec::new(),
            left: BTreeSet::new(),
            report: EvictReport::default(),
        };
        if is_everything {
            plan.plan_root()?;
        } else {
            named.iter().try_for_each(|path| plan.plan_path(path))?;
        }
        self.execute_eviction(plan, &head, meter)
    }

    fn execute_eviction(
        &self,
        plan: EvictPlan<'_>,
        head: &HistoryEntry,
        meter: &ProgressMeter,
    ) -> Result<EvictReport> {
        let EvictPlan { base, looked, steps, gone, left, mut report, .. } = plan;
        if steps.deletes.is_empty() {
            return Ok(report);
        }
        let mut absent = self.read_absent_paths()?;
        for place in &gone {
            absent.add_path(&place.path);
        }
        // Before the first removal: otherwise a kill would leave files that count as deleted.
        self.write_absent_paths(&absent)?;
        // A hydration that was interrupted would make them again when it is finished.
        self.forget_hydration(gone.iter().map(|place| place.path.as_slice()))?;
        // A file that gets the number of a removed one must not be taken for that, renamed.
        self.forget_in_stat_cache(head, &gone)?;
        let source = CloneSource { tree: &looked.tree, dirs: OpenTreeDirs::new(&looked.tree, &self.root) };
        let done = MaterializeRequest {
            volume: &self.volume,
            target: base,
            root: &self.root,
            base: Ino::ROOT,
            now: Some(source),
            clones: None,
            engine: None,
            meter,
        }
        .execute_steps(&steps)?;
        self.restore_dir_times(looked, &left);
        let mut listed = absent.clone();
        // What could not be removed is here still, so that it comes off the list again.
        for problem in done.problems {
            listed.split_off(&problem.path, base)?;
            report.refused.push(problem);
        }
        if listed != absent {
            self.write_absent_paths(&listed)?;
        }
        // What the plan refused and what failed when it was carried out stand in one list.
        report.refused.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(report)
    }

    /// Gives directories from which something was removed the times that they had: for the snapshot, nothing changed in
    /// them. What cannot be done shows as a change of their times alone.
    fn restore_dir_times(&self, looked: &CapturedDirectory, left: &BTreeSet<ScanDirIndex>) {
        let dirs = OpenTreeDirs::new(&looked.tree, &self.root);
        for index in left.iter().rev() {
            let mtime = looked.tree.dir(*index).stat().mtime;
            let _ = dirs.open_dir(*index).and_then(|dir| dir.hold_self().set_mtime(mtime));
        }
    }

    /// Takes removed files out of the stat cache.
    fn forget_in_stat_cache(&self, head: &HistoryEntry, gone: &[EvictedPlace]) -> Result<()> {
        let names: HashSet<(Ino, &[u8])> =
            gone.iter().map(|place| (place.dir, place.name.as_slice())).collect();
        self.rewrite_stat_cache(head, |dir, name| !names.contains(&(dir, name)))
    }
}

/// A path that is to be absent.
struct EvictedPlace {
    path: Vec<u8>,
    dir: Ino,
    name: Vec<u8>,
}

/// What is to be removed.
struct EvictPlan<'a> {
    exclusions: &'a ScanExclusions,
    open: BTreeSet<u64>,
    base: &'a FsTree,
    looked: &'a CapturedDirectory,
    /// Inodes that are not as the last snapshot has them.
    dirty: HashSet<Ino>,
    steps: PlanSteps,
    /// The topmost paths that are to be absent.
    gone: Vec<EvictedPlace>,
    /// The directories that they are in.
    left: BTreeSet<ScanDirIndex>,
    report: EvictReport,
}

impl EvictPlan<'_> {
    /// Plans everything.
    fn plan_root(&mut self) -> Result<()> {
        let root = self.looked.tree.dir(ScanDirIndex::ROOT);
        let entries: Vec<_> = root.entries().map(|entry| entry.id()).collect();
        entries.into_iter().try_for_each(|id| self.plan_top(id))
    }

    /// Plans one of the paths that were named.
    fn plan_path(&mut self, path: &[u8]) -> Result<()> {
        // What is not there is absent already, or deleted, which is a change.
        match self.looked.tree.find_entry_at(path) {
            Some(entry) => self.plan_top(entry.id()),
            None if self.looked.absent.find_covering(path).is_some() => Ok(()),
            None => {
                self.refuse(path.to_vec(), "it is not here");
                Ok(())
            }
        }
    }

    /// Plans an entry whose directory stays.
    fn plan_top(&mut self, top: ScanEntryId) -> Result<()> {
        let tree = &self.looked.tree;
        // Directories are decided on after what is in them.
        let mut below: Vec<ScanEntryRef<'_>> = Vec::new();
        let mut waiting = vec![tree.entry(top)];
        while let Some(entry) = waiting.pop() {
            below.push(entry);
            waiting.extend(entry.scanned_dir().into_iter().flat_map(|dir| dir.entries()));
        }
        let mut going: HashSet<ScanEntryId> = HashSet::new();
        for entry in below.iter().rev() {
            let goes = match entry.scanned_dir() {
                Some(dir) => self.is_dir_evictable(&dir, &going)?,
                None => self.is_file_evictable(entry)?,
            };
            if goes {
                going.insert(entry.id());
            }
        }
        for entry in below {
            let is_below_another =
                entry.containing_dir().own_entry().is_some_and(|dir| going.contains(&dir.id()));
            if !going.contains(&entry.id()) {
                continue;
            }
            if !is_below_another && !self.plan_topmost(&entry) {
                going.remove(&entry.id());
                continue;
            }
            // Directories before what is in them: the list is carried out from its end.
            self.steps.deletes.push(entry.id());
            if entry.kind() != FileKind::Dir {
                self.report.files += 1;
                self.report.bytes += if entry.kind() == FileKind::File { entry.stat().size } else { 0 };
            }
        }
        Ok(())
    }

    /// Plans an entry that goes from a directory that stays; false if it stays, too.
    fn plan_topmost(&mut self, entry: &ScanEntryRef<'_>) -> bool {
        if self.exclusions.is_rule_file(entry.name()) {
            self.refuse(entry.path(), "it says which files of its directory are ignored, and that stays");
            return false;
        }
        let above = entry.containing_dir();
        let dir = self.looked.captured.number_of_dir(&above);
        let path = join_name(&above.path(), entry.name());
        self.gone.push(EvictedPlace { path, dir, name: entry.name().to_vec() });
        self.left.insert(above.index());
        true
    }

    /// Whether a directory can go: it is as the snapshot has it but for its times, and all that is in it goes.
    fn is_dir_evictable(&mut self, dir: &ScanDir<'_>, going: &HashSet<ScanEntryId>) -> Result<bool> {
        let Some(entry) = dir.own_entry() else { return Ok(false) };
        // Ignored files are in no snapshot, and their directory stays with them.
        let is_emptied = dir.is_fully_scanned()
            && dir.ignored_count() == 0
            && dir.entries().all(|entry| going.contains(&entry.id()));
        // Whoever works in a directory is not to lose it.
        if !is_emptied || self.open.contains(&entry.stat().ino) || !self.is_in_snapshot(&entry)? {
            return Ok(false);
        }
        let ino = self.looked.captured.number_of_entry(entry.id());
        if !self.dirty.contains(&ino) {
            return Ok(true);
        }
        let now = self.looked.state.read_inode(ino)?;
        let then = self.base.read_inode(ino)?;
        // Something was removed from it: that is not to be forgotten.
        Ok(now.entries == then.entries && !compare_inodes(&now, &then).has_change())
    }

    fn is_file_evictable(&mut self, entry: &ScanEntryRef<'_>) -> Result<bool> {
        let CapturedDirectory { tree, captured, stamp, .. } = self.looked;
        let ino = captured.number_of_entry(entry.id());
        let problem = if !self.is_in_snapshot(entry)? {
            "it is in no snapshot under this name"
        } else if captured.recorded_state(*entry).is_none() {
            "it could not be read"
        } else if self.dirty.contains(&ino) {
            "it changed since the last snapshot"
        } else if stamp.can_hide_change(entry.stat()) {
            "it changed a moment ago"
        } else if self.open.contains(&entry.stat().ino) {
            "it is open"
        } else if entry.stat().dev != tree.root_stat().dev {
            "it is on another filesystem, and whether it is open there is not known"
        } else {
            return Ok(true);
        };
        self.refuse(entry.path(), problem);
        Ok(false)
    }

    /// Whether the last snapshot has the same file under the same name.
    fn is_in_snapshot(&self, entry: &ScanEntryRef<'_>) -> Result<bool> {
        let captured = &self.looked.captured;
        let dir = captured.number_of_dir(&entry.containing_dir());
        let ino = captured.number_of_entry(entry.id());
        let then = self.base.lookup_dentry(dir, entry.name())?;
        Ok(then.is_some_and(|then| then.ino == ino && then.kind == entry.kind()))
    }

    fn refuse(&mut self, path: Vec<u8>, message: &str) {
        self.report.refused.push(CheckoutProblem { path, message: message.into() });
    }
}

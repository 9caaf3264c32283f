//! Selects inodes that may differ from the base: those with changed attributes, directories with changed entries, and
//! removed ones.

use std::collections::HashSet;

use vellum_types::{Dentry, FileKind, Ino};
use vellum_volume::FsTree;

use super::number::{InoSet, InodeNumbers};
use super::unseen::UnexaminedEntries;
use super::{CapturePlan, CaptureRequest, ForcedReads};
use crate::error::Result;
use crate::scan::{ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree};

/// One inode to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureJob {
    /// The base has it, the directory has not.
    Remove(Ino),
    /// A directory that is gone, but for what is absent in it.
    Prune(Ino),
    /// A directory: its attributes or its entries may differ.
    Dir(Ino, ScanDirIndex),
    /// Any other entry, by the first of its names.
    Entry(Ino, ScanEntryId),
}

impl CaptureJob {
    fn ino(&self) -> Ino {
        match self {
            Self::Remove(ino) | Self::Prune(ino) | Self::Dir(ino, _) | Self::Entry(ino, _) => *ino,
        }
    }

    /// Bytes of content to be read.
    pub(super) fn content_bytes(&self, tree: &ScanTree) -> u64 {
        match self {
            Self::Remove(_) | Self::Prune(_) | Self::Dir(..) => 0,
            Self::Entry(_, id) => match tree.entry(*id).stat() {
                stat if stat.kind == FileKind::File => stat.size,
                _ => 0,
            },
        }
    }
}

/// Lists the jobs in the order of inode numbers.
pub fn plan_capture_jobs(
    capture: &CaptureRequest<'_>,
    numbers: &InodeNumbers,
    gaps: &UnexaminedEntries<'_>,
) -> Result<CapturePlan> {
    let &CaptureRequest { tree, base, forced, .. } = capture;
    let mut planning = JobPlanner {
        tree,
        numbers,
        gaps,
        forced,
        jobs: Vec::new(),
        removed: Vec::new(),
        emptied: Vec::new(),
        kept: HashSet::new(),
    };
    for dir in tree.dirs() {
        planning.plan_dir(&dir, base)?;
    }
    if let Some(base) = base {
        let in_use = numbers.collect_used_numbers();
        // First, since what goes from these directories is among the removals.
        planning.plan_emptied(base, &in_use)?;
        let removed = std::mem::take(&mut planning.removed);
        planning.plan_removals(base, removed, &in_use)?;
    }
    let JobPlanner { mut jobs, kept, .. } = planning;
    jobs.sort_unstable_by_key(CaptureJob::ino);
    // Each name of a file adds the same job, and so does a removal that is met twice.
    jobs.dedup_by_key(|job| job.ino());
    Ok(CapturePlan { jobs, kept })
}

struct JobPlanner<'a> {
    tree: &'a ScanTree,
    numbers: &'a InodeNumbers,
    gaps: &'a UnexaminedEntries<'a>,
    /// Inodes that are read in any case.
    forced: ForcedReads<'a>,
    jobs: Vec<CaptureJob>,
    /// Inodes that lost a name; gone if they have no other.
    removed: Vec<Ino>,
    /// Directories that are not where they were, and lead to something that is absent.
    emptied: Vec<Ino>,
    /// Those of them that stay, with what is absent in them.
    kept: HashSet<Ino>,
}

impl JobPlanner<'_> {
    fn plan_dir(&mut self, dir: &ScanDir<'_>, base: Option<&FsTree>) -> Result<()> {
        let ino = self.numbers.number_of_dir(dir);
        let mut touched = !self.is_unchanged_dir(dir) || dir.missing_entries().next().is_some();
        for entry in dir.entries() {
            touched |= self.plan_entry(&entry);
        }
        if !touched {
            return Ok(());
        }
        self.jobs.push(CaptureJob::Dir(ino, dir.index()));
        // The names of the base are read only for a directory that changed; all others are known to hold the
        // same names as before.
        let Some(base) = base.filter(|_| self.numbers.is_from_base(ino)) else { return Ok(()) };
        if base.inode_attr(ino)?.is_none() {
            return Ok(());
        }
        for (name, old) in base.list_entries(ino)? {
            // A name that now belongs to another file has lost its old inode as well.
            let kept = dir
                .find_entry(&name)
                .is_some_and(|entry| self.numbers.number_of_entry(entry.id()) == old.ino);
            if kept || !self.gaps.proves_removal(dir, ino, &name) {
                continue;
            }
            // What took the place of a directory took that of all that was in it.
            self.record_removal(&old, dir.find_entry(&name).is_some());
        }
        Ok(())
    }

    /// Directories that were removed and lead to absent files stay, with these alone.
    fn plan_emptied(&mut self, base: &FsTree, in_use: &InoSet) -> Result<()> {
        while let Some(ino) = self.emptied.pop() {
            if in_use.contains(ino) || !self.kept.insert(ino) {
                continue;
            }
            self.jobs.push(CaptureJob::Prune(ino));
            for (name, old) in base.list_entries(ino)? {
                if self.gaps.is_absent(ino, &name) {
                    continue;
                }
                self.record_removal(&old, false);
            }
        }
        Ok(())
    }

    fn record_removal(&mut self, old: &Dentry, is_replaced: bool) {
        let leads = old.kind == FileKind::Dir && self.gaps.leads_to_absent(old.ino);
        let gone = if leads && !is_replaced { &mut self.emptied } else { &mut self.removed };
        gone.push(old.ino);
    }

    fn is_unchanged_dir(&self, dir: &ScanDir<'_>) -> bool {
        match dir.own_entry() {
            Some(entry) => self.has_unchanged_number(&entry) && entry.is_unchanged(),
            None => self.tree.cached_root().is_some_and(|(_, unchanged)| unchanged),
        }
    }

    fn has_unchanged_number(&self, entry: &ScanEntryRef<'_>) -> bool {
        entry.cached_entry().is_some_and(|cached| cached.ino == self.numbers.number_of_entry(entry.id()))
    }

    /// Lists an entry that is no directory if it may differ; says whether its name or number does.
    fn plan_entry(&mut self, entry: &ScanEntryRef<'_>) -> bool {
        let same_number = self.has_unchanged_number(entry);
        let ino = self.numbers.number_of_entry(entry.id());
        let is_unchanged = same_number && entry.is_unchanged() && !self.forced.includes(entry, ino);
        // A directory that could be entered has a job of its own. One without a child was replaced, or
        // vanished, during the scan, and there is nothing to read of it.
        if entry.child_index().is_none() && !is_unchanged && entry.kind() != FileKind::Dir {
            let first = self.numbers.links_of_inode(ino).map_or(entry.id(), |links| links.first);
            self.jobs.push(CaptureJob::Entry(ino, first));
        }
        !same_number
    }

    /// What lost its last name, and everything below it.
    fn plan_removals(&mut self, base: &FsTree, mut lost: Vec<Ino>, in_use: &InoSet) -> Result<()> {
        let mut seen = InoSet::default();
        while let Some(ino) = lost.pop() {
            // The file was renamed, or has another name that was seen.
            if in_use.contains(ino) || !seen.insert(ino) {
                continue;
            }
            self.jobs.push(CaptureJob::Remove(ino));
            // A removed directory is in no scanned directory, so its content is found in the base only.
            // Entries of it that were moved elsewhere are in use and stay.
            if base.expect_inode_attr(ino)?.kind == FileKind::Dir {
                lost.extend(base.list_entries(ino)?.into_iter().map(|(_, entry)| entry.ino));
            }
        }
        Ok(())
    }
}

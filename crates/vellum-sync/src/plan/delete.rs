//! Deleting entries that the source lacks.
//!
//! Invariant: an entry that a rule protects or that is not in the listing stays, and so do all directories above it.

use std::collections::HashSet;

use super::walk::SyncPlanner;
use super::{Differences, PlanRefusal, PlanRemark, StepAction, StepPhase, SyncStep};
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId};
use crate::model::options::{DeleteLimit, DeleteOptions, DeletePhase};

/// This number of deletions is allowed whatever their share of the destination is: they are no sign of a wrong source,
/// and small directories often change by half.
const FEW: u64 = 10;

impl SyncPlanner<'_> {
    /// Plans the deletion of an entry with its subtree, children first. Returns whether all of it is deleted. A Vellum
    /// store in the subtree is recorded.
    pub(super) fn plan_removal(&mut self, top: &ListingEntry<'_>, phase: StepPhase) -> (Vec<SyncStep>, bool) {
        // Perishable protection ends with the directory.
        let stands = |entry: &ListingEntry<'_>| {
            self.is_protected(entry)
                && (entry.id() == top.id() || !entry.flags().contains(EntryFlags::PERISHABLE))
        };
        // The list is its own queue, so that depth costs no stack. Directories come before their entries.
        let mut found = vec![*top];
        let mut next = 0;
        let mut store = None;
        while let Some(entry) = found.get(next).copied() {
            next += 1;
            if entry.flags().contains(EntryFlags::STORE) && entry.is_dir() && !stands(&entry) {
                store.get_or_insert(entry.path());
            }
            if entry.is_dir() && !stands(&entry) {
                found.extend(entry.children());
            }
        }
        let mut stays: HashSet<ListingEntryId> = HashSet::new();
        let mut steps = Vec::new();
        // From entries to their directories: an entry that stays marks the directory above, and that one the
        // next.
        for entry in found.iter().rev() {
            let kept = stays.contains(&entry.id())
                || stands(entry)
                || entry.is_dir()
                    && [EntryFlags::KEEPS, EntryFlags::UNREAD, EntryFlags::MOUNT]
                        .iter()
                        .any(|f| entry.flags().contains(*f));
            if kept {
                stays.extend(entry.parent().map(|parent| parent.id()));
                continue;
            }
            let action = StepAction::Delete;
            let what = Differences::default();
            let old = Some(entry.id());
            steps.push(SyncStep { phase, action, what, source: None, old, other: None });
        }
        // The top is the last one in this order.
        let gone = steps.last().is_some_and(|step| step.old == Some(top.id()));
        if let Some(path) = store {
            self.store.get_or_insert(path);
        }
        (steps, gone)
    }

    /// Plans for an entry that the source lacks.
    pub(super) fn plan_extra_entry(&mut self, old: &ListingEntry<'_>, pair: usize) {
        // An entry beside a source that was named alone is not part of the run.
        let is_beside = self.source_dir(pair).is_some_and(|dir| dir.flags().contains(EntryFlags::IMPLIED));
        if self.options.delete.when == DeletePhase::Never || is_beside || self.is_protected(old) {
            return;
        }
        let (steps, gone) = self.plan_removal(old, self.choose_delete_phase());
        // What can be deleted in it is deleted; the directory itself stays and is reported.
        if !gone && old.is_dir() {
            self.remarks.push(PlanRemark::Kept { path: old.path() });
        }
        if gone {
            self.mark_touched(pair);
        }
        self.counts.deleted += steps.len() as u64;
        self.deletes.extend(steps);
    }

    /// Deletes named entries that do not exist at the source. A directory is deleted with its entries only if deletion
    /// is on.
    pub(super) fn delete_missing(&mut self) {
        // Built once, because a list of paths can be long.
        let mut known: HashSet<Option<ListingEntryId>> = self.deletes.iter().map(|step| step.old).collect();
        let pairs = self.index_pairs();
        for path in self.missing {
            let Some(old) = self.destination.find_path(path).filter(|old| old.id() != ListingEntryId::ROOT)
            else {
                continue;
            };
            if self.source.find_path(path).is_some() || self.is_protected(&old) {
                continue;
            }
            let (steps, gone) = self.plan_removal(&old, self.choose_delete_phase());
            // Without `--delete`, only a single entry or an empty directory may go: the user named one path.
            let may = steps.len() <= 1
                || self.options.delete.when != DeletePhase::Never
                || self.options.delete.obstacles;
            if !gone || !may {
                self.remarks.push(PlanRemark::Kept { path: old.path() });
                continue;
            }
            // A path can lie in a directory that is deleted already.
            let fresh: Vec<SyncStep> = steps.into_iter().filter(|step| known.insert(step.old)).collect();
            if let Some(pair) = old.parent().and_then(|dir| pairs.get(&dir.id())) {
                self.mark_touched(*pair);
            }
            self.counts.deleted += fresh.len() as u64;
            self.deletes.extend(fresh);
        }
    }

    pub(super) fn choose_delete_phase(&self) -> StepPhase {
        // A renamed file may be in a directory that is deleted.
        match self.options.delete.when {
            DeletePhase::Before if !self.options.detect_renames => StepPhase::Clear,
            _ => StepPhase::Delete,
        }
    }

    /// Whether a rule protects the entry, or it is a backup of an earlier run or a directory for temporary files.
    fn is_protected(&self, entry: &ListingEntry<'_>) -> bool {
        entry.flags().contains(EntryFlags::PROTECTED)
            || self.options.writing.is_staging_path(&entry.path())
            || self.options.writing.backup.as_ref().is_some_and(|backup| match &backup.dir {
                None => !entry.is_dir() && entry.name().ends_with(&backup.suffix),
                Some(_) => backup.contains_path(&entry.path()),
            })
    }

    /// Why the deletions are refused.
    pub(super) fn check_delete_limit(&self) -> Option<PlanRefusal> {
        let delete = &self.options.delete;
        let deletes = self.counts.deleted;
        let of = self.destination.len() as u64 - 1;
        if let Some(path) = &self.store {
            return Some(PlanRefusal::Store { path: path.clone() });
        }
        if deletes == 0 {
            return None;
        }
        let destination = DeletionCounts { deletes, of, is_source_empty: self.source.is_empty() };
        // Without `--delete`, only entries that were named are deleted, which the limits for mistaken sources
        // are not about.
        destination.check_limit(delete, delete.force || delete.when == DeletePhase::Never)
    }
}

/// The number of deletions on one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeletionCounts {
    /// Entries that would be deleted.
    pub deletes: u64,
    /// The number of entries of that side.
    pub of: u64,
    /// The other side has no entries.
    pub is_source_empty: bool,
}

impl DeletionCounts {
    /// Why the deletions are refused; None if they are allowed. With `is_forced` only an explicit limit applies.
    pub fn check_limit(self, delete: &DeleteOptions, is_forced: bool) -> Option<PlanRefusal> {
        let Self { deletes, of, is_source_empty } = self;
        let allowed = match delete.max {
            Some(DeleteLimit::Entries(entries)) => entries,
            // `of` counts entries, so the product cannot overflow.
            Some(DeleteLimit::Percent(percent)) => of * u64::from(percent) / 100,
            None => u64::MAX,
        };
        if deletes > allowed {
            return Some(PlanRefusal::TooMany { deletes, allowed });
        }
        if is_forced || deletes == 0 {
            return None;
        }
        // An empty source is often a disk that is not mounted.
        if is_source_empty {
            return Some(PlanRefusal::EmptySource);
        }
        // In a small directory, half is a few files and changes every day.
        (deletes > FEW && deletes * 2 > of).then_some(PlanRefusal::MoreThanHalf { deletes, of })
    }
}

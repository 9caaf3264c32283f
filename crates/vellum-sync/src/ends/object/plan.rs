//! Adapting a plan to an object store, which has no directories, and whose keys exclude some names.
//!
//! Invariant: an entry that is left out because of its name counts as unread, so that nothing is deleted.

use std::collections::HashSet;

use super::ObjectEnd;
use super::tree::check_storable_path;
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId, TreeListing, UnlistedEntry};
use crate::model::options::{CompareMethod, CompareOptions};
use crate::plan::{Differences, StepAction, SyncPlan, SyncStep};

/// The objects whose times the plan depends on: those of the same path and size as a file of the other end.
#[must_use]
pub fn find_compared_objects(
    objects: &TreeListing,
    other: &TreeListing,
    compare: &CompareOptions,
) -> Vec<ListingEntryId> {
    let by_time = compare.by == CompareMethod::SizeAndTime;
    if compare.ignore_existing || !by_time && !compare.update {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut pairs = vec![(objects.root(), other.root())];
    while let Some((a, b)) = pairs.pop() {
        for (a, b) in a.children().filter_map(|a| Some((a, b.find_child(a.name())?))) {
            if a.is_dir() && b.is_dir() {
                pairs.push((a, b));
            } else if a.is_file() && b.is_file() && (compare.update || a.size() == b.size()) {
                found.push(a.id());
            }
        }
    }
    found.sort_unstable();
    found
}

/// Excludes files from a transfer whose paths cannot be keys of objects, and reports them.
pub fn withhold_unstorable_files(source: &mut TreeListing, end: &ObjectEnd) {
    let mut found = Vec::new();
    for entry in source.iter().filter(|entry| entry.is_file()) {
        let is_transferred = !entry.flags().contains(EntryFlags::WITHHELD);
        if let Err(reason) = check_storable_path(&entry.path(), end.folder_len)
            && is_transferred
        {
            found.push((entry.id(), UnlistedEntry { path: entry.path(), message: reason, vanished: false }));
        }
    }
    for (id, unlisted) in found {
        // Withheld and unlisted: the file is not uploaded, an object of its path is not deleted, and the user
        // sees the reason.
        source.add_flags(id, EntryFlags::WITHHELD);
        source.unlisted.push(unlisted);
    }
}

/// The number of source directories without a file at any depth, which cannot be stored.
#[must_use]
pub fn count_empty_directories(source: &TreeListing) -> u64 {
    let mut empty: HashSet<ListingEntryId> =
        source.iter().filter(ListingEntry::is_dir).map(|dir| dir.id()).collect();
    for entry in source.iter().filter(|entry| !entry.is_dir() || is_unread(entry)) {
        let mut next = if entry.is_dir() { Some(entry) } else { entry.parent() };
        while let Some(dir) = next.filter(|dir| empty.remove(&dir.id())) {
            next = dir.parent();
        }
    }
    empty.remove(&ListingEntryId::ROOT);
    empty.len() as u64
}

/// Whether a directory may have more entries than were listed.
fn is_unread(dir: &ListingEntry<'_>) -> bool {
    [EntryFlags::UNREAD, EntryFlags::KEEPS, EntryFlags::MOUNT].iter().any(|flag| dir.flags().contains(*flag))
}

/// Removes steps on directories from a plan, since an object store has none.
pub fn adapt_plan(plan: &mut SyncPlan, source: &TreeListing, destination: &TreeListing) {
    let is_about_dir = |step: &SyncStep| match (step.source, step.old) {
        (Some(source_id), _) => source.entry(source_id).is_dir(),
        (None, Some(old)) => destination.entry(old).is_dir(),
        (None, None) => false,
    };
    let counts = &mut plan.counts;
    for step in plan.steps.iter().filter(|step| is_about_dir(step)) {
        match step.action {
            StepAction::MakeDir => counts.made = counts.made.saturating_sub(1),
            StepAction::Delete => counts.deleted = counts.deleted.saturating_sub(1),
            StepAction::Attributes if !step.what.is_empty() && !step.what.contains(Differences::NEW) => {
                counts.attributes = counts.attributes.saturating_sub(1);
            }
            _ => {}
        }
    }
    // An object appears with its whole path, so no directory has to be created before it or removed after it.
    plan.steps.retain(|step| !is_about_dir(step));
}

//! Files that were renamed at the source: equal in size and time to one that would be deleted, and in content once both
//! were read.

use std::collections::{HashMap, HashSet};

use super::walk::{NewFile, SyncPlanner};
use super::{Differences, StepAction, StepPhase, SyncStep};
use crate::model::listing::{ListingEntry, ListingEntryId, TimeGranularity, TreeListing};

/// Smaller files are sent: that costs less than reading both.
const SIZE_MIN: u64 = 4096;

type RenameKey = (u64, i64, u32);

/// The times of both sides in the destination's resolution.
fn build_rename_key(entry: &ListingEntry<'_>, granularity: TimeGranularity) -> RenameKey {
    // A filesystem that rounds has stored another time than it was given.
    let time = granularity.truncate_time(entry.mtime());
    (entry.size(), time.secs, time.nanos)
}

fn is_rename_candidate(entry: &ListingEntry<'_>) -> bool {
    entry.is_file() && entry.size() >= SIZE_MIN
}

/// Collects files that may have been renamed: they have to be hashed on both sides.
pub(super) fn find_rename_candidates(
    source: &TreeListing,
    old: &TreeListing,
    ours: &mut Vec<ListingEntryId>,
    theirs: &mut Vec<ListingEntryId>,
) {
    let mut gone: HashMap<RenameKey, Vec<ListingEntryId>> = HashMap::new();
    // Only files that are not at the source any more can have been renamed.
    for entry in
        old.iter().filter(is_rename_candidate).filter(|entry| source.find_path(&entry.path()).is_none())
    {
        gone.entry(build_rename_key(&entry, old.granularity)).or_default().push(entry.id());
    }
    if gone.is_empty() {
        return;
    }
    for entry in source.iter().filter(is_rename_candidate) {
        let Some(like) = gone.get(&build_rename_key(&entry, old.granularity)) else { continue };
        // Candidates are hashed on both sides, so a file that has a counterpart is left out.
        if old.find_path(&entry.path()).is_none() {
            ours.push(entry.id());
            theirs.extend(like);
        }
    }
}

impl SyncPlanner<'_> {
    /// Replaces writes by renames of files with the same content that would be deleted.
    pub(super) fn find_renames(&mut self) {
        // By content: equal size and time selected the candidates, but only the hash proves a rename.
        let mut gone: HashMap<(u64, [u8; 32]), Vec<usize>> = HashMap::new();
        for (place, step) in self.deletes.iter().enumerate() {
            let Some(old) = step.old.map(|id| self.destination.entry(id)) else { continue };
            if let (true, Some(digest)) =
                (is_rename_candidate(&old), self.destination.content_digest(old.id()))
            {
                gone.entry((old.size(), *digest)).or_default().push(place);
            }
        }
        if gone.is_empty() {
            return;
        }
        let mut renamed = HashSet::new();
        let mut fresh = std::mem::take(&mut self.fresh_files);
        fresh.retain(|new| self.plan_rename(new, &mut gone, &mut renamed).is_none());
        self.fresh_files = fresh;
        // All at once: with many renames, removing one after the other would move the rest as often.
        let mut place = 0;
        self.deletes.retain(|_| {
            place += 1;
            !renamed.contains(&(place - 1))
        });
    }

    fn plan_rename(
        &mut self,
        new: &NewFile,
        gone: &mut HashMap<(u64, [u8; 32]), Vec<usize>>,
        renamed: &mut HashSet<usize>,
    ) -> Option<()> {
        let entry = self.source.entry(new.source);
        let digest = self.source.content_digest(new.source)?;
        let place = gone.get_mut(&(entry.size(), *digest))?.pop()?;
        let old = self.deletes.get(place)?.old?;
        let what = super::compare_attributes(&entry, &self.destination.entry(old), self.options);
        let step = SyncStep {
            phase: StepPhase::Rename,
            action: StepAction::Rename,
            what: what.union(Differences::NEW),
            source: Some(new.source),
            old: Some(old),
            other: None,
        };
        self.renames.push(step);
        renamed.insert(place);
        self.counts.renamed += 1;
        self.counts.deleted -= 1;
        self.mark_touched(new.pair);
        Some(())
    }
}

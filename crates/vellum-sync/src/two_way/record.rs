//! Makes the archive after a run.
//!
//! Invariant: an entry is recorded as one side had it when the plan was made, and only if the other side was seen to
//! have the same afterwards; an entry that changed on either side meanwhile differs from its record, and counts as
//! changed in the next run.

use std::collections::HashSet;

use crate::model::listing::{ListingEntry, ListingEntryId, ListingError, TreeListing};
use crate::model::options::{DeleteOptions, SyncOptions};
use crate::plan::{Differences, StepPhase, SyncPlan};

use super::TwoWaySide;
use super::archive::{AgreedEntry, TwoWayArchive};
use super::decide::{DIR_BITS, EntryCourse};
use super::merge::MergedNode;
use super::state::{EntryFacts, EntryState};

/// Longest tick of a filesystem's clock, seconds: FAT's. It also covers file servers whose clocks are a little behind.
const TICK: i64 = 2;

/// The facts from which the archive is made.
pub(super) struct RunAftermath<'a> {
    /// The archive that the plan was made with.
    pub archive: &'a TwoWayArchive,
    /// The listings that the plan was made with.
    pub before: [&'a TreeListing; 2],
    /// New listings of the sides that were written to.
    pub after: [Option<&'a TreeListing>; 2],
    /// The nodes of the plan, and the decisions for them.
    pub nodes: &'a [MergedNode],
    pub courses: &'a [[EntryCourse; 2]],
    pub options: &'a SyncOptions,
}

impl RunAftermath<'_> {
    /// The record of each node.
    pub fn draft_records(&self) -> Vec<Option<AgreedEntry>> {
        let unlike = TwoWaySide::BOTH.map(|from| self.find_unequal_entries(from));
        let mut agreed: Vec<Option<AgreedEntry>> = Vec::with_capacity(self.nodes.len());
        for place in 0..self.nodes.len() {
            agreed.push(self.record_node(place, &unlike));
        }
        agreed
    }

    /// Drafts of files that were written so shortly before their listing that a later edit may leave the same size and
    /// time, with their numbers in the last listing of each side. The hash of the content that both sides have now is
    /// recorded with them.
    pub fn find_unsure_drafts(&self, draft: &[Option<AgreedEntry>]) -> Vec<(usize, [ListingEntryId; 2])> {
        let known = |place: usize| {
            let archived = self.nodes.get(place).and_then(|node| node.archived);
            archived.map(|id| self.archive.agreed_entry(self.archive.tree.entry(id)))
        };
        let unsure = draft.iter().enumerate().filter(|(place, agreed)| {
            agreed.as_ref().is_some_and(|agreed| agreed.unsure && known(*place).as_ref() != Some(agreed))
        });
        let find = |(place, _): (usize, &Option<AgreedEntry>)| {
            let node = self.nodes.get(place)?;
            let path = TwoWaySide::BOTH.into_iter().find_map(|which| {
                which.select_from(&node.sides).map(|id| which.select_from(&self.before).entry(id).path())
            })?;
            let now = |which: TwoWaySide| {
                self.latest_listing(which).find_path(&path).filter(ListingEntry::is_file).map(|now| now.id())
            };
            Some((place, [now(TwoWaySide::First)?, now(TwoWaySide::Second)?]))
        };
        unsure.filter_map(find).collect()
    }

    /// The last listing of a side.
    pub fn latest_listing(&self, which: TwoWaySide) -> &TreeListing {
        let before: &&TreeListing = which.select_from(&self.before);
        which.select_from(&self.after).unwrap_or(before)
    }

    /// Makes the new archive.
    pub fn record_archive(&self, mut draft: Vec<Option<AgreedEntry>>) -> Result<TwoWayArchive, ListingError> {
        self.add_implied_dirs(&mut draft);
        self.build_archive(draft)
    }

    /// Entries that were to be copied to the other side, and that it does not have.
    fn find_unequal_entries(&self, from: TwoWaySide) -> HashSet<ListingEntryId> {
        let Some(after) = from.opposite().select_from(&self.after) else { return HashSet::new() };
        let mut options =
            SyncOptions { delete: DeleteOptions::default(), detect_renames: false, ..self.options.clone() };
        // The receiving filesystem may have rounded the times that it was given.
        options.compare.widen_tolerance(after.granularity.tolerance_nanos());
        let before: &&TreeListing = from.select_from(&self.before);
        // What arrived is checked with the planner itself: an entry is equal if a further run would have no
        // step for it.
        let plan = SyncPlan::new(before, after, &options);
        let counts = |step: &&crate::plan::SyncStep| {
            // Times of directories change while other entries are written and are not compared between the
            // sides.
            step.phase != StepPhase::Finish
                || step.what.contains(Differences::NEW)
                || step.what.0 & DIR_BITS.0 != 0
        };
        plan.steps.iter().filter(counts).filter_map(|step| step.source).collect()
    }

    /// Makes the record of a node.
    fn record_node(&self, place: usize, unlike: &[HashSet<ListingEntryId>; 2]) -> Option<AgreedEntry> {
        let node = self.nodes.get(place).filter(|_| place > 0)?;
        let courses = self.courses.get(place)?;
        let known = || node.archived.map(|id| self.archive.agreed_entry(self.archive.tree.entry(id)));
        let entry = |which: TwoWaySide| {
            which.select_from(&node.sides).map(|id| which.select_from(&self.before).entry(id))
        };
        // Recorded as planned, not as found afterwards: an edit made during the run must differ from the
        // record, or the next run would miss it.
        if *courses == [EntryCourse::Agreed; 2] {
            let first = entry(TwoWaySide::First)?;
            let second = entry(TwoWaySide::Second)?;
            return Some(self.record_agreed(node, first, [first, second]));
        }
        if let Some(from) =
            TwoWaySide::BOTH.into_iter().find(|which| *which.select_from(courses) == EntryCourse::Across)
        {
            let source = entry(from)?;
            let arrived = (*from.opposite().select_from(&self.after))
                .and_then(|after| after.find_path(&source.path()))
                .filter(|arrived| {
                    arrived.kind() == source.kind() && !from.select_from(unlike).contains(&source.id())
                });
            // The entry did not arrive, or not like this. The older record stays, so that the next run sees
            // the same change again.
            let Some(arrived) = arrived else { return known() };
            let both = if from == TwoWaySide::First { [source, arrived] } else { [arrived, source] };
            return Some(self.record_agreed(node, source, both));
        }
        if let Some(side) =
            TwoWaySide::BOTH.into_iter().find(|which| *which.select_from(courses) == EntryCourse::Gone)
        {
            let path = entry(side)?.path();
            // Without a record, an entry that is still there would be new in the next run and come back on
            // both sides.
            let is_gone = side.select_from(&self.after).is_some_and(|after| after.find_path(&path).is_none());
            return if is_gone { None } else { known() };
        }
        known()
    }

    fn record_agreed(
        &self,
        node: &MergedNode,
        entry: ListingEntry<'_>,
        both: [ListingEntry<'_>; 2],
    ) -> AgreedEntry {
        let seen = EntryFacts::from_entry(entry);
        let [first, second] = both.map(EntryState::from_entry);
        let stamps = both.map(|entry| entry.listing().change_stamp(entry.id()));
        // Attributes that are this young can stand for two contents, because a second edit in the same tick
        // of the clock changes none of them. The next run reads the file.
        let unsure = TwoWaySide::BOTH
            .into_iter()
            .any(|which| self.is_recently_written(which, which.select_from(&both)));
        // A hash from an earlier run still holds if nothing has changed since.
        let earlier = node.archived.and_then(|id| self.archive.entry_facts(self.archive.tree.entry(id)));
        let earlier = earlier.filter(|[old, _]| {
            (old.state.kind, old.state.size, old.state.mtime) == (first.kind, first.size, first.mtime)
        });
        let digest = seen.digest.or(earlier.and_then(|[old, _]| old.digest)).copied();
        AgreedEntry { first, second, target: seen.target.into(), digest, stamps, unsure, implied: false }
    }

    /// Whether a file was written so shortly before its side was listed that an edit since then may leave the same size
    /// and time.
    fn is_recently_written(&self, which: TwoWaySide, entry: &ListingEntry<'_>) -> bool {
        let begun = which.select_from(&self.before).begun.filter(|_| entry.is_file() && entry.size() > 0);
        begun.is_some_and(|begun| entry.mtime().secs >= begun.secs.saturating_sub(TICK))
    }

    /// Adds the directories above recorded entries to the archive, whether or not they were agreed on.
    fn add_implied_dirs(&self, agreed: &mut [Option<AgreedEntry>]) {
        // From the deepest nodes upwards, so that one entry adds all directories above it.
        for place in (1..self.nodes.len()).rev() {
            let parent = self.nodes.get(place).map_or(0, |node| node.parent);
            let is_there = agreed.get(place).is_some_and(Option::is_some);
            match agreed.get_mut(parent) {
                Some(above @ None) if is_there => *above = Some(AgreedEntry::new_implied()),
                _ => {}
            }
        }
    }

    fn build_archive(&self, mut agreed: Vec<Option<AgreedEntry>>) -> Result<TwoWayArchive, ListingError> {
        let mut archive = TwoWayArchive::new(self.archive.pair);
        let mut ids: Vec<Option<ListingEntryId>> = vec![None; self.nodes.len()];
        for (place, node) in self.nodes.iter().enumerate() {
            let dir = if place == 0 { Some(ListingEntryId::ROOT) } else { ids.get(place).copied().flatten() };
            let Some(dir) = dir.filter(|dir| archive.tree.entry(*dir).is_dir()) else { continue };
            // Children of a node are consecutive and ordered by name, which is what the listing requires.
            let children: Vec<usize> = (node.first..node.first + node.count)
                .filter(|child| agreed.get(*child).is_some_and(Option::is_some))
                .collect();
            let names: Vec<&[u8]> = children.iter().map(|child| self.node_name(*child)).collect();
            let entries: Vec<(&[u8], AgreedEntry)> = names
                .into_iter()
                .zip(&children)
                .filter_map(|(name, child)| Some((name, agreed.get_mut(*child)?.take()?)))
                .collect();
            let first = archive.attach_entries(dir, &entries)?;
            for (offset, child) in children.into_iter().enumerate() {
                if let Some(id) = ids.get_mut(child) {
                    *id = Some(first.offset_by(u32::try_from(offset).unwrap_or(u32::MAX)));
                }
            }
        }
        Ok(archive)
    }

    fn node_name(&self, place: usize) -> &[u8] {
        let Some(node) = self.nodes.get(place) else { return &[] };
        let of = |which: TwoWaySide| {
            which.select_from(&node.sides).map(|id| which.select_from(&self.before).entry(id).name())
        };
        TwoWaySide::BOTH.into_iter().find_map(of).unwrap_or_default()
    }
}

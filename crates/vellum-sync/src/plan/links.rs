//! Hard links.
//!
//! One name of each file leads: its content is written or stays, and the other names are linked to it. If the
//! destination has the content under one of the names already, that one leads, so that new names cost no copy. A name
//! under which the destination's entry is left alone neither leads nor follows.

use std::collections::HashMap;

use super::walk::{DependentName, SyncPlanner};
use super::{Differences, StepAction, StepPhase, SyncStep, compare};
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId};

/// The leading names, by link group of the source.
pub(super) type LinkLeaders = HashMap<u32, ListingEntryId>;

impl SyncPlanner<'_> {
    /// Chooses a leading name for every file with several names.
    pub(super) fn choose_leaders(&self) -> LinkLeaders {
        let mut best: HashMap<u32, (bool, Vec<u8>, ListingEntryId)> = HashMap::new();
        let linked = self.source.iter().filter(|entry| !entry.flags().contains(EntryFlags::WITHHELD));
        for (entry, group) in linked.filter_map(|entry| Some((entry, entry.link_group()?))) {
            let path = entry.path();
            let old = self.destination.find_path(&path);
            // The destination keeps its own content under this name, so no other name can be linked to it.
            if old.is_some_and(|old| self.is_left_unchanged(&entry, &old)) {
                continue;
            }
            let fits = old.is_some_and(|old| {
                old.kind() == entry.kind() && compare::compare_content(&entry, &old, self.options).is_empty()
            });
            // Ordered by whether content has to be written, then by path: the choice is the same in each run.
            let candidate = (!fits, path, entry.id());
            match best.get(&group) {
                Some(known) if (known.0, &known.1) <= (candidate.0, &candidate.1) => {}
                _ => {
                    best.insert(group, candidate);
                }
            }
        }
        best.into_iter().map(|(group, (_, _, id))| (group, id)).collect()
    }

    /// The leading name of an entry's file, if it is another entry.
    pub(super) fn find_leader(&self, entry: &ListingEntry<'_>) -> Option<ListingEntryId> {
        let group = entry.link_group().filter(|_| self.options.preserve.hard_links)?;
        self.leaders.get(&group).copied().filter(|leader| *leader != entry.id())
    }

    /// Whether the destination's file also has a name of another source file: then this name has to be separated from
    /// it.
    pub(super) fn is_wrongly_shared(&mut self, source: &ListingEntry<'_>, old: &ListingEntry<'_>) -> bool {
        let Some(group) = old.link_group().filter(|_| self.options.preserve.hard_links) else { return false };
        let owner = source.link_group().map_or((false, source.id().as_u32()), |group| (true, group));
        // The first entry of the source that is planned keeps the file. Writing through this name would
        // change it there.
        *self.claims.entry(group).or_insert(owner) != owner
    }

    /// Links the names that follow, once the leading names are planned.
    pub(super) fn link_followers(&mut self) {
        for DependentName { source, old, pair } in std::mem::take(&mut self.followers) {
            let entry = self.source.entry(source);
            let Some(leader) = self.find_leader(&entry) else { continue };
            // Leaders are planned before this, so it is known by now whether the content stays, is written or
            // is left out.
            let stays = self.stayed.get(&leader).copied();
            if stays.is_none() && !self.made.contains(&leader) {
                // The leading name is left out: this one leads from here on.
                let group = entry.link_group().unwrap_or_default();
                self.leaders.insert(group, source);
                let old = old.map(|id| self.destination.entry(id));
                match old.filter(|old| old.kind() == entry.kind()) {
                    Some(old) => self.plan_same_kind(&entry, &old, pair),
                    None => self.plan_creation(&entry, old, Differences::NEW, pair),
                }
                continue;
            }
            let group_of = |id: ListingEntryId| self.destination.entry(id).link_group();
            self.record_moved_entry(&entry, old.map(|old| self.destination.entry(old)).as_ref());
            // If the names are one file already, nothing has to be done.
            let linked = match (stays, old) {
                (Some(stays), Some(old)) => group_of(stays).is_some() && group_of(stays) == group_of(old),
                _ => false,
            };
            if linked {
                continue;
            }
            let what = Differences::CONTENT.union_if(Differences::NEW, old.is_none());
            let phase = StepPhase::Links;
            let action = StepAction::Link;
            let source = Some(source);
            self.links.push(SyncStep { phase, action, what, source, old, other: Some(leader) });
            self.counts.made += u64::from(old.is_none());
            self.mark_touched(pair);
        }
    }
}

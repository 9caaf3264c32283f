//! From what changed between snapshots to the periods of names.

use std::collections::HashMap;

use super::{LinkChange, NamedFile, SnapshotChanges};
use crate::diff::DirectoryLink;
use crate::error::Result;
use crate::history::{HistoryEntry, find_nearest_ancestors};
use crate::volume::Volume;

/// A period whose path is still to be found: places in the history.
pub(super) struct LinkPeriod {
    pub(super) link: DirectoryLink,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) is_current: bool,
    pub(super) has_other_content: bool,
}

/// A name that a snapshot has.
#[derive(Clone, Copy)]
struct PresentName {
    file: NamedFile,
    /// Where it was first, with this content.
    first: usize,
    /// It had another content before.
    follows_other_content: bool,
}

impl PresentName {
    /// Its period, if `last` is the last snapshot of that.
    fn end_period(self, link: DirectoryLink, last: usize, end: PeriodEnd) -> LinkPeriod {
        LinkPeriod {
            link,
            first: self.first,
            last,
            is_current: end == PeriodEnd::Open,
            has_other_content: self.follows_other_content || end == PeriodEnd::OtherContent,
        }
    }
}

/// What is behind the last snapshot of a period.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeriodEnd {
    /// Nothing that was searched.
    Open,
    /// The name is not there.
    Absence,
    /// The name has another content.
    OtherContent,
}

/// The names that a snapshot has.
type PresentNames = HashMap<DirectoryLink, PresentName>;

/// The names of snapshots whose children are still to come, and how many of these there are.
#[derive(Default)]
struct WaitingNames(HashMap<usize, (PresentNames, usize)>);

impl WaitingNames {
    fn keep_names(&mut self, place: usize, names: PresentNames, children: usize) {
        self.0.insert(place, (names, children));
    }

    /// The names of a snapshot, for one of its children. Copied only where it branches.
    fn take_names(&mut self, place: usize) -> PresentNames {
        if let Some((names, left)) = self.0.get_mut(&place)
            && *left > 1
        {
            *left -= 1;
            return names.clone();
        }
        self.0.remove(&place).map(|(names, _)| names).unwrap_or_default()
    }
}

/// A snapshot while its names are found.
struct TracedSnapshot<'a> {
    place: usize,
    /// Its first parent.
    before: Option<usize>,
    /// What it has, as far as that is known.
    present: PresentNames,
    /// What its other parents had.
    merged: Vec<(usize, PresentNames)>,
    periods: &'a mut Vec<LinkPeriod>,
}

impl TracedSnapshot<'_> {
    fn apply_changes(&mut self, changes: SnapshotChanges) {
        for LinkChange { link, file } in changes.links {
            match file {
                Some(file) => self.enter_name(link, file),
                None => self.remove_name(link),
            }
        }
        if changes.several_names.is_empty() {
            return;
        }
        // Nothing lists the names of a file: those that are wanted are looked through.
        let changed: Vec<_> = self
            .present
            .iter()
            .filter_map(|(link, name)| {
                let content = *changes.several_names.get(&name.file.ino)?;
                Some((link.clone(), NamedFile { content, ..name.file }))
            })
            .collect();
        changed.into_iter().for_each(|(link, file)| self.enter_name(link, file));
    }

    fn remove_name(&mut self, link: DirectoryLink) {
        if let (Some(name), Some(last)) = (self.present.remove(&link), self.before) {
            self.periods.push(name.end_period(link, last, PeriodEnd::Absence));
        }
    }

    fn enter_name(&mut self, link: DirectoryLink, file: NamedFile) {
        let known = self.present.get(&link).copied();
        // A file that another one of equal content replaced continues the period: what counts is what the name shows.
        if let Some(known) = known.filter(|known| known.file.content == file.content) {
            self.present.insert(link, PresentName { file, ..known });
            return;
        }
        // A merge that takes a content over from another parent continues the period that it had there.
        let of_others = self.merged.iter().filter_map(|(_, names)| names.get(&link));
        let same = of_others.filter(|name| name.file.content == file.content).min_by_key(|name| name.first);
        let new = PresentName { file, first: self.place, follows_other_content: known.is_some() };
        let name = same.map_or(new, |name| PresentName { file, ..*name });
        if let (Some(known), Some(last)) = (known, self.before) {
            self.periods.push(known.end_period(link.clone(), last, PeriodEnd::OtherContent));
        }
        self.present.insert(link, name);
    }

    /// What a merged line had, and the merge has not, ended with that line.
    fn end_merged_lines(&mut self, is_continued: &[bool]) {
        for (last, names) in std::mem::take(&mut self.merged) {
            // The line goes on beside the merge: its own next snapshot ends what it had.
            if is_continued[last] {
                continue;
            }
            for (link, name) in names {
                let end = match self.present.get(&link) {
                    None => PeriodEnd::Absence,
                    Some(own) if own.file.content != name.file.content => PeriodEnd::OtherContent,
                    Some(_) => continue,
                };
                self.periods.push(name.end_period(link, last, end));
            }
        }
    }
}

/// Snapshots and how they descend from each other: parents before children.
pub(super) struct SearchedHistory {
    pub(super) entries: Vec<HistoryEntry>,
    /// Of each one the nearest ancestors that are searched, that on the first parent's line first.
    pub(super) parents: Vec<Vec<usize>>,
    /// How many of the others have each one among these.
    children: Vec<usize>,
    /// Whether it is the first of these for another one.
    is_continued: Vec<bool>,
}

impl SearchedHistory {
    pub(super) fn new(volume: &Volume, snapshots: &[HistoryEntry]) -> Result<Self> {
        let mut entries = snapshots.to_vec();
        // A counter is above those of all ancestors.
        entries.sort_unstable_by_key(|entry| (entry.record.counter, entry.record.time, entry.id));
        let places: HashMap<_, _> =
            entries.iter().enumerate().map(|(place, entry)| (entry.id, place)).collect();
        let mut ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        ids.sort_unstable();
        let mut children = vec![0; entries.len()];
        let mut is_continued = vec![false; entries.len()];
        let mut parents = Vec::with_capacity(entries.len());
        for entry in &entries {
            let nearest = find_nearest_ancestors(&volume.catalog, &ids, entry)?;
            let nearest: Vec<_> = nearest.iter().filter_map(|id| places.get(id).copied()).collect();
            nearest.iter().for_each(|parent| children[*parent] += 1);
            if let Some(parent) = nearest.first() {
                is_continued[*parent] = true;
            }
            parents.push(nearest);
        }
        Ok(Self { entries, parents, children, is_continued })
    }

    /// Turns what changed from each first parent to its child into periods.
    pub(super) fn trace_periods(&self, changes: Vec<SnapshotChanges>) -> Vec<LinkPeriod> {
        let mut periods = Vec::new();
        let mut waiting = WaitingNames::default();
        for (place, changes) in changes.into_iter().enumerate() {
            let parents = &self.parents[place];
            let before = parents.first().copied();
            let mut snapshot = TracedSnapshot {
                place,
                before,
                present: before.map(|parent| waiting.take_names(parent)).unwrap_or_default(),
                merged: parents.iter().skip(1).map(|parent| (*parent, waiting.take_names(*parent))).collect(),
                periods: &mut periods,
            };
            snapshot.apply_changes(changes);
            snapshot.end_merged_lines(&self.is_continued);
            let present = snapshot.present;
            match self.children[place] {
                0 => {
                    let ends = |(link, name): (_, PresentName)| name.end_period(link, place, PeriodEnd::Open);
                    periods.extend(present.into_iter().map(ends));
                }
                children => waiting.keep_names(place, present, children),
            }
        }
        periods
    }
}

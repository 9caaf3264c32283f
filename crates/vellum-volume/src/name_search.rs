//! Finds names in a history: which snapshots have a name, from when and until when.
//!
//! A snapshot without an ancestor among those that are searched is read as a whole, and of each other one what differs from
//! its first parent, so that the work grows with what changed. All threads compare.
//!
//! Invariant: a name counts as there in a snapshot if the directory has an entry of that name, whichever file it is: a file
//! that was replaced by another one of its name was there all the time. A branch begins with what its origin had, and a
//! merge goes on with what either side had.

use std::collections::HashMap;

use rayon::prelude::*;
use vellum_map::{KeySpan, MapChange, MapRoot, diff_maps, read_range};
use vellum_types::{DecodeError, InodeAttr, MapKeyRef};

use crate::diff::DirectoryLink;
use crate::error::{Result, VolumeError};
use crate::history::{HistoryEntry, find_nearest_ancestors};
use crate::volume::Volume;

/// A time in which a name was there without a break.
#[derive(Debug, Clone)]
pub struct NamePeriod {
    /// Its path from the root, in the last snapshot that has it.
    pub path: Vec<u8>,
    /// The file of that name in the last snapshot that has it.
    pub attr: InodeAttr,
    /// The first snapshot that has it.
    pub first: HistoryEntry,
    /// The last snapshot that has it.
    pub last: HistoryEntry,
    /// No snapshot that was searched descends from the last that has it.
    pub is_current: bool,
}

/// An entry that appears or goes from one snapshot to the next.
struct LinkChange {
    link: DirectoryLink,
    is_there: bool,
}

/// A period whose path is still to be found: places in the history.
struct LinkPeriod {
    link: DirectoryLink,
    first: usize,
    last: usize,
    is_current: bool,
}

/// The names that a snapshot has, and where each was first.
type PresentNames = HashMap<DirectoryLink, usize>;

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

/// Snapshots and how they descend from each other: parents before children.
struct SearchedHistory {
    entries: Vec<HistoryEntry>,
    /// Of each one the nearest ancestors that are searched, that on the first parent's line first.
    parents: Vec<Vec<usize>>,
    /// How many of the others have each one among these.
    children: Vec<usize>,
    /// Whether it is the first of these for another one.
    is_continued: Vec<bool>,
}

impl SearchedHistory {
    fn new(volume: &Volume, snapshots: &[HistoryEntry]) -> Result<Self> {
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
    fn trace_periods(&self, changes: Vec<Vec<LinkChange>>) -> Vec<LinkPeriod> {
        let mut periods = Vec::new();
        let mut waiting = WaitingNames::default();
        for (place, changes) in changes.into_iter().enumerate() {
            let parents = &self.parents[place];
            let before = parents.first().copied();
            let mut present = before.map(|parent| waiting.take_names(parent)).unwrap_or_default();
            let merged: Vec<_> =
                parents.iter().skip(1).map(|parent| (*parent, waiting.take_names(*parent))).collect();
            for LinkChange { link, is_there } in changes {
                if is_there {
                    let there = merged.iter().filter_map(|(_, names)| names.get(&link)).min();
                    let first = there.copied().unwrap_or(place);
                    present.insert(link, first);
                } else if let (Some(first), Some(last)) = (present.remove(&link), before) {
                    periods.push(LinkPeriod { link, first, last, is_current: false });
                }
            }
            // What a merged line had, and the merge has not, ended with that line.
            for (last, names) in merged.into_iter().filter(|(parent, _)| !self.is_continued[*parent]) {
                let ended = names.into_iter().filter(|(link, _)| !present.contains_key(link));
                periods.extend(ended.map(|(link, first)| LinkPeriod {
                    link,
                    first,
                    last,
                    is_current: false,
                }));
            }
            match self.children[place] {
                0 => {
                    let ends = |(link, first)| LinkPeriod { link, first, last: place, is_current: true };
                    periods.extend(present.into_iter().map(ends));
                }
                children => waiting.keep_names(place, present, children),
            }
        }
        periods
    }
}

impl Volume {
    /// Returns the names that `is_wanted` accepts in some snapshots, sorted by path and time. Fails if a node of a tree cannot
    /// be read, and with [`VolumeError::BadTree`] if a tree contradicts itself.
    pub fn find_names(
        &self,
        snapshots: &[HistoryEntry],
        is_wanted: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<Vec<NamePeriod>> {
        let history = SearchedHistory::new(self, snapshots)?;
        let root = |place: usize| history.entries[place].record.root;
        let changes = (0..history.entries.len())
            .into_par_iter()
            .map(|place| match history.parents[place].first() {
                Some(parent) => self.compare_links(root(*parent), root(place), &is_wanted),
                None => self.list_links(root(place), &is_wanted),
            })
            .collect::<Result<_>>()?;
        let mut found: Vec<_> = history
            .trace_periods(changes)
            .into_par_iter()
            .map(|period| self.resolve_period(&history.entries, period))
            .collect::<Result<_>>()?;
        found.sort_by(|a, b| {
            a.path.cmp(&b.path).then_with(|| a.first.cmp(&b.first)).then_with(|| b.last.cmp(&a.last))
        });
        // Branches have in common what was there where they began.
        found.dedup_by(|a, b| {
            let is_same_end = a.last == b.last || (a.is_current && b.is_current);
            a.path == b.path && a.first == b.first && is_same_end
        });
        Ok(found)
    }

    /// Returns the wanted names of a tree.
    fn list_links(&self, root: MapRoot, is_wanted: &impl Fn(&[u8]) -> bool) -> Result<Vec<LinkChange>> {
        let tree = self.open_tree(root);
        let mut range = read_range(tree.nodes(), &root, KeySpan::all_keys())?;
        let mut links = Vec::new();
        while let Some((key, _)) = range.next_entry()? {
            links.extend(wanted_link(key, is_wanted)?.map(|link| LinkChange { link, is_there: true }));
        }
        Ok(links)
    }

    /// Returns the wanted names that only one of two trees has.
    fn compare_links(
        &self,
        before: MapRoot,
        after: MapRoot,
        is_wanted: &impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<LinkChange>> {
        let tree = self.open_tree(after);
        let mut changes = Vec::new();
        for change in diff_maps(tree.nodes(), &before, &after) {
            let MapChange { key, before, after } = change?;
            // The entry of a file that was replaced by another one stays.
            if before.is_some() == after.is_some() {
                continue;
            }
            if let Some(link) = wanted_link(key.as_bytes(), is_wanted)? {
                changes.push(LinkChange { link, is_there: after.is_some() });
            }
        }
        Ok(changes)
    }

    fn resolve_period(&self, entries: &[HistoryEntry], period: LinkPeriod) -> Result<NamePeriod> {
        let LinkPeriod { link: (dir, name), first, last, is_current } = period;
        let tree = self.open_tree(entries[last].record.root);
        let missing = || VolumeError::BadTree(format!("directory {} has lost an entry", dir.0));
        let dentry = tree.lookup_dentry(dir, &name)?.ok_or_else(missing)?;
        Ok(NamePeriod {
            path: tree.entry_path(dir, &name)?,
            attr: tree.expect_inode_attr(dentry.ino)?,
            first: entries[first].clone(),
            last: entries[last].clone(),
            is_current,
        })
    }
}

/// The name that a key stands for, if it is an entry of a directory, and wanted.
fn wanted_link(key: &[u8], is_wanted: &impl Fn(&[u8]) -> bool) -> Result<Option<DirectoryLink>> {
    let wrong = |error: DecodeError| VolumeError::BadTree(format!("a key of the map: {error}"));
    match MapKeyRef::parse(key).map_err(wrong)? {
        MapKeyRef::Dentry(dir, name) if is_wanted(name) => Ok(Some((dir, name.to_vec()))),
        MapKeyRef::Dentry(..) | MapKeyRef::Attr(_) | MapKeyRef::Xattr(..) | MapKeyRef::Extent(..) => Ok(None),
    }
}

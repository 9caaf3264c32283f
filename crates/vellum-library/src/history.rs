//! The history by page: snapshots with what they are called, what was said about them, and lanes beside them.

use std::collections::{BTreeMap, HashMap};

use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::VolumeError;
use vellum_volume::annotation::SnapshotAnnotation;
use vellum_volume::history::{AncestorWalk, HistoryEntry, find_nearest_ancestors, list_history};
use vellum_volume::versions::{HistoryStep, PathHistory};

use crate::error::Result;
use crate::lanes::{HistoryLanes, LaneStep};
use crate::volume::Volume;

/// What is asked about the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only ancestors of this worktree's state; None: all snapshots of the volume.
    pub worktree: Option<String>,
    /// Only those after this one in the list, which are older.
    pub after: Option<SnapshotId>,
    /// At most so many.
    pub limit: usize,
    /// Only those that changed something at or under this path.
    pub path: Option<Vec<u8>>,
    /// Only those whose note contains this, ignoring case.
    pub grep: Option<String>,
    /// Only those with this tag.
    pub tag: Option<String>,
    /// Only those made at this moment or later.
    pub from: Option<UnixTime>,
    /// Only those made at this moment or before.
    pub to: Option<UnixTime>,
}

impl HistoryQuery {
    /// The first snapshots of everything.
    #[must_use]
    pub fn first_rows(limit: usize) -> Self {
        Self { worktree: None, after: None, limit, path: None, grep: None, tag: None, from: None, to: None }
    }

    /// Whether rows are left out between others, so that no line leads from each to the next.
    fn has_filter(&self) -> bool {
        self.path.is_some()
            || self.grep.is_some()
            || self.tag.is_some()
            || self.from.is_some()
            || self.to.is_some()
    }
}

/// A snapshot in a list.
#[derive(Debug, Clone)]
pub struct HistoryRow {
    /// The snapshot.
    pub entry: HistoryEntry,
    /// What it is called, and what was said about it.
    pub labels: SnapshotLabels,
    /// What stands beside it; None: the list is filtered.
    pub lane: Option<LaneStep>,
}

/// What a snapshot is called, and what was said about it after it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotLabels {
    /// Its tags.
    pub tags: Vec<String>,
    /// The worktrees that stand on it.
    pub heads: Vec<String>,
    /// The note that it was given last.
    pub note: String,
    /// Its properties.
    pub properties: BTreeMap<String, String>,
}

/// A part of the history, newest first.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// Its snapshots.
    pub rows: Vec<HistoryRow>,
    /// Whether older ones follow.
    pub more: bool,
}

/// The labels of all snapshots of a volume.
struct LabelIndex {
    tags: HashMap<SnapshotId, Vec<String>>,
    heads: HashMap<SnapshotId, Vec<String>>,
    annotations: HashMap<SnapshotId, SnapshotAnnotation>,
}

impl LabelIndex {
    fn load(volume: &vellum_volume::Volume) -> Result<Self> {
        // Refs of three kinds are read below, all from one listing.
        let _listing = volume.refs.share_listing()?;
        let mut tags: HashMap<_, Vec<_>> = HashMap::new();
        // A damaged ref must not hide the others: it has no label here, and 'vellum verify' reports it.
        for (name, id) in volume.list_readable_tags()?.0 {
            tags.entry(id).or_default().push(name);
        }
        let mut heads: HashMap<_, Vec<_>> = HashMap::new();
        for (name, head) in volume.list_readable_worktrees()?.0 {
            if let Some(id) = head.head {
                heads.entry(id).or_default().push(name);
            }
        }
        let annotations = volume.list_readable_annotations()?.0.into_iter();
        let annotations = annotations.filter_map(|(id, annotation)| Some((id.parse().ok()?, annotation)));
        Ok(Self { tags, heads, annotations: annotations.collect() })
    }

    fn note_of<'a>(&'a self, entry: &'a HistoryEntry) -> &'a str {
        let later = self.annotations.get(&entry.id).and_then(SnapshotAnnotation::note);
        later.and_then(|note| note.value.as_deref()).unwrap_or(&entry.record.note)
    }

    fn labels_of(&self, entry: &HistoryEntry) -> SnapshotLabels {
        let annotation = self.annotations.get(&entry.id);
        let properties = annotation.into_iter().flat_map(SnapshotAnnotation::properties);
        SnapshotLabels {
            tags: self.tags.get(&entry.id).cloned().unwrap_or_default(),
            heads: self.heads.get(&entry.id).cloned().unwrap_or_default(),
            note: self.note_of(entry).into(),
            properties: properties
                .filter_map(|(name, field)| Some((name.into(), field.value.clone()?)))
                .collect(),
        }
    }

    fn matches(&self, query: &HistoryQuery, entry: &HistoryEntry) -> bool {
        let contains = |text: &String| self.note_of(entry).to_lowercase().contains(&text.to_lowercase());
        let is_tagged = |tag: &String| self.tags.get(&entry.id).is_some_and(|tags| tags.contains(tag));
        query.grep.as_ref().is_none_or(contains)
            && query.tag.as_ref().is_none_or(is_tagged)
            && query.from.is_none_or(|from| entry.record.time >= from)
            && query.to.is_none_or(|to| entry.record.time <= to)
    }
}

/// Snapshots, newest first.
type EntryWalk<'a> = Box<dyn Iterator<Item = vellum_volume::Result<HistoryEntry>> + Send + 'a>;

impl Volume {
    /// Returns a part of the history. Fails if the snapshot after which it is to begin is not in the list.
    pub fn history(&self, query: &HistoryQuery) -> Result<HistoryPage> {
        let volume = self.inner();
        // Asked for now: others may have made some, and forgotten some, since what was listed last.
        let ids = volume.catalog.list_ids_anew()?;
        let labels = LabelIndex::load(volume)?;
        let entries = self.walk_history(query.worktree.as_deref())?;
        // An error matches every query: it must come through, and end the list.
        let is_wanted =
            |entry: &HistoryEntry| ids.binary_search(&entry.id).is_ok() && labels.matches(query, entry);
        let matching = entries.filter(|entry| entry.as_ref().map_or(true, is_wanted));
        // Last, because only this reads trees: all else that is asked for is in records and refs.
        let entries: EntryWalk<'_> = match &query.path {
            None => Box::new(matching),
            Some(path) => {
                let steps = matching.map(|entry| self.path_step(&ids, entry?));
                Box::new(PathHistory::new(volume, path, steps))
            }
        };
        let mut lanes = (!query.has_filter()).then(HistoryLanes::default);
        let mut page = HistoryPage { rows: Vec::new(), more: false };
        let mut waits = query.after.is_some();
        for entry in entries {
            let entry = entry?;
            if page.rows.len() == query.limit {
                page.more = true;
                break;
            }
            // Also of rows before the page: lanes follow from all that is above.
            let lane = match &mut lanes {
                Some(lanes) => {
                    let parents = find_nearest_ancestors(&volume.catalog, &ids, &entry)?;
                    Some(lanes.add_entry(entry.id, &parents))
                }
                None => None,
            };
            if waits {
                waits = query.after != Some(entry.id);
                continue;
            }
            page.rows.push(HistoryRow { labels: labels.labels_of(&entry), entry, lane });
        }
        match query.after {
            Some(after) if waits => Err(VolumeError::UnknownSnapshot(after.to_string()).into()),
            _ => Ok(page),
        }
    }

    /// Returns one snapshot with what it is called.
    pub fn find_snapshot(&self, id: SnapshotId) -> Result<(HistoryEntry, SnapshotLabels)> {
        // A record may outlast its snapshot: a forgotten one is not found.
        let entry = self.inner().resolve_snapshot(&id.to_string())?;
        let labels = LabelIndex::load(self.inner())?.labels_of(&entry);
        Ok((entry, labels))
    }

    fn walk_history(&self, worktree: Option<&str>) -> Result<EntryWalk<'_>> {
        let catalog = &self.inner().catalog;
        let Some(name) = worktree else { return Ok(Box::new(list_history(catalog)?.into_iter().map(Ok))) };
        let head = self.inner().require_worktree_head(name)?.head;
        Ok(Box::new(AncestorWalk::from_heads(catalog, head)?))
    }

    /// A snapshot with what the history has before it.
    fn path_step(&self, ids: &[SnapshotId], entry: HistoryEntry) -> vellum_volume::Result<HistoryStep> {
        let catalog = &self.inner().catalog;
        let before = match find_nearest_ancestors(catalog, ids, &entry)?.first() {
            Some(parent) => Some(catalog.get_record(parent)?.root),
            None => None,
        };
        Ok(HistoryStep { entry, before })
    }
}

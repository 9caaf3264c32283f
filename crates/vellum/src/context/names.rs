//! What snapshots are called: short ids, tags, the worktrees that stand on them. Read once per command.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vellum_types::SnapshotId;
use vellum_volume::annotation::SnapshotAnnotation;
use vellum_volume::history::HistoryEntry;
use vellum_volume::refs::{DamagedRef, RefKind, WorktreeHead};
use vellum_volume::{Volume, resolve};

use crate::error::Result;
use crate::ui::{UserInterface, format, json};

/// Longest beginning of a note that is shown in one line, characters.
const NOTE_SHOWN: usize = 60;

/// The names of all snapshots of a volume.
pub struct SnapshotNames {
    ids: Arc<[SnapshotId]>,
    /// Digits by which each of the ids differs from all others.
    id_length: usize,
    tags: HashMap<SnapshotId, Vec<String>>,
    heads: HashMap<SnapshotId, Vec<String>>,
    annotations: HashMap<SnapshotId, SnapshotAnnotation>,
    here: Option<SnapshotId>,
    worktree: String,
    worktrees: Vec<(String, WorktreeHead)>,
    damaged: Vec<DamagedRef>,
}

impl SnapshotNames {
    /// Reads them. Short ids are unique among all snapshots of the store.
    pub fn load_all(volume: &Volume) -> Result<Self> {
        Self::load_among_ids(volume, volume.catalog.last_listed_ids()?)
    }

    /// Reads them. Short ids are unique among all that are known here, without a listing of the store.
    pub fn load_known(volume: &Volume) -> Result<Self> {
        Self::load_among_ids(volume, volume.catalog.cached_ids())
    }

    fn load_among_ids(volume: &Volume, ids: Arc<[SnapshotId]>) -> Result<Self> {
        // One listing of the refs for all kinds that are read here, instead of one for each.
        let _listing = volume.refs.share_listing()?;
        let mut tags: HashMap<_, Vec<_>> = HashMap::new();
        // A damaged ref must not hide the others: it is left out, and the caller warns about it.
        let (all_tags, mut damaged) = volume.list_readable_tags()?;
        for (name, id) in all_tags {
            tags.entry(id).or_default().push(name);
        }
        let mut heads: HashMap<_, Vec<_>> = HashMap::new();
        let mut here = None;
        let worktree = volume.worktree.worktree.clone();
        let (worktrees, damaged_heads) = volume.list_readable_worktrees()?;
        damaged.extend(damaged_heads);
        for (name, head) in &worktrees {
            let Some(id) = head.head else { continue };
            // A device may have several worktrees: HEAD is that of the worktree in which the user stands.
            if *name == worktree {
                here = Some(id);
            }
            heads.entry(id).or_default().push(name.clone());
        }
        let (annotations, damaged_annotations) = volume.list_readable_annotations()?;
        damaged.extend(damaged_annotations);
        let annotations =
            annotations.into_iter().filter_map(|(id, annotation)| Some((id.parse().ok()?, annotation)));
        let annotations = annotations.collect();
        // One length for all ids of a command, so that columns line up.
        let id_length = resolve::common_id_length(&ids);
        Ok(Self { ids, id_length, tags, heads, annotations, here, worktree, worktrees, damaged })
    }

    /// Says which tags and worktrees were left out, because they cannot be read.
    pub fn warn_about_damaged(&self, ui: &UserInterface) -> Result<()> {
        warn_about_damaged_refs(ui, &self.damaged)
    }

    /// All worktrees of the volume that can be read, with the content of their refs.
    pub fn worktrees(&self) -> &[(String, WorktreeHead)] {
        &self.worktrees
    }

    /// How many snapshots there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Ids of all snapshots, sorted.
    pub fn ids(&self) -> &[SnapshotId] {
        &self.ids
    }

    /// As much of the id as is unique: as much of each, so that they stand in a column.
    pub fn short_id(&self, id: &SnapshotId) -> String {
        id.to_string().chars().take(self.id_length).collect()
    }

    /// Tags of a snapshot.
    pub fn tags_of_snapshot(&self, id: &SnapshotId) -> &[String] {
        self.tags.get(id).map_or(&[], Vec::as_slice)
    }

    /// What was said about a snapshot after it was made.
    pub fn annotation_of(&self, id: &SnapshotId) -> Option<&SnapshotAnnotation> {
        self.annotations.get(id)
    }

    /// The note of a snapshot: that which it was given last.
    pub fn note_of<'a>(&'a self, entry: &'a HistoryEntry) -> &'a str {
        let later = self.annotation_of(&entry.id).and_then(|annotation| annotation.note());
        later.and_then(|note| note.value.as_deref()).unwrap_or(&entry.record.note)
    }

    /// The first line of the note of a snapshot, as [`first_note_line`] shows it.
    pub fn first_line_of_note(&self, entry: &HistoryEntry) -> String {
        first_note_line(self.note_of(entry))
    }

    /// Snapshots with a tag that is wanted.
    pub fn find_tagged(&self, wanted: impl Fn(&str) -> bool) -> Vec<SnapshotId> {
        let tagged = self.tags.iter().filter(|(_, tags)| tags.iter().any(|tag| wanted(tag)));
        tagged.map(|(id, _)| *id).collect()
    }

    /// Worktrees that stand on a snapshot.
    pub fn heads_at_snapshot(&self, id: &SnapshotId) -> &[String] {
        self.heads.get(id).map_or(&[], Vec::as_slice)
    }

    /// HEAD, other worktrees and tags that name a snapshot, for people.
    pub fn snapshot_labels(&self, id: &SnapshotId) -> Vec<String> {
        let mut labels = Vec::new();
        if self.here == Some(*id) {
            labels.push("HEAD".into());
        }
        // This worktree is shown as HEAD already.
        let others = self.heads_at_snapshot(id).iter().filter(|name| **name != self.worktree);
        labels.extend(others.map(|name| format!("worktree {name}")));
        labels.extend(self.tags_of_snapshot(id).iter().cloned());
        labels
    }

    /// A snapshot in JSON.
    pub fn to_snapshot_json(&self, entry: &HistoryEntry) -> json::SnapshotJson {
        json::SnapshotJson::new(
            entry,
            self.tags_of_snapshot(&entry.id).to_vec(),
            self.heads_at_snapshot(&entry.id).to_vec(),
        )
        .with_annotation(self.note_of(entry), self.properties_of(&entry.id))
    }

    fn properties_of(&self, id: &SnapshotId) -> BTreeMap<String, String> {
        let properties = self.annotation_of(id).into_iter().flat_map(SnapshotAnnotation::properties);
        let values = properties.filter_map(|(name, field)| Some((name.into(), field.value.clone()?)));
        values.collect()
    }

    /// A snapshot in half a line: `4f3a2b1c "a day's work", 2 hours ago`.
    pub fn describe_snapshot(&self, entry: &HistoryEntry) -> String {
        format_snapshot(&self.short_id(&entry.id), self.note_of(entry), entry)
    }
}

/// As [`SnapshotNames::describe_snapshot`], without requests for tags and worktrees, and with the note of the record.
pub fn describe_snapshot(volume: &Volume, entry: &HistoryEntry) -> Result<String> {
    Ok(format_snapshot(&volume.short_id(&entry.id)?, &entry.record.note, entry))
}

fn format_snapshot(short_id: &str, note: &str, entry: &HistoryEntry) -> String {
    let note = first_note_line(note);
    let note = if note.is_empty() { String::new() } else { format!(" \"{note}\"") };
    format!("{short_id}{note}, {}", format::format_age(entry.record.time))
}

/// Says which refs were left out, because they cannot be read.
pub fn warn_about_damaged_refs(ui: &UserInterface, damaged: &[DamagedRef]) -> Result<()> {
    for DamagedRef { kind, key, error } in damaged {
        let noun = kind.display_name();
        // A tag is no more than a name, and can be removed. The ref of a worktree holds more than that, such as its
        // lease.
        let remedy = match (kind, error) {
            (RefKind::Tag, _) => format!("'vellum tag remove {key}' removes it"),
            (RefKind::Pin, _) => format!("'vellum unpin --snapshot {key}' removes it"),
            (RefKind::Worktree | RefKind::Settings | RefKind::Annotation | RefKind::Chain, _) => {
                "put the object back from a copy of the store".into()
            }
        };
        ui.print_warning(format!("a {noun} is left out: {error}; {remedy}"))?;
    }
    Ok(())
}

/// The first line of a note, shortened, without anything that could drive a terminal.
pub fn first_note_line(note: &str) -> String {
    let line = note.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let mut shown: String = line.chars().take(NOTE_SHOWN).collect();
    if line.chars().nth(NOTE_SHOWN).is_some() {
        shown.push('…');
    }
    // Escaped after it was shortened, so that no escape sequence is cut in two.
    if shown.is_empty() { shown } else { vellum_host::escape::format_path(&shown) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_shortened_and_escaped() {
        assert_eq!(first_note_line("\n  a note \nmore"), "a note");
        assert_eq!(first_note_line(""), "");
        assert_eq!(first_note_line("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(first_note_line(&"x".repeat(61)).chars().count(), 61);
    }
}

//! Differences between two states.

use serde::{Serialize, Serializer};
use vellum_volume::diff::{ChangeAspects, ChangeKind, FileChange};

use crate::file::file_kind_name;
use crate::name::NameJson;

fn change_word(kind: ChangeKind) -> &'static str {
    match kind {
        // Programs compare these words: they stay, whatever the variants are called.
        ChangeKind::Added => "added",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Modified => "modified",
        ChangeKind::Renamed => "renamed",
    }
}

/// In which respects a file differs, as words.
#[must_use]
pub fn aspect_words(aspects: ChangeAspects) -> Vec<&'static str> {
    // Always in this order, so that equal differences give equal text.
    let all = [
        (aspects.kind, "kind"),
        (aspects.content, "content"),
        (aspects.mode, "mode"),
        (aspects.owner, "owner"),
        (aspects.xattr, "xattr"),
        (aspects.time, "time"),
    ];
    all.into_iter().filter(|(differs, _)| *differs).map(|(_, word)| word).collect()
}

/// A difference.
#[derive(Serialize)]
pub struct ChangeJson {
    change: &'static str,
    #[serde(flatten)]
    name: NameJson,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<NameJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    aspects: Vec<&'static str>,
}

impl From<&FileChange> for ChangeJson {
    fn from(change: &FileChange) -> Self {
        // What is there now counts. Of a deleted entry only the old side is known.
        let either = change.new.as_ref().or(change.old.as_ref());
        // Every other change keeps its name, so that programs recognise a renamed entry by its old path.
        let moved = change.old.as_ref().filter(|_| change.kind == ChangeKind::Renamed);
        Self {
            change: change_word(change.kind),
            name: NameJson::new(change.path()),
            // A change has one side at least, which its type does not say.
            kind: either.map_or("file", |side| file_kind_name(side.kind)),
            old_path: moved.map(|side| NameJson::new(&side.path)),
            old_size: change.old.as_ref().map(|side| side.size),
            size: change.new.as_ref().map(|side| side.size),
            aspects: aspect_words(change.aspects),
        }
    }
}

/// Serializes changes one after the other: a second list of a million would take twice the memory.
pub fn serialize_changes<S: Serializer>(changes: &[FileChange], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(changes.iter().map(ChangeJson::from))
}

/// How many of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ChangeCounts {
    /// Paths that were not there before.
    pub added: u64,
    /// Paths that are not there any more.
    pub deleted: u64,
    /// Paths that are there still, and differ.
    pub modified: u64,
    /// Entries that were elsewhere before.
    pub renamed: u64,
}

impl ChangeCounts {
    /// Counts them.
    pub fn from_changes<'a>(kinds: impl IntoIterator<Item = &'a FileChange>) -> Self {
        let mut counts = Self::default();
        for change in kinds {
            match change.kind {
                ChangeKind::Added => counts.added += 1,
                ChangeKind::Deleted => counts.deleted += 1,
                ChangeKind::Modified => counts.modified += 1,
                ChangeKind::Renamed => counts.renamed += 1,
            }
        }
        counts
    }
}

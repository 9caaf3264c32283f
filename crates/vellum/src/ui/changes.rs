//! Differences between two states, as people and programs read them.

pub mod list;

use serde::{Serialize, Serializer};
use vellum_volume::diff::{ChangeAspects, ChangeKind, FileChange};

use super::format;
use super::json::{self, NameJson};
use super::style::TextStyle;

/// The letter that lists show for a kind of change.
pub fn change_letter(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "A",
        ChangeKind::Deleted => "D",
        ChangeKind::Modified => "M",
        ChangeKind::Renamed => "R",
    }
}

fn change_word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Modified => "modified",
        ChangeKind::Renamed => "renamed",
    }
}

/// Paints by kind of change.
pub fn paint_change(style: TextStyle, kind: ChangeKind, text: &str) -> String {
    match kind {
        ChangeKind::Added => style.paint_green(text),
        ChangeKind::Deleted => style.paint_red(text),
        ChangeKind::Modified => style.paint_yellow(text),
        ChangeKind::Renamed => style.paint_cyan(text),
    }
}

/// In which respects a file differs, as words.
pub fn aspect_words(aspects: ChangeAspects) -> Vec<&'static str> {
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

/// A difference in JSON.
#[derive(Serialize)]
struct ChangeJson {
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
        let either = change.new.as_ref().or(change.old.as_ref());
        // Every other change keeps its name, so that programs recognise a renamed entry by its old path.
        let moved = change.old.as_ref().filter(|_| change.kind == ChangeKind::Renamed);
        Self {
            change: change_word(change.kind),
            name: NameJson::new(change.path()),
            kind: either.map_or("file", |side| json::file_kind_name(side.kind)),
            old_path: moved.map(|side| NameJson::new(&side.path)),
            old_size: change.old.as_ref().map(|side| side.size),
            size: change.new.as_ref().map(|side| side.size),
            aspects: aspect_words(change.aspects),
        }
    }
}

/// Serializes changes one after the other: a second list of a million would take twice the memory.
pub fn serialize_changes<S: Serializer>(
    changes: &[FileChange],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(changes.iter().map(ChangeJson::from))
}

/// How many of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ChangeCounts {
    added: u64,
    deleted: u64,
    modified: u64,
    renamed: u64,
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

impl std::fmt::Display for ChangeCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            (self.added, "added"),
            (self.modified, "modified"),
            (self.renamed, "renamed"),
            (self.deleted, "deleted"),
        ];
        let parts: Vec<_> = all
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{} {word}", format::format_number(count)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_leave_out_what_is_not_there() {
        let change = |kind| FileChange { kind, old: None, new: None, aspects: ChangeAspects::default() };
        let changes = [change(ChangeKind::Added), change(ChangeKind::Deleted)];
        assert_eq!(ChangeCounts::from_changes(&changes).to_string(), "1 added, 1 deleted");
    }
}

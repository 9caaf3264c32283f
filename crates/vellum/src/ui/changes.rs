//! Differences between two states, as people and programs read them.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use vellum_types::FileKind;
use vellum_volume::diff::{ChangeAspects, ChangeKind, ChangeSide, FileChange};

use super::format;
use super::json::{self, NameJson};
use super::style::TextStyle;
use super::table::{ColumnAlignment, TableCell, TextTable};

/// Names up to this wide line up what stands behind them, columns: leaves room for it on a usual terminal.
pub const NAME_COLUMN: usize = 56;

/// What is said of a path that counts as deleted because it is ignored from now on.
const IGNORED: &str = "(ignored now)";

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

/// A difference with how many others it stands for.
pub struct GroupedChange<'a> {
    /// The difference.
    pub change: &'a FileChange,
    /// Entries below a directory that came or went with it.
    pub below: u64,
    /// Whether it is deleted in the eyes of the worktree alone: it is there, and ignored.
    pub is_ignored: bool,
}

impl<'a> GroupedChange<'a> {
    /// A difference that stands for itself.
    pub fn from_change(change: &'a FileChange) -> Self {
        Self { change, below: 0, is_ignored: false }
    }
}

/// Directories that came or went stand for all that came or went with them.
pub fn collapse_changes(changes: &[FileChange]) -> Vec<GroupedChange<'_>> {
    collapse_kinds(changes, &[ChangeKind::Added, ChangeKind::Deleted])
}

/// Directories that went stand for all that went with them; what came is listed one by one.
pub fn collapse_deleted_dirs(changes: &[FileChange]) -> Vec<GroupedChange<'_>> {
    collapse_kinds(changes, &[ChangeKind::Deleted])
}

fn collapse_kinds<'a>(changes: &'a [FileChange], kinds: &[ChangeKind]) -> Vec<GroupedChange<'a>> {
    let mut shown: Vec<GroupedChange<'_>> = Vec::new();
    let mut tops: HashMap<(ChangeKind, &[u8]), usize> = HashMap::new();
    for change in changes {
        let path = change.path();
        let whole = kinds.contains(&change.kind);
        let parent = path.iter().rposition(|byte| *byte == b'/').and_then(|slash| path.get(..slash));
        let top = parent.filter(|_| whole).and_then(|parent| tops.get(&(change.kind, parent)).copied());
        let at = top.unwrap_or(shown.len());
        match shown.get_mut(at) {
            Some(dir) => dir.below += 1,
            None => shown.push(GroupedChange::from_change(change)),
        }
        if whole && existing_side(change).is_some_and(|side| side.kind == FileKind::Dir) {
            tops.insert((change.kind, path), at);
        }
    }
    shown
}

fn existing_side(change: &FileChange) -> Option<&ChangeSide> {
    change.new.as_ref().or(change.old.as_ref())
}

/// What a list says of each difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeDetail {
    /// In which respects it differs.
    Aspects,
    /// Sizes too.
    Sizes,
}

/// The list, a line each. `show` turns a path into what the user would type.
pub fn format_change_list(
    style: TextStyle,
    changes: &[GroupedChange<'_>],
    detail: ChangeDetail,
    show: impl Fn(&[u8]) -> String,
) -> Vec<String> {
    let mut table = TextTable::new(&[ColumnAlignment::Left, ColumnAlignment::Left, ColumnAlignment::Left])
        .with_max_cell_width(NAME_COLUMN);
    for GroupedChange { change, below, is_ignored } in changes {
        let slash =
            if existing_side(change).is_some_and(|side| side.kind == FileKind::Dir) { "/" } else { "" };
        let mut name = format!("{}{slash}", show(change.path()));
        if let (ChangeKind::Renamed, Some(old)) = (change.kind, &change.old) {
            name = format!("{}{slash} -> {name}", show(&old.path));
        }
        let mut remark = format_remark(change, *below, detail);
        if *is_ignored {
            remark = if remark.is_empty() { IGNORED.into() } else { format!("{remark} {IGNORED}") };
        }
        table.add_row([
            TableCell::from_painted(change_letter(change.kind), |text| {
                paint_change(style, change.kind, text)
            }),
            TableCell::from_painted(&name, |text| paint_change(style, change.kind, text)),
            TableCell::from_painted(&remark, |text| style.paint_dim(text)),
        ]);
    }
    table.format_lines()
}

fn format_remark(change: &FileChange, below: u64, detail: ChangeDetail) -> String {
    let mut parts = Vec::new();
    if below > 0 {
        parts.push(format!("with {} in it", format::format_count(below, "entry")));
    }
    if detail == ChangeDetail::Sizes {
        parts.extend(format_size_change(change));
    }
    let mut words = aspect_words(change.aspects);
    // A change of content brings a new time with it: only what is worth a word gets one.
    if change.aspects.content {
        words.retain(|word| *word != "time");
    }
    let obvious = change.kind == ChangeKind::Modified && words == ["content"];
    if !words.is_empty() && !obvious {
        parts.push(words.join(", "));
    }
    parts.join("; ")
}

fn format_size_change(change: &FileChange) -> Option<String> {
    let size = |side: &Option<ChangeSide>| {
        side.as_ref().filter(|side| side.kind == FileKind::File).map(|side| side.size)
    };
    match (size(&change.old), size(&change.new)) {
        (Some(old), Some(new)) if old != new => {
            Some(format!("{} -> {}", format::format_size(old), format::format_size(new)))
        }
        (_, Some(size)) | (Some(size), None) => Some(format::format_size(size)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_types::Ino;

    fn change(kind: ChangeKind, path: &str, is: FileKind) -> FileChange {
        let side = ChangeSide { path: path.into(), ino: Ino(2), kind: is, size: 10 };
        let old = (kind != ChangeKind::Added).then(|| side.clone());
        let new = (kind != ChangeKind::Deleted).then_some(side);
        FileChange { kind, old, new, aspects: ChangeAspects::default() }
    }

    #[test]
    fn new_directories_stand_for_what_is_in_them() {
        use ChangeKind::{Added, Deleted};
        let changes = [
            change(Added, "a", FileKind::Dir),
            change(Added, "a-b", FileKind::File),
            change(Added, "a/b", FileKind::Dir),
            change(Added, "a/b/c", FileKind::File),
            change(Deleted, "a/gone", FileKind::File),
        ];
        let lines = format_change_list(
            TextStyle::default(),
            &collapse_changes(&changes),
            ChangeDetail::Aspects,
            |path| String::from_utf8_lossy(path).into_owned(),
        );
        assert_eq!(lines, ["A  a/      with 2 entries in it", "A  a-b", "D  a/gone"]);
    }

    #[test]
    fn deleted_directories_stand_for_what_was_in_them_and_new_ones_do_not() {
        use ChangeKind::{Added, Deleted};
        let changes = [
            change(Added, "a", FileKind::Dir),
            change(Added, "a/b", FileKind::File),
            change(Deleted, "d", FileKind::Dir),
            change(Deleted, "d/e", FileKind::File),
        ];
        let mut shown = collapse_deleted_dirs(&changes);
        shown.iter_mut().for_each(|shown| shown.is_ignored = shown.change.kind == Deleted);
        let lines = format_change_list(TextStyle::default(), &shown, ChangeDetail::Aspects, |path| {
            String::from_utf8_lossy(path).into_owned()
        });
        assert_eq!(lines, ["A  a/", "A  a/b", "D  d/   with 1 entry in it (ignored now)"]);
    }

    #[test]
    fn counts_leave_out_what_is_not_there() {
        let changes = [
            change(ChangeKind::Added, "a", FileKind::File),
            change(ChangeKind::Deleted, "b", FileKind::File),
        ];
        assert_eq!(ChangeCounts::from_changes(&changes).to_string(), "1 added, 1 deleted");
    }
}

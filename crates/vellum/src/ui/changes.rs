//! Differences between two states, as people and programs read them.

pub mod list;

pub use vellum_json::{ChangeCounts, aspect_words, serialize_changes};
use vellum_volume::diff::ChangeKind;

use super::format;
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

/// Paints by kind of change.
pub fn paint_change(style: TextStyle, kind: ChangeKind, text: &str) -> String {
    match kind {
        ChangeKind::Added => style.paint_green(text),
        ChangeKind::Deleted => style.paint_red(text),
        ChangeKind::Modified => style.paint_yellow(text),
        ChangeKind::Renamed => style.paint_cyan(text),
    }
}

/// The counts in words: "1 added, 2 modified".
pub fn format_counts(counts: &ChangeCounts) -> String {
    let all = [
        (counts.added, "added"),
        (counts.modified, "modified"),
        (counts.renamed, "renamed"),
        (counts.deleted, "deleted"),
    ];
    let parts: Vec<_> = all
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", format::format_number(count)))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use vellum_volume::diff::{ChangeAspects, FileChange};

    use super::*;

    #[test]
    fn counts_leave_out_what_is_not_there() {
        let change = |kind| FileChange { kind, old: None, new: None, aspects: ChangeAspects::default() };
        let changes = [change(ChangeKind::Added), change(ChangeKind::Deleted)];
        assert_eq!(format_counts(&ChangeCounts::from_changes(&changes)), "1 added, 1 deleted");
    }
}

//! Lines that differ between two contents, bounded in size and time.

use std::time::{Duration, Instant};

use serde::Serialize;
use similar::{Algorithm, ChangeTag, DiffOp, capture_diff_slices_deadline};

/// Largest content that is compared by lines, bytes: far above any text that people write.
pub const TEXT_MAX: u64 = 8 << 20;
/// How long lines are compared: what takes longer has hardly a line in common.
const TIME_MAX: Duration = Duration::from_millis(200);
/// Lines around each difference.
const CONTEXT: usize = 3;
/// Most bytes of lines in one answer.
const ANSWER_MAX: usize = 512 << 10;
/// Most bytes of one line.
const LINE_MAX: usize = 4096;
/// Bytes in which a NUL shows that something is no text, as git looks.
const SNIFFED: usize = 8000;

/// How two contents differ.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct TextComparison {
    /// One of them is no text, or too long: then there are no hunks.
    pub binary: bool,
    /// They have too little in common to be compared in time: then there are no hunks.
    pub too_different: bool,
    /// More differs than is shown.
    pub truncated: bool,
    /// What differs, with some lines around.
    pub hunks: Vec<TextHunk>,
}

/// Says that the line before it has no line feed at its end.
const NO_LINE_FEED: &str = "\\";

/// Lines that are near each other.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct TextHunk {
    /// The number of its first line before; lines count from 1.
    pub old: usize,
    /// The number of its first line after.
    pub new: usize,
    /// Its lines: " " in both, "-" before, "+" after; "\\": the line above has no line feed.
    pub lines: Vec<(&'static str, String)>,
}

/// Compares two contents by lines.
#[must_use]
pub fn compare_text(old: &[u8], new: &[u8]) -> TextComparison {
    if !is_text(old) || !is_text(new) {
        return TextComparison { binary: true, ..TextComparison::default() };
    }
    let old_lines = split_lines(old);
    let new_lines = split_lines(new);
    let deadline = Instant::now() + TIME_MAX;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old_lines, &new_lines, Some(deadline));
    // Out of time, it takes the rest for different: that helps nobody.
    if Instant::now() >= deadline {
        return TextComparison { too_different: true, ..TextComparison::default() };
    }
    let mut found = TextComparison::default();
    let mut room = ANSWER_MAX;
    for group in similar::group_diff_ops(ops, CONTEXT) {
        found.hunks.extend(make_hunk(&group, &old_lines, &new_lines, &mut room));
        if room == 0 {
            found.truncated = true;
            break;
        }
    }
    found
}

/// The lines of some changes, as far as there is room for them; then no room is left.
fn make_hunk(ops: &[DiffOp], old: &[&[u8]], new: &[&[u8]], room: &mut usize) -> Option<TextHunk> {
    // A group has one change at least, which its type does not say.
    let first = ops.first()?;
    let old_start = first.old_range().start + 1;
    let new_start = first.new_range().start + 1;
    let mut lines = Vec::new();
    for change in ops.iter().flat_map(|op| op.iter_changes(old, new)) {
        let mark = match change.tag() {
            ChangeTag::Equal => " ",
            ChangeTag::Delete => "-",
            ChangeTag::Insert => "+",
        };
        let line = show_line(change.value());
        // An empty line takes room, too: otherwise line feeds alone would be shown without a limit.
        *room = room.saturating_sub(line.len() + 1);
        lines.push((mark, line));
        if !change.value().ends_with(b"\n") {
            lines.push((NO_LINE_FEED, String::new()));
        }
        if *room == 0 {
            break;
        }
    }
    Some(TextHunk { old: old_start, new: new_start, lines })
}

/// Whether this looks like text.
fn is_text(content: &[u8]) -> bool {
    content.len() as u64 <= TEXT_MAX && !content.iter().take(SNIFFED).any(|byte| *byte == 0)
}

/// The lines with their ends: a last line without one differs from the same line with one.
fn split_lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

fn show_line(line: &[u8]) -> String {
    let body = line.strip_suffix(b"\n").unwrap_or(line);
    match body.get(..LINE_MAX) {
        // The cut may go through a character, of which a replacement character is left.
        Some(cut) if body.len() > LINE_MAX => format!("{}…", String::from_utf8_lossy(cut)),
        // Texts in other encodings are texts, too: bytes that are not UTF-8 show as replacement characters.
        _ => String::from_utf8_lossy(body).into_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_come_with_their_numbers() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let found = compare_text(old.as_bytes(), old.replace("8\n", "eight\n").as_bytes());
        assert_eq!(found.hunks.len(), 1);
        assert_eq!((found.hunks[0].old, found.hunks[0].new), (5, 5));
        let marks: String = found.hunks[0].lines.iter().map(|(mark, _)| *mark).collect();
        assert_eq!(marks, "   -+ ");
        assert!(compare_text(b"a\n", b"a\n").hunks.is_empty());
    }

    #[test]
    fn what_is_no_text_is_not_compared() {
        assert!(compare_text(b"a\0b", b"a").binary);
        assert!(compare_text(b"a", &vec![b'a'; 9 << 20]).binary);
    }

    #[test]
    fn answers_are_bounded() {
        let line = "x".repeat(1 << 20);
        let found = compare_text(b"", line.as_bytes());
        assert!(found.hunks[0].lines[0].1.len() <= LINE_MAX + 8);
        let many = |word: &str| (0..300_000).map(|n| format!("{word}{n}\n")).collect::<String>();
        let found = compare_text(b"", many("").as_bytes());
        assert!(found.truncated || found.too_different);
        let found = compare_text(many("a").as_bytes(), many("b").as_bytes());
        assert!(found.truncated || found.too_different);
        assert!(serde_json::to_vec(&found).unwrap().len() < 2 << 20);
    }
}

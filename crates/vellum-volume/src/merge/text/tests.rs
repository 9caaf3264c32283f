use std::collections::BTreeSet;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn merged(base: &[u8], first: &[u8], second: &[u8]) -> MergedText {
    let version = |bytes, label| TextVersion { bytes, label };
    merge_texts(base, version(first, "11111111"), version(second, "22222222"))
}

#[test]
fn changes_at_different_places_meet() {
    let found = merged(b"a\nb\nc\nd\n", b"A\nb\nc\nd\n", b"a\nb\nc\nd\ne\n");
    assert_eq!(found, MergedText { bytes: b"A\nb\nc\nd\ne\n".to_vec(), conflicts: 0 });
}

#[test]
fn one_place_changed_twice_is_a_conflict_with_both_versions() {
    let found = merged(b"a\nb\nc\n", b"a\nX\nc\n", b"a\nY\nc\n");
    let text = "a\n<<<<<<< 11111111\nX\n=======\nY\n>>>>>>> 22222222\nc\n";
    assert_eq!(String::from_utf8_lossy(&found.bytes), text);
    assert_eq!(found.conflicts, 1);
    assert!(has_conflict_markers(&found.bytes));
    assert!(!has_conflict_markers(b"=======\n>>>>>>> b\n<<<<<<< a\n"));
}

#[test]
fn neighbouring_changes_are_a_conflict_and_equal_ones_are_not() {
    assert_eq!(merged(b"a\nb\n", b"A\nb\n", b"a\nB\n").conflicts, 1);
    assert_eq!(merged(b"a\nb\n", b"a\nX\nb\n", b"a\nX\nb\n").bytes, b"a\nX\nb\n");
    assert_eq!(merged(b"a\nb\n", b"a\nX\nb\n", b"a\nY\nb\n").conflicts, 1);
}

#[test]
fn the_deletion_of_a_repeated_line_is_not_lost() {
    let found = merged(b"c\nd\nd\nd\nd\n", b"c\nd\nd\nd\n", b"c\nR\nd\nd\nd\n");
    assert!(found.conflicts > 0 || found.bytes == b"c\nR\nd\nd\n", "{:?}", found);
}

#[test]
fn a_last_line_without_an_end_stays_without() {
    assert_eq!(merged(b"a\nb", b"A\nb", b"a\nb").bytes, b"A\nb");
    assert_eq!(merged(b"a\nb\nc", b"a\nb\nc", b"a\nb\nc\n").bytes, b"a\nb\nc\n");
    let found = merged(b"a", b"b", b"c");
    assert_eq!(found.bytes, b"<<<<<<< 11111111\nb\n=======\nc\n>>>>>>> 22222222\n");
    assert_eq!(merged(b"a\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nc\r\n").bytes, b"A\r\nb\r\nC\r\n");
}

#[test]
fn what_has_a_zero_byte_is_no_text() {
    assert!(is_text(b"") && is_text("é\n".as_bytes()) && !is_text(b"a\0b"));
}

/// Lines from a few words, so that many are equal.
fn some_text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..4_usize, 0..9).prop_map(|words| text_of(&words))
}

fn text_of(words: &[usize]) -> Vec<u8> {
    words.iter().flat_map(|word| format!("{}\n", ["a", "b", "c", "d"][*word]).into_bytes()).collect()
}

proptest! {
    #[test]
    fn one_side_alone_and_equal_sides_are_the_result(base in some_text(), version in some_text()) {
        let clean = MergedText { bytes: version.clone(), conflicts: 0 };
        prop_assert_eq!(&merged(&base, &version, &base), &clean);
        prop_assert_eq!(&merged(&base, &base, &version), &clean);
        prop_assert_eq!(&merged(&base, &version, &version), &clean);
    }

    #[test]
    fn the_order_of_the_sides_does_not_matter(base in some_text(), a in some_text(), b in some_text()) {
        let one = merged(&base, &a, &b);
        let other = merged(&base, &b, &a);
        prop_assert_eq!(one.conflicts, other.conflicts);
        if one.conflicts == 0 {
            prop_assert_eq!(one.bytes, other.bytes);
        }
    }

    #[test]
    fn no_new_line_is_lost(base in some_text(), a in some_text(), b in some_text(), at in 0..9_usize) {
        let mut lines = split_lines(&a);
        lines.insert(at.min(lines.len()), b"new\n");
        let found = merged(&base, &lines.concat(), &b);
        prop_assert!(split_lines(&found.bytes).contains(&&b"new\n"[..]));
    }
}

/// Random edits of a text whose lines all differ, so that there is one way to align the versions.
fn edited(base: &[String], edits: &[(usize, u8, u32)], who: &str) -> String {
    let mut lines = base.to_vec();
    for (at, what, number) in edits {
        let at = at % (lines.len() + 1);
        match what % 3 {
            0 => lines.insert(at, format!("{who} inserts {number}\n")),
            1 if at < lines.len() => drop(lines.remove(at)),
            _ if at < lines.len() => lines[at] = format!("{who} writes {number}\n"),
            _ => {}
        }
    }
    lines.concat()
}

/// What `git merge-file` makes of it, if it finds no conflict.
fn merged_by_git(base: &str, a: &str, b: &str) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = [file("a", a), file("base", base), file("b", b)];
    let done = Command::new("git").args(["merge-file", "-p"]).args(files).output().unwrap();
    done.status.success().then_some(done.stdout)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn git_merges_the_same(
        count in 0..12_usize,
        a in prop::collection::vec((0..12_usize, 0..3_u8, 0..3_u32), 0..4),
        b in prop::collection::vec((0..12_usize, 0..3_u8, 0..3_u32), 0..4),
    ) {
        let base: Vec<String> = (0..count).map(|line| format!("line {line}\n")).collect();
        let a = edited(&base, &a, "ann");
        let b = edited(&base, &b, "bob");
        let base = base.concat();
        let ours = merged(base.as_bytes(), a.as_bytes(), b.as_bytes());
        match merged_by_git(&base, &a, &b) {
            Some(theirs) if ours.conflicts == 0 => prop_assert_eq!(ours.bytes, theirs),
            // Only what touches: a line that one side deletes and the other replaces, say.
            Some(_) => prop_assert!(ours.conflicts > 0),
            None => {
                let known: BTreeSet<_> = [&base, &a, &b].into_iter().flat_map(|text| text.lines()).collect();
                let text = String::from_utf8(ours.bytes).unwrap();
                let is_marker = |line: &str| line.starts_with(['<', '=', '>']);
                prop_assert!(text.lines().all(|line| known.contains(line) || is_marker(line)));
            }
        }
    }
}

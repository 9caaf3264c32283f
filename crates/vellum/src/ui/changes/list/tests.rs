//! What people see of differences.

use std::collections::HashMap;

use vellum_types::Ino;
use vellum_volume::diff::ChangeAspects;

use super::*;

fn side(path: &str, is: FileKind, size: u64) -> ChangeSide {
    ChangeSide { path: path.into(), ino: Ino(2), kind: is, size }
}

fn change(kind: ChangeKind, path: &str, is: FileKind) -> FileChange {
    let old = (kind != ChangeKind::Added).then(|| side(path, is, 10));
    let new = (kind != ChangeKind::Deleted).then(|| side(path, is, 10));
    FileChange { kind, old, new, aspects: ChangeAspects::default() }
}

fn renamed(old: &str, new: &str) -> FileChange {
    FileChange {
        old: Some(side(old, FileKind::File, 10)),
        ..change(ChangeKind::Renamed, new, FileKind::File)
    }
}

fn list(changes: &[FileChange], collapsed: CollapsedDirs) -> ChangeList<'_> {
    ChangeList {
        changes,
        collapsed,
        detail: ChangeDetail::Aspects,
        style: TextStyle::default(),
        terminal: None,
    }
}

fn lines(list: &ChangeList<'_>, is_ignored: impl Fn(&FileChange) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    let show = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let printed = list.print_lines(show, is_ignored, |line| {
        lines.push(line);
        Ok(())
    });
    assert!(printed.is_ok());
    lines
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
    let lines = lines(&list(&changes, CollapsedDirs::AddedAndDeleted), |_| false);
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
    let lines = lines(&list(&changes, CollapsedDirs::Deleted), |_| true);
    assert_eq!(lines, ["A  a/", "A  a/b", "D  d/   with 1 entry in it (ignored now)"]);
}

/// The same by a table of all directories.
fn collapse_with_table(changes: &[FileChange]) -> Vec<(&[u8], u64)> {
    let mut shown: Vec<(&[u8], u64)> = Vec::new();
    let mut tops: HashMap<(ChangeKind, &[u8]), usize> = HashMap::new();
    for change in changes {
        let path = change.path();
        let parent = path.iter().rposition(|byte| *byte == b'/').map(|slash| &path[..slash]);
        let top = parent.and_then(|parent| tops.get(&(change.kind, parent)).copied());
        match top {
            Some(top) => shown[top].1 += 1,
            None => shown.push((path, 0)),
        }
        if is_dir(change) {
            tops.insert((change.kind, path), top.unwrap_or(shown.len() - 1));
        }
    }
    shown
}

#[test]
fn entries_are_counted_with_their_directory_whatever_sorts_between_them() {
    let names = ["a", "a-", "a-b", "a.", "a0"];
    let mut paths: Vec<String> = names.map(String::from).to_vec();
    for above in names {
        for name in names {
            paths.extend([format!("{above}/{name}"), format!("{above}/{name}/a")]);
        }
    }
    paths.sort();
    // Every third is missing, of another kind or a file, each time others.
    for turn in 0..60_usize {
        let kept = paths.iter().enumerate().filter(|(at, _)| (at * 7 + turn) % 3 != 0);
        let changes: Vec<_> = kept
            .map(|(at, path)| {
                let kind = if (at + turn) % 5 == 0 { ChangeKind::Added } else { ChangeKind::Deleted };
                change(kind, path, if (at * turn) % 4 == 3 { FileKind::File } else { FileKind::Dir })
            })
            .collect();
        let shown: Vec<_> = list(&changes, CollapsedDirs::AddedAndDeleted)
            .list_changes()
            .map(|(change, below)| (change.path().to_vec(), below))
            .collect();
        let expected = collapse_with_table(&changes);
        let expected: Vec<_> = expected.into_iter().map(|(path, below)| (path.to_vec(), below)).collect();
        assert_eq!(shown, expected, "turn {turn}");
    }
}

fn changes_with_long_names() -> [FileChange; 5] {
    let long = "a/directory/with/a/rather/long/path/to/a/file.txt";
    let mut resized = change(ChangeKind::Modified, "small", FileKind::File);
    resized.old = Some(side("small", FileKind::File, 2));
    let mut retyped = change(ChangeKind::Modified, "type", FileKind::File);
    retyped.aspects = ChangeAspects { kind: true, content: true, time: true, ..ChangeAspects::default() };
    [
        change(ChangeKind::Deleted, long, FileKind::File),
        renamed("old", "new"),
        renamed(long, "a/directory/with/another/name.txt"),
        resized,
        retyped,
    ]
}

fn lines_with_long_names(terminal: Option<usize>) -> String {
    let changes = changes_with_long_names();
    let list = ChangeList { detail: ChangeDetail::Sizes, terminal, ..list(&changes, CollapsedDirs::Deleted) };
    lines(&list, |_| false).join("\n")
}

#[test]
fn columns_line_up_below_a_long_rename_on_a_terminal_of_60_columns() {
    assert_eq!(
        lines_with_long_names(Some(60)),
        "\
D  a/directory/with/a/rather/long/path/to/a/file.txt
               10 B
R  old -> new  10 B
R  a/directory/with/a/rather/long/path/to/a/file.txt -> a/directory/with/another/name.txt
               10 B
M  small       2 B -> 10 B
M  type        10 B; kind, content"
    );
}

#[test]
fn columns_line_up_below_a_long_rename_on_a_terminal_of_80_columns() {
    assert_eq!(
        lines_with_long_names(Some(80)),
        "\
D  a/directory/with/a/rather/long/path/to/a/file.txt  10 B
R  old -> new                                         10 B
R  a/directory/with/a/rather/long/path/to/a/file.txt -> a/directory/with/another/name.txt
                                                      10 B
M  small                                              2 B -> 10 B
M  type                                               10 B; kind, content"
    );
}

#[test]
fn columns_line_up_and_each_entry_is_one_line_where_the_output_is_no_terminal() {
    assert_eq!(
        lines_with_long_names(None),
        "\
D  a/directory/with/a/rather/long/path/to/a/file.txt                                       10 B
R  old -> new                                                                              10 B
R  a/directory/with/a/rather/long/path/to/a/file.txt -> a/directory/with/another/name.txt  10 B
M  small                                                                                   2 B -> 10 B
M  type                                                                                    10 B; kind, content"
    );
    // On a terminal that is wide enough too.
    assert_eq!(lines_with_long_names(Some(120)), lines_with_long_names(None));
}

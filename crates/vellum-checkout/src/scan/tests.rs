//! Selections and rules, apart from the disk.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::rules::{DEFAULT_RULES_FILE, read_rules};
use super::selection::SelectedPart;
use super::*;

fn selection(paths: &[&str]) -> PathSelection {
    PathSelection::from_paths(paths.iter().map(|path| path.as_bytes())).unwrap()
}

#[test]
fn selected_paths_share_their_way() {
    let selected = selection(&["a/b", "a/c/", "./d"]);
    let names: Vec<_> = selected.selected_children(0).collect();
    assert_eq!(names.len(), 2);
    assert_eq!(selected.selected_child(0, b"d"), Some(SelectedPart::Whole));
    let Some(SelectedPart::Some(a)) = selected.selected_child(0, b"a") else { panic!("a is on the way") };
    assert_eq!(selected.selected_children(a).map(|(name, _)| name).collect::<Vec<_>>(), [b"b", b"c"]);
    assert_eq!(selected.selected_child(a, b"x"), None);
}

#[test]
fn a_path_above_others_selects_them_too() {
    assert_eq!(selection(&["a/b", "a"]).selected_child(0, b"a"), Some(SelectedPart::Whole));
    assert_eq!(selection(&["a", "a/b"]).selected_child(0, b"a"), Some(SelectedPart::Whole));
    assert!(selection(&["a", "."]).is_everything());
    assert!(!selection(&[]).is_everything());
}

#[test]
fn paths_out_of_the_tree_are_refused() {
    assert!(PathSelection::from_paths([&b"a/../../b"[..]]).is_err());
    assert!(PathSelection::from_paths([&b"a\0b"[..]]).is_err());
}

/// Rules of the root and of `sub`, as files on disk.
fn rules(root: &[u8], sub: &[u8]) -> (rules::IgnoreRules, Vec<String>) {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("sub")).unwrap();
    std::fs::write(temp.path().join(".vellumignore"), root).unwrap();
    std::fs::write(temp.path().join("sub/.vellumignore"), sub).unwrap();
    let dir = HeldDir::open_root(temp.path()).unwrap();
    let (outer, mut messages) = read_rules(&dir, DEFAULT_RULES_FILE, b"", None);
    let (inner, more) =
        read_rules(&dir.open_dir(b"sub").unwrap(), DEFAULT_RULES_FILE, b"sub", outer.as_ref());
    messages.extend(more);
    (inner.unwrap(), messages)
}

#[test]
fn the_nearest_rules_decide_first() {
    let (rules, messages) = rules(b"*.log\n/top\nbuild/\n", b"!keep.log\n/here\n*.tmp\n");
    assert!(messages.is_empty());
    assert!(rules.is_ignored(b"sub/a.log", false));
    assert!(!rules.is_ignored(b"sub/keep.log", false));
    assert!(rules.is_ignored(b"sub/here", false));
    assert!(!rules.is_ignored(b"sub/deeper/here", false));
    assert!(rules.is_ignored(b"sub/deeper/x.tmp", false));
    assert!(rules.is_ignored(b"sub/build", true));
    assert!(!rules.is_ignored(b"sub/build", false));
    assert!(!rules.is_ignored(b"sub/top", false));
    assert!(rules.is_ignored(b"sub/\xff.log", false));
}

#[test]
fn rules_that_are_not_understood_are_told_and_the_others_hold() {
    let (rules, messages) = rules(b"\xef\xbb\xbf*.a\n\xff\xfe\n{a\n", b"");
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(rules.is_ignored(b"x.a", false));
}

//! Scans of trees of every sort.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use vellum_types::FileKind;

use super::*;
use crate::ends::SyncSide;
use crate::model::options::{PreserveOptions, SymlinkHandling, SyncOptions};

fn wish(side: SyncSide) -> ListingRequest {
    let preserve = PreserveOptions {
        recursive: true,
        symlinks: SymlinkHandling::Keep,
        hard_links: true,
        ..PreserveOptions::default()
    };
    let options = Arc::new(SyncOptions { preserve, ..SyncOptions::default() });
    ListingRequest { side, options, rules: Arc::new(NoFilter), top: Vec::new(), avoid: None, owners: false }
}

fn list(dir: &Path) -> TreeListing {
    scan_dir(&HeldDir::open_root(dir).unwrap(), &wish(SyncSide::Source), &ProgressMeter::default()).unwrap()
}

#[test]
fn every_entry_is_found_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..40 {
        fs::create_dir_all(dir.path().join(format!("d{n}/deep/er"))).unwrap();
        fs::write(dir.path().join(format!("d{n}/deep/er/f")), "x".repeat(n)).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    let listing = list(dir.path());
    assert_eq!(listing.len(), 1 + 40 * 4 + 1);
    assert_eq!(listing.find_path(b"d7/deep/er/f").unwrap().size(), 7);
    assert_eq!(listing.find_path(b"link").unwrap().symlink_target(), b"nowhere");
    assert!(listing.is_complete());
    for entry in listing.iter().filter(|entry| entry.is_dir()) {
        assert!(entry.children().map(|child| child.name()).is_sorted());
        assert!(entry.children().all(|child| child.parent().unwrap().id() == entry.id()));
    }
}

/// Its last rules were lost, and the rule in the middle of which it was cut was another one.
#[test]
fn a_rule_file_that_is_too_long_ends_the_walk() {
    use crate::rules::{RULE_FILE_MAX, RuleArg, RuleSet, SyncFilters};
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/secret"), "x").unwrap();
    let args = [RuleArg::Filter(b": .rules".to_vec())];
    let rules = RuleSet::compile_args(&args, false, &mut |_: &[u8]| Err("no files".into())).unwrap();
    let filters = Arc::new(SyncFilters { rules, ..SyncFilters::default() });
    let rules = filters.create_filter(SyncSide::Source, b"/").unwrap();
    let wish = ListingRequest { rules, ..wish(SyncSide::Source) };
    let scan = |comment_len: u64| {
        let text = [&b"#".repeat(comment_len as usize)[..], b"\n- secret\n"].concat();
        fs::write(dir.path().join("d/.rules"), text).unwrap();
        scan_dir(&HeldDir::open_root(dir.path()).unwrap(), &wish, &ProgressMeter::default())
    };
    let room = RULE_FILE_MAX - 10;
    assert!(scan(room).unwrap().find_path(b"d/secret").is_none());
    let message = scan(room + 1).unwrap_err().to_string();
    assert_eq!(message, "the rule file 'd/.rules' is longer than 4 MiB: shorten it");
}

#[test]
fn names_of_one_file_have_one_group() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("a"), "x").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("sub/b")).unwrap();
    fs::write(dir.path().join("c"), "x").unwrap();
    let listing = list(dir.path());
    let group = listing.find_path(b"a").unwrap().link_group();
    assert!(group.is_some());
    assert_eq!(listing.find_path(b"sub/b").unwrap().link_group(), group);
    assert_eq!(listing.find_path(b"c").unwrap().link_group(), None);
}

#[test]
fn trees_deeper_than_any_path_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let mut here = HeldDir::open_root(dir.path()).unwrap();
    let name = "n".repeat(200);
    for _ in 0..60 {
        here.create_dir(name.as_bytes(), 0o755).unwrap();
        here = here.open_dir(name.as_bytes()).unwrap();
    }
    here.create_file(b"bottom", 0o644).unwrap();
    let listing = list(dir.path());
    assert_eq!(listing.len(), 62);
    assert!(listing.is_complete());
}

#[test]
fn what_is_vellums_own_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".vellum")).unwrap();
    fs::create_dir(dir.path().join(".vellum-trash")).unwrap();
    fs::write(dir.path().join(".vellum-tmp-0123456789abcdef"), "x").unwrap();
    fs::write(dir.path().join(".vellumignore"), "x").unwrap();
    let listing = list(dir.path());
    assert_eq!(listing.root().children().map(|entry| entry.name()).collect::<Vec<_>>(), [b".vellumignore"]);
    assert_eq!(listing.leftovers, [b".vellum-tmp-0123456789abcdef"]);
    assert!(listing.root().flags().contains(EntryFlags::KEEPS));
}

#[test]
fn a_single_file_is_listed_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "abc").unwrap();
    fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    let root = HeldDir::open_root(dir.path()).unwrap();
    let listing = scan_entry(&root, b"a", b"b", &wish(SyncSide::Source)).unwrap();
    let entry = listing.find_path(b"b").unwrap();
    assert_eq!((entry.kind(), entry.size(), entry.mode()), (FileKind::File, 3, 0o640));
    assert!(listing.root().flags().contains(EntryFlags::IMPLIED));
    assert!(scan_entry(&root, b"nothing", b"b", &wish(SyncSide::Source)).is_err());
}

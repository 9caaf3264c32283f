//! Scans of some paths only, and the caches that they lead to.

use vellum_checkout::scan::{PathSelection, ScanDirIndex, ScanOptions, ScanTree, scan_tree};
use vellum_checkout::statcache::{CachedDir, FilesystemTime};

use crate::workspace::{Workspace, paths};

fn sample() -> Workspace {
    let space = Workspace::new();
    for path in ["a/1", "a/2", "a/deep/3", "b/4", "c"] {
        space.write(path, path);
    }
    space
}

fn scan_only(space: &Workspace, only: &[&str]) -> ScanTree {
    let selection = PathSelection::from_paths(only.iter().map(|path| path.as_bytes())).unwrap();
    let cache = vellum_checkout::statcache::StatCache::load(&space.state, b"cache").ok();
    scan_tree(&space.root, ScanOptions { cache, selection: Some(selection), ..ScanOptions::default() })
        .unwrap()
}

#[test]
fn only_what_is_selected_is_seen_and_absence_elsewhere_says_nothing() {
    let space = sample();
    let tree = scan_only(&space, &["a/1", "a/deep", "gone"]);
    assert_eq!(paths(&tree), ["a", "a/1", "a/deep", "a/deep/3"]);
    let root = tree.dir(ScanDirIndex::ROOT);
    assert!(
        root.has_examined(b"gone")
            && root.has_examined(b"a")
            && !root.has_examined(b"b")
            && !root.is_fully_scanned()
    );
    assert!(tree.dir(root.find_entry(b"a").unwrap().child_index().unwrap()).has_examined(b"1"));
}

#[test]
fn nothing_selected_sees_nothing_and_the_root_everything() {
    let space = sample();
    assert!(paths(&scan_only(&space, &[])).is_empty());
    assert_eq!(paths(&scan_only(&space, &["."])), paths(&space.scan()));
}

#[test]
fn rules_hold_for_selected_paths_too() {
    let space = sample();
    space.write(".vellumignore", "deep\n");
    space.write(".vellum/key", "");
    space.write("a/.vellum/key", "");
    let tree = scan_only(&space, &["a/deep", "a/2", ".vellum", "a/.vellum", "a/.vellum/key"]);
    assert_eq!(paths(&tree), ["a", "a/2"]);
}

#[test]
fn the_cache_after_a_partial_scan_keeps_the_rest() {
    let space = sample();
    space.settle_and_remember();
    let before = space.cache().len();
    let stamp = FilesystemTime::read_filesystem_time(&space.state).unwrap();
    std::fs::remove_file(space.at("a/1")).unwrap();
    std::fs::remove_file(space.at("b/4")).unwrap();
    space.write("a/new", "new");
    space.write("b/new", "not looked at");
    let tree = scan_only(&space, &["a"]);
    assert_eq!(paths(&tree), ["a", "a/2", "a/deep", "a/deep/3", "a/new"]);
    let missing: Vec<_> = tree
        .dirs()
        .flat_map(|dir| dir.missing_entries().map(|old| old.name.to_vec()).collect::<Vec<_>>())
        .collect();
    assert_eq!(missing, [b"1"]);
    space.remember(&tree, stamp);

    let cache = space.cache();
    assert_eq!(cache.len(), before, "one came, one went");
    let b = cache.find_entry(CachedDir::ROOT, b"b").unwrap().child.unwrap();
    assert!(cache.find_entry(b, b"4").is_some() && cache.find_entry(b, b"new").is_none());
    let a = cache.find_entry(CachedDir::ROOT, b"a").unwrap().child.unwrap();
    assert!(cache.find_entry(a, b"1").is_none() && cache.find_entry(a, b"new").is_some_and(|new| new.racy));
    assert!(cache.find_entry(cache.find_entry(a, b"deep").unwrap().child.unwrap(), b"3").is_some());
}

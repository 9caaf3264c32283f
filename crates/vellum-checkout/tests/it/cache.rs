//! What counts as unchanged.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use vellum_checkout::scan::ScanDirIndex;
use vellum_checkout::statcache::{FilesystemTime, NewStatCache, RecordedEntry, StatCache, write_stat_cache};
use vellum_host::beneath::HeldNode;
use vellum_types::Ino;

use crate::workspace::{BASE, Workspace, changed};

fn sample() -> Workspace {
    let space = Workspace::new();
    for path in ["a/1", "a/2", "a/deep/3", "b/4", "c"] {
        space.write(path, path);
    }
    space.settle_and_remember();
    space
}

#[test]
fn what_nobody_touched_is_unchanged() {
    let space = sample();
    let tree = space.scan_cached();
    assert!(changed(&tree).is_empty());
    assert!(tree.cached_root().unwrap().1);
    for entry in tree.walk_entries() {
        assert_eq!(entry.cached_entry().unwrap().ino, Ino(entry.stat().ino));
    }
    assert!(tree.dirs().all(|dir| dir.missing_entries().next().is_none()));
}

#[test]
fn each_sort_of_change_is_seen() {
    let space = sample();
    std::fs::set_permissions(space.at("a/1"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::OpenOptions::new().append(true).open(space.at("b/4")).unwrap().write_all(b"!").unwrap();
    space.write("a/deep/new", "");
    assert_eq!(changed(&space.scan_cached()), ["a/1", "a/deep", "a/deep/new", "b/4"]);
}

#[test]
fn the_same_size_and_the_old_time_do_not_hide_a_change() {
    let space = sample();
    let before = space.root.stat(b"c").unwrap();
    space.write("c", "C");
    let opened = space.root.open_file_to_update(b"c").unwrap();
    HeldNode::from_file(&opened.file).set_times(before.mtime, before.mtime).unwrap();
    let after = space.root.stat(b"c").unwrap();
    assert_eq!((before.size, before.mtime), (after.size, after.mtime));
    assert_eq!(changed(&space.scan_cached()), ["c"]);
}

#[test]
fn a_renamed_file_is_found_by_its_number() {
    let space = sample();
    std::fs::rename(space.at("a/1"), space.at("b/moved")).unwrap();
    let tree = space.scan_cached();
    let moved = tree.walk_entries().find(|entry| entry.name() == b"moved").unwrap();
    assert!(moved.cached_entry().is_none());
    let old: Vec<_> = tree.cache().unwrap().find_by_host_inode(moved.stat().dev, moved.stat().ino).collect();
    assert_eq!(old.len(), 1);
    assert_eq!(old[0].name, b"1");
    assert!(old[0].stat.is_same_file(moved.stat()));
}

#[test]
fn a_file_in_the_place_of_a_directory_and_the_reverse() {
    let space = sample();
    std::fs::remove_dir_all(space.at("a/deep")).unwrap();
    space.write("a/deep", "a file now");
    std::fs::remove_file(space.at("c")).unwrap();
    space.write("c/inner", "");
    assert_eq!(changed(&space.scan_cached()), ["a", "a/deep", "c", "c/inner"]);
}

/// The classic race: recorded and then changed within one tick of the clock, with size and times as before.
#[test]
fn a_change_within_the_same_tick_is_never_missed() {
    let space = Workspace::new();
    for round in 0..200 {
        space.write("f", &format!("A{round:03}"));
        let stamp = FilesystemTime::read_filesystem_time(&space.state).unwrap();
        let tree = space.scan();
        let content = std::fs::read(space.at("f")).unwrap();
        space.remember(&tree, stamp);
        space.write("f", &format!("B{round:03}"));
        let again = space.scan_cached();
        assert_ne!(std::fs::read(space.at("f")).unwrap(), content);
        assert_eq!(changed(&again), ["f"], "round {round}");
    }
}

#[test]
fn a_racy_entry_becomes_trusted_once_it_is_old() {
    let space = Workspace::new();
    let stamp = FilesystemTime::read_filesystem_time(&space.state).unwrap();
    space.write("f", "young");
    space.remember(&space.scan(), stamp);
    assert_eq!(changed(&space.scan_cached()), ["f"]);
    space.settle_and_remember();
    assert!(changed(&space.scan_cached()).is_empty());
}

#[test]
fn what_was_not_recorded_is_not_remembered() {
    let space = sample();
    let tree = space.scan();
    let stamp = FilesystemTime::read_filesystem_time(&space.state).unwrap();
    let recorded = |entry: vellum_checkout::scan::ScanEntryRef<'_>| {
        (entry.name() != b"deep").then_some(RecordedEntry { ino: Ino(1), stat: None })
    };
    let cache = NewStatCache { dir: &space.state, name: b"cache", base: BASE, stamp };
    write_stat_cache(cache, &tree, recorded).unwrap();
    assert_eq!(space.cache().len(), 6);
    assert_eq!(changed(&space.scan_cached()), ["a/deep", "a/deep/3"]);
}

#[test]
fn a_cache_that_is_not_there_or_torn_is_no_cache() {
    let space = sample();
    assert!(StatCache::load(&space.state, b"nothing").is_err());
    let file = space.state.open_file_to_update(b"cache").unwrap();
    file.file.set_len(file.stat.size / 2).unwrap();
    assert!(StatCache::load(&space.state, b"cache").is_err());
    let tree = space.scan();
    assert_eq!(tree.dir(ScanDirIndex::ROOT).entries().len(), 3);
}

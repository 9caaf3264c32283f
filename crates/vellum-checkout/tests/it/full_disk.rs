//! No space left: what was there stays, and goes on when there is room again.

use std::collections::BTreeSet;

use vellum_host::ProgressMeter;
use vellum_types::ErrorKind;

use crate::audit::audit;
use crate::chance::Chance;
use crate::mounted::{Mounted, fill_up};
use crate::picture::Picture;
use crate::place::Place;

#[test]
fn a_snapshot_on_a_full_disk_fails_and_the_earlier_ones_stay() {
    let memory = Mounted::in_memory(16 << 10);
    let store = Mounted::in_memory(6 << 10);
    let place = Place::at(&memory.path().join("tree"), &store.path().join("store"));
    let mut chance = Chance::new(6);
    place.write("kept", chance.bytes(1 << 20));
    let first = place.snapshot();
    let old = place.picture();
    let mut failures = 0;
    for leave in [0, 4 << 10, 16 << 10, 64 << 10, 200 << 10, 700 << 10] {
        place.write("large", chance.bytes(1 << 20));
        place.write("d/small", chance.bytes(100));
        let edited = place.picture();
        let ballast = fill_up(&store.path(), leave);
        let error = place.try_snapshot(&[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{leave}: {error:?}");
        assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, first.id);
        failures += 1;
        std::fs::remove_file(ballast).unwrap();
        place.picture().expect(&edited, "a failed snapshot changes nothing");
        let place = place.reopened();
        let mut request = place.request(first.id, &[]);
        request.discard = true;
        assert_eq!(place.try_restore(&request).unwrap().problems, []);
        place.picture().expect(&old, "the earlier snapshot");
    }
    assert_eq!(failures, 6);
    place.write("large", chance.bytes(1 << 20));
    let made = place.snapshot();
    audit(&place.state(made.record.root));
    place.wipe();
    place.restore(made.id);
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn a_full_disk_under_the_worktree_alone_is_told_and_survived() {
    let memory = Mounted::in_memory(8 << 10);
    let store = tempfile::tempdir().unwrap();
    let place = Place::at(&memory.path().join("tree"), &store.path().join("store"));
    let mut chance = Chance::new(7);
    for number in 0..20 {
        place.write(format!("f{number:02}"), chance.bytes(100_000));
    }
    let first = place.snapshot();
    let old = place.picture();
    for number in 0..20 {
        place.write(format!("f{number:02}"), chance.bytes(5_000));
    }
    place.write("new", "x");
    let edited = place.snapshot();
    let new = place.picture();
    let ballast = fill_up(&memory.path(), 400_000);
    let error = place.try_restore(&place.request(first.id, &[])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    for (path, seen) in &place.picture().0 {
        if seen.kind == "RegularFile" {
            let sides = [old.0.get(path), new.0.get(path)];
            assert!(
                sides.iter().flatten().any(|side| *side == seen),
                "each file is old or new: {path:?} {seen:?}"
            );
        }
    }
    std::fs::remove_file(ballast).unwrap();
    place.restore(first.id);
    place.picture().expect(&old, "finished when there was room");
    place.restore(edited.id);
    place.picture().expect(&new, "and back");
}

#[test]
fn a_snapshot_succeeds_where_only_the_stat_cache_finds_no_room() {
    let memory = Mounted::in_memory(2 << 10);
    let store = tempfile::tempdir().unwrap();
    let place = Place::at(&memory.path().join("tree"), &store.path().join("store"));
    for number in 0..300 {
        place.write(format!("file with a name of some length {number}"), "x");
    }
    place.snapshot();
    for number in 0..300 {
        place.write(format!("another file with a name of some length {number}"), "");
    }
    let ballast = fill_up(&memory.path(), 24 << 10);
    match place.try_snapshot(&[]) {
        Ok(made) => audit(&place.state(made.record.root)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}"),
    }
    std::fs::remove_file(ballast).unwrap();
    assert!(place.status().len() <= 301);
    place.snapshot();
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn a_full_disk_loses_nothing_of_a_partial_checkout() {
    let memory = Mounted::in_memory(4 << 10);
    let store = tempfile::tempdir().unwrap();
    let place = Place::at(&memory.path().join("tree"), &store.path().join("store"));
    let mut chance = Chance::new(8);
    for number in 0..12 {
        place.write(format!("d/f{number:02}"), chance.bytes(100_000));
    }
    place.snapshot();
    let whole = place.picture();
    let paths = [b"d".to_vec()];
    let meter = ProgressMeter::default();
    // The list cannot be written: nothing goes.
    std::thread::sleep(std::time::Duration::from_millis(40));
    let ballast = fill_up(&memory.path(), 0);
    assert_eq!(place.tree.evict_paths(&paths, BTreeSet::new, &meter).unwrap_err().kind(), ErrorKind::NoSpace);
    place.picture().expect(&whole, "nothing was evicted");
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(place.tree.evict_paths(&paths, BTreeSet::new, &meter).unwrap().refused, []);
    let ballast = fill_up(&memory.path(), 500_000);
    assert_eq!(place.tree.hydrate_paths(&paths, &meter).unwrap_err().kind(), ErrorKind::NoSpace);
    let status = place.status();
    assert!(!status.iter().any(|change| change.starts_with("Deleted")), "{status:?}");
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(place.tree.hydrate_paths(&paths, &meter).unwrap().problems, []);
    // The first attempt touched the root, and the second could not know that.
    let untimed = |picture: Picture| picture.without(|seen| seen.mtime = (0, 0));
    untimed(place.picture()).expect(&untimed(whole), "finished when there was room");
    assert_eq!(place.status(), [""; 0]);
}

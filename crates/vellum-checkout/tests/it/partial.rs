//! Snapshots and restores of some paths: everything else stays as it was.

use std::os::unix::fs::PermissionsExt;

use crate::audit::{audit, recorded};
use crate::picture::Picture;
use crate::place::Place;
use crate::zoo::set_time;

/// A worktree of two directories, a snapshot of it, and its picture.
fn two_sides() -> (Place, vellum_checkout::SnapshotReport) {
    let place = Place::new();
    for path in ["a/x", "a/y", "b/x", "b/sub/z", "top"] {
        place.write(path, format!("old {path}"));
    }
    let made = place.snapshot();
    (place, made)
}

fn held(place: &Place, made: &vellum_checkout::SnapshotReport) -> Picture {
    let state = place.state(made.record.root);
    audit(&state);
    recorded(&place.tree.volume, &state)
}

#[test]
fn only_the_paths_are_recorded() {
    let (place, first) = two_sides();
    let old = held(&place, &first);
    for path in ["a/x", "b/x", "top"] {
        place.write(path, format!("new {path}!"));
    }
    std::fs::remove_file(place.on("a/y")).unwrap();
    place.write("b/sub/added", "new");
    std::fs::set_permissions(place.on("b"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&place.path, PermissionsExt::from_mode(0o711)).unwrap();
    // Old enough to be trusted: what was not recorded must not be remembered either.
    std::thread::sleep(std::time::Duration::from_millis(40));
    let made = place.snapshot_of(&["b/sub", "a/y"]);
    let new = held(&place, &made);
    for same in [".", "a/x", "b", "b/x", "top", "a"] {
        assert_eq!(new.0[same.as_bytes()], old.0[same.as_bytes()], "{same}");
    }
    assert!(!new.0.contains_key(&b"a/y"[..]) && new.0.contains_key(&b"b/sub/added"[..]));
    assert_eq!(made.record.paths, [b"b/sub".to_vec(), b"a/y".to_vec()]);
    // What was not recorded is still seen, also what concerns directories that were passed through.
    assert_eq!(place.status(), ["Modified /", "Modified a/x", "Modified b", "Modified b/x", "Modified top"]);
    let whole = place.snapshot();
    held(&place, &whole);
    place.forget_statcache();
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn new_parents_are_recorded_with_what_was_named() {
    let (place, _) = two_sides();
    place.write("new/parents/here/file", "x");
    place.write("new/other", "not named");
    std::fs::set_permissions(place.on("new/parents"), PermissionsExt::from_mode(0o2750)).unwrap();
    let made = place.snapshot_of(&["new/parents/here/file"]);
    let new = held(&place, &made);
    assert!(new.0.contains_key(&b"new/parents/here/file"[..]) && !new.0.contains_key(&b"new/other"[..]));
    assert_eq!(new.0[&b"new/parents"[..]].mode, 0o2750);
}

#[test]
fn the_first_snapshot_may_be_a_partial_one() {
    let place = Place::new();
    place.write("d/file", "x");
    place.write("rest", "y");
    let new = held(&place, &place.snapshot_of(&["d"]));
    assert_eq!(new.0.keys().collect::<Vec<_>>(), [&b"."[..], b"d", b"d/file"]);
    assert_eq!(place.status(), ["Added rest"]);
    held(&place, &place.snapshot());
}

#[test]
fn a_name_that_is_nowhere_is_refused() {
    let (place, first) = two_sides();
    for path in ["nowhere", "a/nothing", "nowhere/at/all"] {
        let error = place.try_snapshot(&[path]).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
        assert!(place.try_restore(&place.request(first.id, &[path])).is_err());
    }
    assert!(place.try_snapshot(&["../outside"]).is_err());
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, first.id);
}

#[test]
fn a_file_is_not_recorded_as_gone_with_its_whole_directory() {
    let (place, first) = two_sides();
    std::fs::remove_dir_all(place.on("a")).unwrap();
    let error = place.try_snapshot(&["a/x"]).unwrap_err();
    assert!(error.to_string().contains("a/x"), "{error}");
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, first.id);
    let new = held(&place, &place.snapshot_of(&["a"]));
    assert!(!new.0.contains_key(&b"a/y"[..]) && new.0.contains_key(&b"b/x"[..]));
}

#[test]
fn what_was_renamed_across_the_boundary() {
    let (place, _) = two_sides();
    std::fs::rename(place.on("a/x"), place.on("b/from a")).unwrap();
    std::fs::rename(place.on("b/sub"), place.on("a/from b")).unwrap();
    let new = held(&place, &place.snapshot_of(&["b"]));
    assert!(new.0.contains_key(&b"a/x"[..]), "its old name was not asked for");
    assert!(new.0.contains_key(&b"b/from a"[..]));
    assert!(!new.0.contains_key(&b"b/sub"[..]) && !new.0.contains_key(&b"a/from b"[..]));
    held(&place, &place.snapshot());
    place.forget_statcache();
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn hard_links_across_the_boundary() {
    for cached in [true, false] {
        let (place, _) = two_sides();
        std::fs::hard_link(place.on("a/x"), place.on("b/one")).unwrap();
        std::fs::hard_link(place.on("a/x"), place.on("b/two")).unwrap();
        std::fs::hard_link(place.on("a/y"), place.on("b/y")).unwrap();
        std::fs::hard_link(place.on("b/x"), place.on("a/bx")).unwrap();
        let first = place.snapshot();
        let old = held(&place, &first);
        // A name that goes, one that becomes another file, and one that comes.
        std::fs::remove_file(place.on("b/one")).unwrap();
        std::fs::remove_file(place.on("b/x")).unwrap();
        std::fs::remove_file(place.on("b/y")).unwrap();
        place.write("b/y", "another file now");
        std::fs::hard_link(place.on("top"), place.on("b/top")).unwrap();
        if !cached {
            place.forget_statcache();
        }
        let new = held(&place, &place.snapshot_of(&["b"]));
        for same in ["a/x", "a/y", "a/bx", "top"] {
            let new = &new.0[same.as_bytes()];
            let old = &old.0[same.as_bytes()];
            assert_eq!((&new.content, new.mtime), (&old.content, old.mtime), "{same}");
        }
        assert!(!new.0.contains_key(&b"b/one"[..]) && !new.0.contains_key(&b"b/x"[..]));
        assert_eq!(new.0[&b"b/y"[..]].size, 16);
        assert!(new.0.contains_key(&b"b/top"[..]) && new.0.contains_key(&b"b/two"[..]));
        held(&place, &place.snapshot());
        place.restore(first.id);
        recorded(&place.tree.volume, &place.state(first.record.root)).expect(&old, "the first snapshot");
        assert_eq!(place.status(), [""; 0]);
    }
}

#[test]
fn a_linked_file_that_was_edited_keeps_its_names_together() {
    let (place, _) = two_sides();
    std::fs::hard_link(place.on("a/x"), place.on("b/link")).unwrap();
    place.snapshot();
    place.write("b/link", "edited through one name");
    let new = held(&place, &place.snapshot_of(&["b"]));
    assert_eq!(new.0[&b"b/link"[..]].first.as_deref(), Some(&b"a/x"[..]));
    place.snapshot();
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn only_the_paths_are_restored() {
    let (place, first) = two_sides();
    let old = place.picture();
    for path in ["a/x", "b/x", "b/sub/z"] {
        place.write(path, "edited");
    }
    std::fs::remove_file(place.on("a/y")).unwrap();
    place.write("b/sub/added", "new");
    place.write("a/added", "new");
    std::fs::set_permissions(place.on("b"), PermissionsExt::from_mode(0o700)).unwrap();
    set_time(&place.on("a"), 1_000_000_000, 1);
    let edited = place.picture();
    let outcome = place.try_restore(&place.request(first.id, &["b/sub", "a/y"])).unwrap();
    assert_eq!(outcome.problems, []);
    let now = place.picture();
    now.below("b/sub").expect(&old.below("b/sub"), "restored");
    now.below("a/y").expect(&old.below("a/y"), "restored");
    for same in ["a/x", "a/added", "b", "b/x", "top"] {
        assert_eq!(now.0[same.as_bytes()], edited.0[same.as_bytes()], "{same}");
    }
    // The head stays, apart from the snapshot that saves what was edited.
    let head = place.tree.head_snapshot().unwrap().unwrap();
    assert_eq!(Some(head.id), outcome.safety);
    assert_eq!(head.record.parents, [first.id]);
    place.restore(outcome.safety.unwrap());
    place.picture().expect(&edited, "undone");
}

#[test]
fn a_path_that_is_gone_with_its_parents_is_restored() {
    let (place, first) = two_sides();
    std::fs::set_permissions(place.on("b"), PermissionsExt::from_mode(0o2711)).unwrap();
    let second = place.snapshot();
    let old = place.picture();
    std::fs::remove_dir_all(place.on("b")).unwrap();
    let outcome = place.try_restore(&place.request(second.id, &["b/sub/z"])).unwrap();
    assert_eq!((outcome.safety, outcome.problems), (None, vec![]));
    let now = place.picture();
    for same in ["b", "b/sub", "b/sub/z"] {
        assert_eq!(now.0[same.as_bytes()], old.0[same.as_bytes()], "{same}");
    }
    assert!(!place.on("b/x").exists());
    // A path that the snapshot does not have goes.
    place.write("late", "x");
    place.snapshot();
    place.try_restore(&place.request(first.id, &["late"])).unwrap();
    assert!(!place.on("late").exists() && !place.on("b/x").exists());
}

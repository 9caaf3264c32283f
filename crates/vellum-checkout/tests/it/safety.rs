//! A restore never loses what no snapshot holds.

use std::os::unix::fs::PermissionsExt;

use vellum_checkout::RestoreStep;
use vellum_host::ProgressMeter;
use vellum_volume::SnapshotOrigin;

use crate::place::{Place, concerning};

/// A worktree with a snapshot, and edits of every kind since.
fn edited() -> (Place, vellum_checkout::SnapshotReport) {
    let place = Place::new();
    for path in ["same", "edited", "gone", "d/inner", "turned", "mode"] {
        place.write(path, format!("old {path}"));
    }
    let first = place.snapshot();
    place.write("edited", "work of a whole day");
    std::fs::remove_file(place.on("gone")).unwrap();
    place.write("d/new", "also new");
    std::fs::remove_file(place.on("turned")).unwrap();
    place.write("turned/inside", "now a directory");
    std::fs::set_permissions(place.on("mode"), PermissionsExt::from_mode(0o600)).unwrap();
    (place, first)
}

#[test]
fn unsaved_edits_are_saved_first_and_the_restore_can_be_undone() {
    let (place, first) = edited();
    let before = place.picture();
    let outcome = place.restore(first.id);
    let safety = place.entry(outcome.safety.unwrap());
    assert_eq!((safety.record.origin, &safety.record.parents[..]), (SnapshotOrigin::Safety, &[first.id][..]));
    assert!(safety.record.note.contains(&place.tree.volume.short_id(&first.id).unwrap()));
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, first.id);
    let undone = place.restore(safety.id);
    assert_eq!(undone.safety, None, "nothing is lost by going back");
    place.picture().expect(&before, "undone");
}

#[test]
fn the_plan_names_every_path_and_changes_nothing() {
    let (place, first) = edited();
    let before = place.picture();
    let plan = place.tree.plan_restore(&place.request(first.id, &[]), &ProgressMeter::default()).unwrap();
    let steps: Vec<_> = plan
        .list_steps()
        .unwrap()
        .iter()
        .map(|RestoreStep { path, kind }| format!("{kind:?} {}", String::from_utf8_lossy(path)))
        .collect();
    let wanted = [
        "Delete d/new",
        "Replace edited",
        "Create gone",
        "Metadata mode",
        "Create turned",
        "Delete turned",
        "Delete turned/inside",
    ];
    assert_eq!(steps, wanted);
    let mut unsaved: Vec<_> = plan.unsaved.iter().map(|path| String::from_utf8_lossy(path)).collect();
    unsaved.sort();
    assert_eq!(unsaved, ["d/new", "edited", "mode", "turned", "turned/inside"]);
    place.picture().expect(&before, "planned only");
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, first.id);
}

#[test]
fn discarding_saves_nothing() {
    let (place, first) = edited();
    let mut request = place.request(first.id, &[]);
    request.discard = true;
    let outcome = place.try_restore(&request).unwrap();
    assert_eq!((outcome.safety, outcome.problems), (None, vec![]));
    assert_eq!(place.tree.volume.catalog.list_ids().unwrap().len(), 1);
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn permissions_and_attributes_of_directories_are_saved_too() {
    let place = Place::new();
    place.write("d/file", "x");
    let first = place.snapshot();
    std::fs::set_permissions(place.on("d"), PermissionsExt::from_mode(0o2711)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(&place.path, "user.of the root", b"x", flags).unwrap();
    let before = place.picture();
    let outcome = place.restore(first.id);
    place.restore(outcome.safety.expect("what was set on directories is saved"));
    place.picture().expect(&before, "undone");
}

#[test]
fn ignored_files_in_the_way_are_never_overwritten_unless_asked() {
    let place = Place::new();
    place.write("build", "a file once");
    place.write("linked", "twice");
    std::fs::hard_link(place.on("linked"), place.on("other")).unwrap();
    place.write("d/a", "in a directory");
    let first = place.snapshot();
    for gone in ["build", "linked", "other"] {
        std::fs::remove_file(place.on(gone)).unwrap();
    }
    place.write(".vellumignore", "build\nother\n*.o\n");
    place.write("build", "precious output");
    place.write("other", "precious too");
    place.write("d/x.o", "kept beside");
    let second = place.snapshot();
    let before = place.picture();
    let error = place.try_restore(&place.request(first.id, &[])).unwrap_err();
    assert!(error.to_string().contains("build") && error.to_string().contains("other"), "{error}");
    place.picture().expect(&before, "refused");
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, second.id);
    let mut request = place.request(first.id, &[]);
    request.discard = true;
    assert_eq!(place.try_restore(&request).unwrap().problems, []);
    assert_eq!((place.read("build"), place.read("other")), (b"a file once".to_vec(), b"twice".to_vec()));
    assert_eq!(place.read("d/x.o"), b"kept beside");
}

#[test]
fn a_directory_with_ignored_files_does_not_make_room() {
    let place = Place::new();
    place.write("target", "a file once");
    let first = place.snapshot();
    std::fs::remove_file(place.on("target")).unwrap();
    place.write(".vellumignore", "*.o\n");
    place.write("target/deep/x.o", "precious");
    place.write("target/listed", "y");
    place.snapshot();
    let before = place.picture();
    let error = place.try_restore(&place.request(first.id, &[])).unwrap_err();
    assert!(error.to_string().contains("target"), "{error}");
    place.picture().expect(&before, "refused");
    // Where it only has to go, it stays with what is ignored in it.
    std::fs::rename(place.on("target"), place.on("elsewhere")).unwrap();
    let outcome = place.try_restore(&place.request(first.id, &[])).unwrap();
    assert_eq!(concerning(&outcome.problems), ["elsewhere", "elsewhere/deep"]);
    assert_eq!(place.read("elsewhere/deep/x.o"), b"precious");
    assert_eq!(place.read("target"), b"a file once");
}

#[test]
fn the_state_of_a_volume_within_outlives_a_restore() {
    let place = Place::new();
    place.write("inner", "a file once");
    let first = place.snapshot();
    std::fs::remove_file(place.on("inner")).unwrap();
    place.write("inner/.vellum/key", "the only one");
    place.write("inner/file", "recorded");
    place.write("beside/.vellum/key", "another");
    place.snapshot();
    let error = place.try_restore(&place.request(first.id, &[])).unwrap_err();
    assert!(error.to_string().starts_with("inner would be"), "{error}");
    let mut request = place.request(first.id, &[]);
    request.discard = true;
    let outcome = place.try_restore(&request).unwrap();
    assert_eq!(concerning(&outcome.problems), ["beside", "inner", "inner"], "{:?}", outcome.problems);
    assert_eq!(place.read("inner/.vellum/key"), b"the only one");
    assert_eq!(place.read("beside/.vellum/key"), b"another");
}

#[test]
fn what_is_edited_between_plan_and_execution_stays() {
    for discard in [false, true] {
        let (place, first) = edited();
        place.snapshot();
        place.write("elder", "x");
        let lock = place.tree.lock_worktree(|| {}).unwrap();
        let mut request = place.request(first.id, &[]);
        request.discard = discard;
        let plan = place.tree.plan_restore(&request, &ProgressMeter::default()).unwrap();
        // Of the same size, and with old times put back; removed; made where nothing was.
        let time = rustix::fs::stat(place.on("edited")).unwrap();
        place.write("edited", "WORK OF A WHOLE DAY");
        crate::zoo::set_time(&place.on("edited"), time.st_mtime, time.st_mtime_nsec as i64);
        place.write("d/new", "ALSO NEW");
        place.write("mode", "new content");
        place.write("elder", "y");
        if !discard {
            place.write("gone", "it is back, and different");
        }
        std::fs::remove_dir_all(place.on("turned")).unwrap();
        let outcome = place.tree.execute_restore(plan, &ProgressMeter::default()).unwrap();
        drop(lock);
        let mut stayed = vec!["d/new", "edited", "elder", "mode"];
        if !discard {
            stayed.insert(3, "gone");
        }
        assert_eq!(concerning(&outcome.problems), stayed, "{:?}", outcome.problems);
        assert_eq!(place.read("edited"), b"WORK OF A WHOLE DAY");
        assert_eq!(
            (place.read("d/new"), place.read("mode")),
            (b"ALSO NEW".to_vec(), b"new content".to_vec())
        );
        // And it shows, though the restore has come to its end.
        let status = place.status();
        for path in ["d/new", "edited", "elder", "mode"] {
            assert!(status.iter().any(|line| line.ends_with(path)), "{path} in {status:?}");
        }
    }
}

#[test]
fn a_damaged_chunk_costs_one_file_and_is_named() {
    let place = Place::new();
    let noise = crate::chance::Chance::new(5).bytes(300_000);
    place.write("first", &noise[..100_000]);
    let first = place.snapshot();
    place.write("second", &noise[100_000..]);
    std::fs::hard_link(place.on("second"), place.on("second name")).unwrap();
    place.write("small", "x");
    let second = place.snapshot();
    // The pack that the second snapshot added for content is the largest one.
    let packs = walk(&place.beside().join("store/packs"));
    let largest = packs.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(largest).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(largest, bytes).unwrap();
    let place = place.reopened();
    place.restore(first.id);
    place.write("second", "what stands there meanwhile");
    place.write("second name", "and there");
    place.snapshot();
    let outcome = place.try_restore(&place.request(second.id, &[])).unwrap();
    assert_eq!(concerning(&outcome.problems), ["second", "second name"], "{:?}", outcome.problems);
    assert!(outcome.problems[0].message.contains("chunk") || outcome.problems[0].message.contains("blob"));
    assert_eq!((place.read("small"), place.read("first")), (b"x".to_vec(), noise[..100_000].to_vec()));
    assert_eq!(place.read("second"), b"what stands there meanwhile", "old or new, never a mixture");
    assert_eq!(place.read("second name"), b"and there");
    assert_eq!(place.status(), ["Modified second", "Modified second name"]);
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

//! Somebody who is not root, and files that he may not read: each test runs itself again as nobody.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::audit::{audit, recorded};
use crate::place::{Place, concerning};

/// The user and group that own nothing.
const NOBODY: &str = "65534";

/// Set in the process that runs as nobody: the directory it may use.
const SPACE: &str = "VELLUM_TEST_SPACE";

/// A place in which to go on as nobody; None where another process did it all.
fn as_nobody(test: &str) -> Option<Place> {
    if let Some(space) = std::env::var_os(SPACE) {
        let space = Path::new(&space);
        return Some(Place::at(&space.join("tree"), &space.join("store")));
    }
    // The program may lie where nobody may not go.
    let space = tempfile::tempdir().unwrap();
    let program = space.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [space.path(), &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let home = space.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65_534), Some(65_534)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(&program);
    command.args(["--exact", &format!("unreadable::{test}"), "--nocapture"]).env(SPACE, &home);
    let output = command.current_dir("/").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    None
}

fn permit(place: &Place, path: &str, mode: u32) {
    std::fs::set_permissions(place.on(path), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn what_cannot_be_read_is_reported_and_kept_from_the_parent() {
    let Some(place) = as_nobody("what_cannot_be_read_is_reported_and_kept_from_the_parent") else { return };
    for path in ["file", "closed/a", "closed/deep/b", "blind/c", "free", "linked"] {
        place.write(path, format!("old {path}"));
    }
    std::fs::hard_link(place.on("linked"), place.on("closed/other name")).unwrap();
    let before = place.snapshot();
    let old = recorded(&place.tree.volume, &place.state(before.record.root));
    place.write("file", "new content");
    place.write("free", "new");
    place.write("closed/a", "new");
    place.write("blind/c", "new");
    std::fs::remove_file(place.on("linked")).unwrap();
    std::fs::rename(place.on("closed/deep"), place.on("moved out")).unwrap();
    permit(&place, "file", 0o000);
    permit(&place, "closed", 0o000);
    permit(&place, "blind", 0o600);
    let made = place.try_snapshot(&[]).unwrap();
    assert_eq!(concerning(&made.problems), ["blind/c", "closed", "file"], "{:?}", made.problems);
    let state = place.state(made.record.root);
    audit(&state);
    let held = recorded(&place.tree.volume, &state);
    for kept in ["closed/a", "closed/deep/b", "closed/other name", "blind/c", "file"] {
        let held = &held.0[kept.as_bytes()];
        let old = &old.0[kept.as_bytes()];
        assert_eq!((&held.content, held.size), (&old.content, old.size), "{kept}");
    }
    assert!(held.0.contains_key(&b"moved out/b"[..]) && !held.0.contains_key(&b"linked"[..]));
    assert_eq!(held.0[&b"free"[..]].size, 3, "the rest is saved");
    for (path, mode) in [("file", 0o644), ("closed", 0o755), ("blind", 0o755)] {
        permit(&place, path, mode);
    }
    place.snapshot();
    audit(&place.state(place.tree.head_snapshot().unwrap().unwrap().record.root));
    assert_eq!(place.status(), [""; 0]);
    place.restore(before.id);
    assert_eq!(place.read("closed/a"), b"old closed/a");
}

#[test]
fn a_new_file_that_cannot_be_read_is_reported_and_left_out() {
    let Some(place) = as_nobody("a_new_file_that_cannot_be_read_is_reported_and_left_out") else { return };
    place.write("secret", "x");
    std::fs::hard_link(place.on("secret"), place.on("other name")).unwrap();
    std::fs::create_dir(place.on("dir")).unwrap();
    std::fs::hard_link(place.on("secret"), place.on("dir/third name")).unwrap();
    place.write("open", "y");
    permit(&place, "secret", 0o000);
    let made = place.try_snapshot(&[]).unwrap();
    assert_eq!(made.problems.len(), 1, "{:?}", made.problems);
    let state = place.state(made.record.root);
    audit(&state);
    let held = recorded(&place.tree.volume, &state);
    let names: Vec<_> = held.0.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(names, [".", "dir", "open"]);
    let error = place.try_restore(&place.request(made.id, &[])).unwrap_err();
    assert!(error.to_string().contains("secret"), "what no snapshot can hold is not removed: {error}");
}

#[test]
fn read_only_directories_come_back_and_are_restored_into() {
    let Some(place) = as_nobody("read_only_directories_come_back_and_are_restored_into") else { return };
    place.write("locked/inner/file", "old");
    place.write("locked/gone", "old");
    permit(&place, "locked/inner", 0o555);
    permit(&place, "locked", 0o555);
    let made = place.snapshot();
    let before = place.picture();
    permit(&place, "locked", 0o755);
    permit(&place, "locked/inner", 0o755);
    place.write("locked/inner/file", "new!");
    std::fs::remove_file(place.on("locked/gone")).unwrap();
    permit(&place, "locked/inner", 0o555);
    permit(&place, "locked", 0o555);
    place.restore(made.id);
    place.picture().expect(&before, "restored into directories that their owner may not write to");
    permit(&place, "locked", 0o755);
    permit(&place, "locked/inner", 0o755);
    place.wipe();
    place.restore(made.id);
    place.picture().expect(&before, "restored from nothing");
    permit(&place, "locked", 0o755);
    permit(&place, "locked/inner", 0o755);
}

#[test]
fn what_belongs_to_others_stays_the_callers_and_gets_no_privilege() {
    let Some(place) = as_nobody("what_belongs_to_others_stays_the_callers_and_gets_no_privilege") else {
        return;
    };
    place.write("tool", "x");
    permit(&place, "tool", 0o4755);
    let made = place.snapshot();
    place.wipe();
    place.restore(made.id);
    let mode = std::fs::metadata(place.on("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o4755, "his own set-id bit he may keep");
}

//! Plans: shown first, and run only if nothing has changed.

use std::fs;

use tempfile::TempDir;
use vellum_library::{AnnotationChange, Checkout, Volume, VolumeOptions};

use crate::stand::kind;

/// A directory with a snapshot, and a change that no snapshot has.
fn changed_checkout() -> (TempDir, Volume, Checkout, String) {
    let dir = tempfile::tempdir().unwrap();
    let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
    let volume = Volume::create_with(dir.path().join("data"), &options).unwrap().volume;
    let data = Checkout::open(dir.path().join("data")).unwrap();
    fs::write(data.root_path().join("a"), "one").unwrap();
    fs::write(data.root_path().join("b"), "b").unwrap();
    let id = data.create_snapshot("first").unwrap().id.to_string();
    fs::write(data.root_path().join("a"), "changed").unwrap();
    (dir, volume, data, id)
}

#[test]
fn a_restore_is_shown_and_then_done() {
    let (_dir, _volume, data, id) = changed_checkout();
    fs::write(data.root_path().join("c"), "new").unwrap();
    let plan = data.plan_restore(&id, &[]).unwrap();
    let steps: Vec<_> = plan.steps.iter().map(|step| (step.action, step.path.as_slice())).collect();
    assert_eq!(steps, [("replace", &b"a"[..]), ("delete", b"c")]);
    let mut unsaved = plan.unsaved.clone();
    unsaved.sort();
    assert_eq!(unsaved, [b"a".to_vec(), b"c".to_vec()]);
    assert_eq!(fs::read(data.root_path().join("a")).unwrap(), b"changed");
    let done = data.run_restore(&plan).unwrap();
    assert!(done.safety.is_some() && (done.written, done.deleted) == (1, 1));
    assert_eq!(fs::read(data.root_path().join("a")).unwrap(), b"one");
    // The directory is another one now: the plan is over.
    assert_eq!(kind(data.run_restore(&plan)), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn a_restore_of_what_changed_since_does_nothing() {
    let (_dir, _volume, data, id) = changed_checkout();
    let plan = data.plan_restore(&id, &[b"a".to_vec()]).unwrap();
    // What the plan does not touch may change.
    fs::write(data.root_path().join("b"), "other").unwrap();
    fs::write(data.root_path().join("a"), "edited meanwhile").unwrap();
    assert_eq!(kind(data.run_restore(&plan)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(data.root_path().join("a")).unwrap(), b"edited meanwhile");
    let plan = data.plan_restore(&id, &[b"a".to_vec()]).unwrap();
    data.create_snapshot("the head moves").unwrap();
    assert_eq!(kind(data.run_restore(&plan)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(data.root_path().join("b")).unwrap(), b"other");
}

#[test]
fn a_fork_is_shown_and_then_made() {
    let (dir, _volume, data, id) = changed_checkout();
    let place = dir.path().join("fork");
    let plan = data.plan_fork("fork", &place, &id).unwrap();
    assert_eq!((plan.files, plan.bytes), (2, 4));
    assert!(!place.exists());
    assert_eq!(fs::read(data.run_fork(&plan).unwrap().root_path().join("a")).unwrap(), b"one");
    // The name and the directory are taken now.
    assert_eq!(kind(data.run_fork(&plan)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(kind(data.plan_fork("other", &place, &id)), std::io::ErrorKind::AlreadyExists);
    assert!(data.plan_fork("../fork", dir.path().join("x"), &id).is_err());
}

#[test]
fn tags_and_pins_are_shown_and_then_made() {
    let (_dir, volume, data, id) = changed_checkout();
    let second = data.create_snapshot("second").unwrap().id.to_string();
    let plan = volume.plan_tag("v1", &id).unwrap();
    let other = volume.plan_tag("v1", &second).unwrap();
    assert!(volume.list_snapshots().unwrap()[0].tags.is_empty());
    volume.run_tag(&plan).unwrap();
    assert_eq!(volume.list_snapshots().unwrap()[0].tags, ["v1"]);
    assert_eq!(kind(volume.run_tag(&other)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(kind(volume.plan_tag("v1", &id)), std::io::ErrorKind::AlreadyExists);
    let first = volume.plan_pin(&id, "for ever", None).unwrap();
    let second = volume.plan_pin(&id, "another", None).unwrap();
    assert_eq!(first.replaces, None);
    volume.run_pin(&first).unwrap();
    assert_eq!(kind(volume.run_pin(&second)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(volume.plan_pin(&id, "another", None).unwrap().replaces.as_deref(), Some("for ever"));
}

#[test]
fn a_note_is_shown_and_then_said() {
    let (_dir, volume, _data, id) = changed_checkout();
    let say = |note: &str| AnnotationChange { note: Some(note.into()), ..AnnotationChange::default() };
    let first = volume.plan_note(&id, &say("another note")).unwrap();
    let second = volume.plan_note(&id, &say("a third one")).unwrap();
    let note = || volume.find_snapshot(first.snapshot).unwrap().1.note;
    assert_eq!(note(), first.replaces.note);
    volume.run_note(&first).unwrap();
    assert_eq!(note(), "another note");
    assert_eq!(kind(volume.run_note(&second)), std::io::ErrorKind::AlreadyExists);
    assert!(volume.plan_note(&id, &say("bell \u{7}")).is_err());
}

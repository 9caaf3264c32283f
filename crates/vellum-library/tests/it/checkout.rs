//! Checked-out directories.

use std::fs;
use std::io;

use tempfile::TempDir;
use vellum_library::checkout::ChangeKind;
use vellum_library::{Checkout, Error, Tree, Volume, VolumeOptions};

use crate::stand::kind;

fn new_checkout() -> (TempDir, Checkout) {
    let dir = tempfile::tempdir().unwrap();
    let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
    drop(Volume::create_with(dir.path().join("data"), &options).unwrap());
    let checkout = Checkout::open(dir.path().join("data")).unwrap();
    (dir, checkout)
}

#[test]
fn a_directory_is_recorded_compared_and_restored() {
    let (_dir, data) = new_checkout();
    assert_eq!(data.name(), "main");
    assert!(data.list_history().unwrap().is_empty());
    fs::create_dir(data.root_path().join("sub")).unwrap();
    fs::write(data.root_path().join("sub/a"), "one").unwrap();
    fs::write(data.root_path().join("b"), "b").unwrap();
    let first = data.create_snapshot("first").unwrap();
    assert!(first.problems.is_empty() && !first.is_unchanged);
    assert!(data.create_snapshot("again").unwrap().is_unchanged);
    fs::write(data.root_path().join("sub/a"), "other").unwrap();
    fs::remove_file(data.root_path().join("b")).unwrap();
    let changes = data.list_changes().unwrap().changes;
    let shown: Vec<_> = changes.iter().map(|change| (change.kind, change.path())).collect();
    assert_eq!(shown, [(ChangeKind::Deleted, &b"b"[..]), (ChangeKind::Modified, b"sub/a")]);
    // From within the directory, too.
    let inside = Checkout::open(data.root_path().join("sub")).unwrap();
    let done = inside.restore_paths(&first.id.to_string(), &["b"]).unwrap();
    assert_eq!((done.written, done.safety), (1, None));
    assert_eq!(fs::read(data.root_path().join("b")).unwrap(), b"b");
    assert_eq!(inside.restore_paths::<&str>("HEAD", &[]).unwrap().written, 0);
    let done = data.restore_snapshot("HEAD").unwrap();
    assert_eq!(fs::read(data.root_path().join("sub/a")).unwrap(), b"one");
    let safety = data.open_snapshot(&done.safety.unwrap().to_string()).unwrap();
    assert_eq!(safety.read("sub/a").unwrap(), b"other");
    fs::write(data.root_path().join("sub/a"), "lost").unwrap();
    assert_eq!(data.restore_discarding_changes("HEAD").unwrap().safety, None);
    let notes: Vec<_> = data.list_history().unwrap().into_iter().map(|info| info.note).collect();
    assert_eq!(notes.last().unwrap(), "first");
    assert_eq!(kind(data.restore_snapshot("nothing")), io::ErrorKind::NotFound);
}

#[test]
fn a_fork_is_a_worktree_of_its_own() {
    let (dir, data) = new_checkout();
    fs::write(data.root_path().join("a"), "one").unwrap();
    data.create_snapshot("first").unwrap();
    let fork = data.fork_worktree("side", dir.path().join("side"), "HEAD").unwrap();
    assert_eq!((fork.name(), fs::read(fork.root_path().join("a")).unwrap()), ("side", b"one".to_vec()));
    fs::write(fork.root_path().join("a"), "two").unwrap();
    fork.create_snapshot("of the fork").unwrap();
    assert_eq!(fs::read(data.root_path().join("a")).unwrap(), b"one");
    assert_eq!(data.list_history().unwrap().len(), 1);
    assert_eq!(fork.list_history().unwrap().len(), 2);
    // The directory is taken.
    assert!(data.fork_worktree("other", fork.root_path(), "HEAD").is_err());
}

#[test]
fn a_copied_directory_is_refused() {
    let (dir, data) = new_checkout();
    fs::write(data.root_path().join("a"), "one").unwrap();
    data.create_snapshot("first").unwrap();
    let copy = dir.path().join("copy");
    let copied =
        std::process::Command::new("cp").arg("-a").arg(data.root_path()).arg(&copy).status().unwrap();
    assert!(copied.success());
    // The store is in the directory, so that the copy is a volume of its own; without it, it is the same worktree twice.
    let _ = fs::remove_dir_all(copy.join(".vellum/store"));
    assert!(Checkout::open(&copy).and_then(|copy| copy.create_snapshot("second")).is_err());
}

#[test]
fn what_nobody_needs_is_collected() {
    let (_dir, data) = new_checkout();
    let volume = Volume::open(data.root_path()).unwrap();
    fs::write(data.root_path().join("a"), vec![7; 1000]).unwrap();
    data.create_snapshot("first").unwrap();
    let collected = volume.collect_garbage().unwrap();
    assert_eq!((collected.freed_bytes, collected.waiting_writers), (0, 0));
    let missing = Checkout::open("/").err().unwrap();
    assert!(matches!(missing, Error::Checkout(_)), "{missing}");
}

#[test]
fn a_volume_is_made_with_chunks_of_a_size_in_range() {
    let dir = tempfile::tempdir().unwrap();
    for wrong in [0, 3, 8191, (1 << 20) + 1, usize::MAX] {
        let options = VolumeOptions { plain: true, chunk_size: Some(wrong), ..VolumeOptions::default() };
        let error = Volume::create_with(dir.path().join("wrong"), &options).err().unwrap();
        assert!(error.to_string().contains("from 8 KiB to 1 MiB"), "{error}");
        assert!(!dir.path().join("wrong").exists());
    }
    let options = VolumeOptions { plain: true, chunk_size: Some(8 << 10), ..VolumeOptions::default() };
    let made = Volume::create_with(dir.path().join("right"), &options).unwrap().volume;
    let inner = vellum_volume::Volume::open(
        &vellum_volume::StateDir::find_enclosing(&dir.path().join("right")).unwrap(),
    );
    assert_eq!(inner.unwrap().config.chunker.target_len(), 8 << 10);
    drop(made);
}

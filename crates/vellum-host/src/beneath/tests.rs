//! Names, temporary files, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::os::unix::fs::symlink;

use rustix::io::Errno;

use super::*;
use crate::beneath::create::new_temp_name;

fn temp_dir() -> (tempfile::TempDir, HeldDir) {
    let temp = tempfile::tempdir().unwrap();
    let dir = HeldDir::open_root(temp.path()).unwrap();
    (temp, dir)
}

#[test]
fn temporary_names_are_recognised_and_differ() {
    let one = new_temp_name().unwrap();
    let other = new_temp_name().unwrap();
    assert_ne!(one, other);
    assert!(is_temp_name(&one));
    for name in
        [&b".vellum-tmp-"[..], b".vellum-tmp-0123456789abcdeX", b".vellum-tmp-0123456789abcdef0", b"x"]
    {
        assert!(!is_temp_name(name), "{name:?}");
    }
}

#[test]
fn a_new_file_appears_at_commit_only() {
    for staging in [StagingMethod::Named, StagingMethod::Anonymous] {
        let (_temp, dir) = temp_dir();
        let new = dir.stage_file_by(staging).unwrap();
        new.file().unwrap().write_all(b"content").unwrap();
        assert!(dir.stat(b"f").unwrap_err().is_not_found());
        new.commit(b"f", ReplacePolicy::Never).unwrap();
        assert_eq!(dir.stat(b"f").unwrap().size, 7);
        assert_eq!(dir.stat(b"f").unwrap().nlink, 1);

        let second = dir.stage_file_by(staging).unwrap();
        assert!(second.commit(b"f", ReplacePolicy::Never).is_err(), "{staging:?}");
        let third = dir.stage_file_by(staging).unwrap();
        third.commit(b"f", ReplacePolicy::Always).unwrap();
        assert_eq!(dir.stat(b"f").unwrap().size, 0);

        drop(dir.stage_file_by(staging).unwrap());
        assert_eq!(dir.read_names().unwrap().len(), 1, "{staging:?} leaves something behind");
    }
}

#[test]
fn a_file_begun_in_one_directory_gets_its_name_in_another() {
    for staging in [StagingMethod::Named, StagingMethod::Anonymous] {
        let (_temp, dir) = temp_dir();
        dir.create_dir(b"begun", 0o700).unwrap();
        let begun = dir.open_dir_to_read(b"begun").unwrap();
        for (content, replace) in [("1", ReplacePolicy::Never), ("22", ReplacePolicy::Always)] {
            let mut new = begun.stage_file_by(staging).unwrap();
            new.file().unwrap().write_all(content.as_bytes()).unwrap();
            new.commit_in(&dir, b"f", replace).unwrap();
            assert_eq!(dir.stat(b"f").unwrap().size, content.len() as u64);
        }
        let mut late = begun.stage_file_by(staging).unwrap();
        assert!(late.commit_in(&dir, b"f", ReplacePolicy::Never).is_err());
        drop(late);
        assert_eq!(
            (begun.read_names().unwrap().len(), dir.read_names().unwrap().len()),
            (0, 2),
            "{staging:?}"
        );
    }
}

#[test]
fn forgotten_temporary_files_are_swept_and_nothing_else() {
    let (_temp, dir) = temp_dir();
    dir.create_file(&new_temp_name().unwrap(), 0o600).unwrap();
    dir.create_file(b".vellum-tmp-notes", 0o600).unwrap();
    assert_eq!(remove_temp_entries(&dir).unwrap(), 1);
    assert_eq!(dir.read_names().unwrap().len(), 1);
}

#[test]
fn only_single_components_are_names() {
    let (_temp, dir) = temp_dir();
    for name in [&b""[..], b".", b"..", b"a/b", b"/a", b"a\0", &[b'x'; 256]] {
        assert!(matches!(dir.create_file(name, 0o600), Err(BeneathError::Name(_))), "{name:?}");
        assert!(matches!(dir.stat(name), Err(BeneathError::Name(_))));
        assert!(matches!(dir.create_dir(name, 0o700), Err(BeneathError::Name(_))));
        assert!(matches!(dir.open_dir(name), Err(BeneathError::Name(_))));
        dir.create_file(b"f", 0o600).unwrap();
        assert!(matches!(dir.rename(b"f", &dir, name), Err(BeneathError::Name(_))));
        assert!(matches!(dir.link_file(b"f", &dir, name), Err(BeneathError::Name(_))));
        dir.unlink(b"f").unwrap();
    }
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let (temp, dir) = temp_dir();
    dir.create_special(b"fifo", SpecialFile::Fifo, 0o600).unwrap();
    dir.create_dir(b"dir", 0o700).unwrap();
    symlink("/etc/passwd", temp.path().join("link")).unwrap();
    assert!(matches!(dir.open_file(b"fifo"), Err(BeneathError::NotRegular(_))));
    assert!(matches!(dir.open_file(b"dir"), Err(BeneathError::NotRegular(_))));
    assert!(dir.open_file(b"link").unwrap_err().is_not_a_directory());
    assert!(dir.open_dir(b"link").unwrap_err().is_not_a_directory());
    assert!(dir.open_file_to_update(b"dir").is_err());
}

#[test]
fn resolution_stays_beneath() {
    let (temp, dir) = temp_dir();
    dir.create_dir(b"a", 0o700).unwrap();
    dir.resolve_dir(b"a").unwrap().create_dir(b"b", 0o700).unwrap();
    symlink("/", temp.path().join("out")).unwrap();
    symlink("a", temp.path().join("in")).unwrap();
    assert_eq!(dir.resolve_dir(b"a/./b//").unwrap().stat_self().unwrap().kind, vellum_types::FileKind::Dir);
    assert_eq!(dir.resolve_dir(b"").unwrap().stat_self().unwrap().ino, dir.stat_self().unwrap().ino);
    for path in [&b"a/../a"[..], b"..", b"out/etc", b"in/b", b"a/b/../../.."] {
        assert!(dir.resolve_dir(path).is_err(), "{path:?}");
    }
    let (parent, name) = dir.resolve_parent(b"a/b/file").unwrap();
    assert_eq!(name, b"file");
    assert!(parent.read_names().unwrap().is_empty());
    assert!(dir.resolve_parent(b"a/..").is_err());
}

#[test]
fn a_directory_without_permission_to_read_can_be_stood_on() {
    let (_temp, dir) = temp_dir();
    dir.create_dir(b"d", 0o300).unwrap();
    let inner = dir.open_dir(b"d").unwrap();
    inner.create_file(b"f", 0o600).unwrap();
    assert_eq!(inner.stat(b"f").unwrap().size, 0);
    inner.sync_names().ok();
}

#[test]
fn a_hidden_directory_gets_its_name_whole_or_goes() {
    let (_temp, dir) = temp_dir();
    let hidden = dir.create_hidden_dir().unwrap();
    hidden.stage_file(b"f", 0o644).unwrap().commit(b"f", ReplacePolicy::Never).unwrap();
    drop(hidden.stage_file(b"given up", 0o644).unwrap());
    let temp = dir.read_names().unwrap().iter().next().unwrap().name.to_vec();
    // It is locked as long as it has no name of its own.
    assert!(is_temp_name(&temp) && !remove_stale_hidden_dir(&dir, &temp).unwrap());
    hidden.commit(b"d").unwrap();
    drop(hidden);
    assert_eq!(dir.open_dir(b"d").unwrap().read_names().unwrap().len(), 1);

    let second = dir.create_hidden_dir().unwrap();
    second.stage_file(b"g", 0o644).unwrap().commit(b"g", ReplacePolicy::Never).unwrap();
    assert!(second.commit(b"d").is_err());
    assert!(second.move_entries_into(&dir.open_dir(b"d").unwrap()).unwrap().is_empty());
    drop(second);
    assert_eq!(dir.read_names().unwrap().len(), 1);
    assert_eq!(dir.open_dir(b"d").unwrap().read_names().unwrap().len(), 2);
}

#[test]
fn a_forgotten_hidden_directory_is_swept_with_the_temporary_files() {
    let (_temp, dir) = temp_dir();
    let temp = new_temp_name().unwrap();
    dir.create_dir(&temp, 0o700).unwrap();
    dir.open_dir(&temp).unwrap().create_file(b"f", 0o600).unwrap();
    dir.create_file(&new_temp_name().unwrap(), 0o600).unwrap();
    assert_eq!(remove_temp_entries(&dir).unwrap(), 2);
    assert!(dir.read_names().unwrap().is_empty());
}

/// What filesystems do that know neither `RENAME_NOREPLACE` nor hard links: exFAT through FUSE, and others.
#[test]
fn a_name_is_made_exclusively_where_nothing_else_can_and_never_taken_from_another() {
    let (temp, dir) = temp_dir();
    let path = |name: &str| temp.path().join(name);
    std::fs::write(path("a"), "a").unwrap();
    std::fs::write(path("taken"), "taken").unwrap();
    dir.rename_over_empty_file(b"a", &dir, b"new").unwrap();
    assert_eq!(std::fs::read(path("new")).unwrap(), b"a");
    let refused = dir.rename_over_empty_file(b"new", &dir, b"taken").unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::EXIST));
    assert_eq!(std::fs::read(path("taken")).unwrap(), b"taken");
    assert!(path("new").exists() && !path("a").exists());
    // What cannot be renamed leaves nothing under the new name.
    assert!(dir.rename_over_empty_file(b"a", &dir, b"other").unwrap_err().is_not_found());
    assert!(!path("other").exists());

    std::fs::create_dir_all(path("d/in")).unwrap();
    std::fs::create_dir(path("e")).unwrap();
    assert_eq!(dir.rename_over_empty_dir(b"d", &dir, b"e").unwrap_err().errno(), Some(Errno::EXIST));
    dir.rename_over_empty_dir(b"d", &dir, b"f").unwrap();
    assert!(path("f/in").is_dir() && path("e").is_dir() && !path("d").exists());
}

//! What only a store in a directory can get wrong.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use vellum_store::{LocalStore, ObjectKey, ObjectRename, ObjectStore, StoreError};
use vellum_types::ErrorKind;

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn files_in(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[test]
fn a_symlink_in_the_store_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("store");
    let outside = dir.path().join("outside");
    let store = LocalStore::create(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink(&outside, inside.join("packs")).unwrap();
    symlink(outside.join("secret"), inside.join("config")).unwrap();
    for name in ["packs/secret", "config"] {
        assert!(store.get_object(&key(name), u64::MAX).is_err(), "{name}");
        assert!(store.get_range(&key(name), 0, 1).is_err(), "{name}");
    }
    assert!(store.put_object(&key("packs/new"), b"x").is_err());
    assert!(store.swap_ref(&key("packs/new"), None, Some(b"x")).is_err());
    assert!(store.delete_object(&key("packs/secret")).is_err());
    // They are listed, so that a verification finds out, but nothing behind them.
    let listed: Vec<_> =
        store.list_objects("").unwrap().into_iter().map(|info| info.key.to_string()).collect();
    assert_eq!(listed, ["config", "packs"]);
    assert_eq!(files_in(&outside), 1);
}

#[test]
fn devices_and_pipes_are_not_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::create(dir.path()).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("config"), 0o600.into()).unwrap();
    assert!(matches!(store.get_object(&key("config"), u64::MAX), Err(StoreError::NotAFile { .. })));
    assert_eq!(store.list_objects("").unwrap().len(), 1, "a verification finds out");
}

#[test]
fn leftovers_of_the_dead_are_swept_and_those_of_the_living_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let temp = dir.path().join(".tmp");
    fs::create_dir(&temp).unwrap();
    let old = fs::File::create(temp.join("old")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(25 * 60 * 60)).unwrap();
    fs::write(temp.join("young"), "").unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    store.put_object(&key("x"), b"x").unwrap();
    assert!(!temp.join("old").exists() && temp.join("young").exists());
    assert_eq!(store.list_objects("").unwrap().len(), 1, "temporary files are no objects");
}

#[test]
fn a_refused_put_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::create(dir.path()).unwrap();
    store.put_object(&key("x"), b"x").unwrap();
    store.put_object(&key("x"), b"y").unwrap_err();
    assert_eq!(files_in(&dir.path().join(".tmp")), 0);
}

#[test]
fn objects_are_for_whom_the_root_is_for() {
    let dir = tempfile::tempdir().unwrap();
    let private = LocalStore::create(dir.path().join("private")).unwrap();
    private.put_object(&key("packs/x"), b"x").unwrap();
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o777;
    assert_eq!(mode("private"), 0o700);
    assert_eq!(mode("private/packs"), 0o700);
    assert_eq!(mode("private/packs/x"), 0o600);
    fs::create_dir(dir.path().join("shared")).unwrap();
    fs::set_permissions(dir.path().join("shared"), fs::Permissions::from_mode(0o750)).unwrap();
    LocalStore::open(dir.path().join("shared")).unwrap().put_object(&key("x"), b"x").unwrap();
    assert_eq!(mode("shared/x") & 0o037, 0);
}

#[test]
fn a_held_pack_stays_right_and_a_deleted_one_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::create(dir.path()).unwrap();
    let other = LocalStore::open(dir.path()).unwrap();
    for number in 0..600 {
        store.put_object(&key(&format!("packs/{number}")), number.to_string().as_bytes()).unwrap();
    }
    // More packs than descriptors are held.
    for number in (0..600).chain(0..600) {
        let text = number.to_string();
        let read = store.get_range(&key(&format!("packs/{number}")), 0, text.len() as u64).unwrap();
        assert_eq!(read, text.as_bytes());
    }
    store.delete_object(&key("packs/1")).unwrap();
    assert!(store.get_range(&key("packs/1"), 0, 1).unwrap_err().is_not_found());
    assert!(other.get_range(&key("packs/1"), 0, 1).unwrap_err().is_not_found());
}

#[test]
fn a_missing_directory_is_an_error_that_names_it() {
    let error = LocalStore::open("/nonexistent/store").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/nonexistent/store"), "{error}");
}

#[test]
fn no_space_is_an_error_of_that_kind_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("small");
    fs::create_dir(&mount).unwrap();
    // Needs the right to mount; without it there is nothing to test here.
    let Ok(()) =
        rustix::mount::mount("tmpfs", &mount, "tmpfs", rustix::mount::MountFlags::empty(), c"size=256k")
    else {
        return;
    };
    let store = LocalStore::create(mount.join("store")).unwrap();
    store.put_object(&key("packs/first"), &[1; 100_000]).unwrap();
    let error = store.put_object(&key("packs/second"), &[2; 300_000]).unwrap_err();
    let together = [(key("packs/third"), &[3; 100_000][..]), (key("packs/fourth"), &[4; 100_000][..])];
    let error_together = store.put_objects(&together).unwrap_err();
    let left = files_in(&mount.join("store/.tmp"));
    let listed = store.list_objects("packs").unwrap().len();
    let room = store.put_object(&key("packs/fifth"), &[5; 100_000]);
    drop(store);
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!((error.kind(), error_together.kind()), (ErrorKind::NoSpace, ErrorKind::NoSpace));
    assert_eq!((left, listed), (0, 1));
    room.unwrap();
}

#[test]
fn what_another_deleted_takes_no_space_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let other = LocalStore::open(dir.path()).unwrap();
    let pack = key("packs/00/00");
    let head = key("refs/tag/x");
    store.put_object(&pack, b"content").unwrap();
    assert_eq!(store.get_range(&pack, 0, 7).unwrap(), b"content");
    let held = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().map(|fd| fs::read_link(fd.unwrap().path()));
        let path = dir.path().canonicalize().unwrap().join("packs/00/00");
        links
            .filter(|link| {
                link.as_ref().is_ok_and(|link| link.to_str().unwrap().starts_with(path.to_str().unwrap()))
            })
            .count()
    };
    other.delete_object(&pack).unwrap();
    assert_eq!(held(), 1);
    assert_eq!(store.get_range(&pack, 0, 7).unwrap(), b"content", "who reads it goes on");
    store.swap_ref(&head, None, Some(b"1")).unwrap();
    assert_eq!(held(), 0);
    assert!(matches!(store.get_range(&pack, 0, 7), Err(StoreError::NotFound { .. })));
}

#[test]
fn renamed_objects_have_the_new_key_and_nothing_else_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::create(dir.path()).unwrap();
    store.put_object(&key("snapshots/a"), b"a").unwrap();
    store.put_object(&key("snapshots/b"), b"b").unwrap();
    store.put_object(&key("forgotten/b"), b"left by one that was killed").unwrap();
    let rename = |name: &str| ObjectRename {
        from: key(&format!("snapshots/{name}")),
        to: key(&format!("forgotten/{name}")),
    };
    let renaming = store.as_renaming().unwrap();
    assert_eq!(
        renaming.rename_objects(&[rename("a"), rename("gone"), rename("b")]).unwrap(),
        [true, false, true]
    );
    assert_eq!(store.get_object(&key("forgotten/a"), 9).unwrap(), b"a");
    assert_eq!(store.get_object(&key("forgotten/b"), 9).unwrap(), b"b");
    assert!(store.list_keys("snapshots").unwrap().is_empty());
    // What stands in the place of an object is none.
    fs::create_dir(dir.path().join("snapshots/c")).unwrap();
    symlink("forgotten", dir.path().join("snapshots/d")).unwrap();
    assert!(renaming.rename_objects(&[rename("c")]).is_err());
    assert!(renaming.rename_objects(&[rename("d")]).is_err());
    assert!(dir.path().join("snapshots/c").is_dir());
}

#[test]
fn folders_that_somebody_removed_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = LocalStore::create(&path).unwrap();
    for round in 0..2 {
        store.put_object(&key("a/b/one"), b"one").unwrap();
        store.put_object(&key("a/b-c/two"), b"two").unwrap();
        store.swap_ref(&key("refs/head"), None, Some(b"head")).unwrap();
        assert_eq!(store.list_keys("a").unwrap().len(), 2, "{round}");
        let removed = if round == 0 { ["a/b", "refs"] } else { ["a", "refs"] };
        removed.iter().for_each(|folder| std::fs::remove_dir_all(path.join(folder)).unwrap());
        if round == 0 {
            store.delete_object(&key("a/b-c/two")).unwrap();
        }
    }
    // Of the whole store that is an error.
    std::fs::remove_dir_all(&path).unwrap();
    let put = store.put_object(&key("a/b/one"), b"one");
    assert!(put.is_err(), "{put:?}");
}

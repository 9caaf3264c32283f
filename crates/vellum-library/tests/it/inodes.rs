//! Trees by inode numbers.

use vellum_library::{
    AttributeChanges, EntryOwner, EntryPlace, Error, FileKind, NodeKind, Result, TimeChange, Tree as _,
    TreeInodes,
};

use crate::stand::Stand;

const OWNER: EntryOwner = EntryOwner { uid: 7, gid: 8 };
const ROOT: u64 = TreeInodes::ROOT;

fn at(dir: u64, name: &str) -> EntryPlace<'_> {
    EntryPlace { dir, name: name.as_bytes() }
}

/// The error number of what must fail.
#[track_caller]
fn errno<T>(result: Result<T>) -> Option<rustix::io::Errno> {
    let error: Error = result.err().unwrap();
    error.errno().map(rustix::io::Errno::from_raw_os_error)
}

const STALE: Option<rustix::io::Errno> = Some(rustix::io::Errno::STALE);
const ROFS: Option<rustix::io::Errno> = Some(rustix::io::Errno::ROFS);

#[test]
fn a_worktree_is_changed_and_read_by_numbers() {
    let stand = Stand::new();
    let inodes = stand.work.inodes();
    let dir = inodes.create_dir(at(ROOT, "dir"), 0o750, OWNER).unwrap();
    assert_eq!((dir.mode(), dir.uid(), dir.gid()), (0o750, 7, 8));
    let file = inodes.create_file(at(dir.ino(), "file"), 0o640, OWNER).unwrap();
    assert_eq!(inodes.write(file.ino(), 3, b"content").unwrap(), 7);
    assert_eq!(inodes.read(file.ino(), 0, 5).unwrap(), b"\0\0\0co");
    assert_eq!(stand.work.read("dir/file").unwrap(), b"\0\0\0content");
    inodes.link(file.ino(), at(ROOT, "link")).unwrap();
    inodes.rename(at(dir.ino(), "file"), at(ROOT, "renamed"), 0).unwrap();
    let names: Vec<_> = inodes.list(ROOT).unwrap().into_iter().map(|entry| (entry.name, entry.ino)).collect();
    let expected = [("dir", dir.ino()), ("link", file.ino()), ("renamed", file.ino())];
    assert_eq!(names, expected.map(|(name, ino)| (name.into(), ino)));
    assert_eq!(inodes.find_entry(ROOT, b"link").unwrap(), Some(file.ino()));
    assert_eq!(inodes.find_entry(ROOT, b"none").unwrap(), None);
    let soft = inodes.create_symlink(at(dir.ino(), "soft"), b"../link", OWNER).unwrap();
    assert_eq!(inodes.read_link(soft.ino()).unwrap(), b"../link");
    let pipe = inodes.create_node(at(dir.ino(), "pipe"), NodeKind::Fifo, 0o600, OWNER).unwrap();
    assert_eq!((pipe.kind(), pipe.mode()), (FileKind::Fifo, 0o600));
    let changes = AttributeChanges {
        size: Some(4),
        mode: Some(0o600),
        mtime: Some(TimeChange::Now),
        ..AttributeChanges::default()
    };
    let changed = inodes.set_attributes(file.ino(), &changes, OWNER).unwrap();
    assert_eq!((changed.size(), changed.mode(), changed.links()), (4, 0o600, 2));
    inodes.unlink(at(dir.ino(), "soft"), 0).unwrap();
    inodes.unlink(at(dir.ino(), "pipe"), 0).unwrap();
    inodes.remove_dir(at(ROOT, "dir"), 0).unwrap();
    inodes.sync().unwrap();
    assert!(inodes.statistics().unwrap().is_some());
    assert_eq!(errno(inodes.stat(dir.ino())), STALE);
    assert_eq!(errno(inodes.list(dir.ino())), STALE);
}

#[test]
fn dots_stay_within_the_tree_and_symlinks_are_not_followed() {
    let stand = Stand::new();
    stand.work.mkdir_all("one/two").unwrap();
    stand.work.symlink("..", "one/up").unwrap();
    let inodes = stand.work.inodes();
    let one = inodes.lookup(ROOT, b"one").unwrap().ino();
    let two = inodes.lookup(one, b"two").unwrap().ino();
    assert_eq!(inodes.lookup(two, b"..").unwrap().ino(), one);
    assert_eq!(inodes.lookup(two, b".").unwrap().ino(), two);
    assert_eq!(inodes.lookup(ROOT, b"..").unwrap().ino(), ROOT);
    assert_eq!(inodes.parent(one).unwrap(), ROOT);
    let up = inodes.lookup(one, b"up").unwrap();
    assert!(up.is_symlink());
    for name in ["one/two", "", "/", "a\0b", &"n".repeat(256)] {
        assert!(inodes.lookup(ROOT, name.as_bytes()).is_err(), "{name:?}");
    }
    assert!(inodes.lookup(up.ino(), b"one").is_err());
    assert!(inodes.read(up.ino(), 0, 1).is_err() && inodes.read(one, 0, 1).is_err());
}

#[test]
fn snapshots_are_read_only_and_have_no_other_numbers() {
    let stand = Stand::new();
    stand.work.write("file", "content").unwrap();
    let id = stand.work.create_snapshot("first").unwrap();
    stand.work.flush().unwrap();
    stand.work.write("later", "").unwrap();
    let later = stand.work.stat("later").unwrap().ino();
    // As the worktree has it, and as it is in the store.
    for snapshot in [
        stand.work.open_snapshot(&id.to_string()).unwrap(),
        stand.volume.open_snapshot(&id.to_string()).unwrap(),
    ] {
        let inodes = snapshot.inodes();
        let file = inodes.lookup(ROOT, b"file").unwrap();
        assert_eq!(inodes.read(file.ino(), 0, 100).unwrap(), b"content");
        assert_eq!(inodes.stored_bytes(&file).unwrap(), 7);
        assert!(inodes.statistics().unwrap().is_none());
        for ino in [later, 0, 1 << 40, u64::MAX] {
            assert_eq!(errno(inodes.stat(ino)), STALE, "{ino}");
            assert_eq!(errno(inodes.read(ino, 0, 1)), STALE, "{ino}");
            assert_eq!(errno(inodes.list(ino)), STALE, "{ino}");
        }
        assert_eq!(errno(inodes.create_file(at(ROOT, "new"), 0o644, OWNER)), ROFS);
        assert_eq!(errno(inodes.write(file.ino(), 0, b"x")), ROFS);
        assert_eq!(errno(inodes.unlink(at(ROOT, "file"), 0)), ROFS);
        assert_eq!(errno(inodes.sync()), ROFS);
    }
}

#[test]
fn numbers_are_stale_after_a_restore() {
    let stand = Stand::new();
    stand.work.write("file", "content").unwrap();
    let id = stand.work.create_snapshot("first").unwrap();
    let inodes = stand.work.inodes();
    let file = inodes.lookup(ROOT, b"file").unwrap().ino();
    stand.work.restore_discarding_changes(&id.to_string()).unwrap();
    assert_eq!(errno(inodes.stat(file)), STALE);
    assert_eq!(errno(inodes.write(file, 0, b"x")), STALE);
    assert!(stand.work.inodes().stat(file).is_ok());
}

#[test]
fn inodes_are_the_same_after_opening_again() {
    let stand = Stand::new();
    let made = stand.work.inodes().create_file(at(ROOT, "file"), 0o644, OWNER).unwrap();
    stand.work.inodes().write(made.ino(), 0, b"content").unwrap();
    let key = stand.volume.derive_key("a purpose");
    let stand = stand.again();
    let found = stand.work.inodes().stat(made.ino()).unwrap();
    assert_eq!(found.attributes().generation, made.attributes().generation);
    assert_eq!(found.created(), made.created());
    assert_eq!(stand.volume.derive_key("a purpose"), key);
    assert_ne!(stand.volume.derive_key("another one"), key);
}

//! Copying from views: what comes back, and that content is shared.

use rustix::io::Errno;
use vellum_fs::StateReader;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::{AttributeChanges, LiveView, TimeChange, XattrFlags};
use vellum_types::{Ino, UnixTime};
use vellum_volume::SnapshotOrigin;

use crate::check::check;
use crate::stand::{CALLER, ROOT, Stand, errno};

const BIG: usize = 200_000;

fn set_mtime(stand: &Stand, path: &str, secs: i64) {
    let mtime = Some(TimeChange::At(UnixTime { secs, nanos: 7 }));
    stand
        .attributes()
        .setattr(stand.at(path).ino, &AttributeChanges { mtime, ..AttributeChanges::default() }, CALLER)
        .unwrap();
}

/// A tree with links, extended attributes, owners and times of its own, and a view of it.
fn original() -> (Stand, LiveView) {
    let stand = Stand::new();
    stand.populate(&["dir/", "dir/deep/", "dir/big", "dir/small", "outside"]);
    let big: Vec<u8> = (0..BIG).map(|at| (at / 7) as u8).collect();
    stand.content().write(stand.at("dir/big").ino, 0, &big, false).unwrap();
    stand.content().write(stand.at("dir/small").ino, 0, b"hello", false).unwrap();
    stand.link("dir/big", "dir/deep/again").unwrap();
    stand.link("outside", "dir/deep/outside").unwrap();
    stand.fs.names().symlink(stand.at("dir").ino, b"link", b"deep/again", CALLER).unwrap();
    stand.attributes().setxattr(stand.at("dir").ino, b"user.mark", b"1", XattrFlags::default()).unwrap();
    let small = stand.at("dir/small").ino;
    let owner = AttributeChanges { uid: Some(1234), gid: Some(77), ..AttributeChanges::default() };
    stand.attributes().setattr(small, &owner, CALLER).unwrap();
    stand
        .attributes()
        .setattr(small, &AttributeChanges { mode: Some(0o4711), ..AttributeChanges::default() }, CALLER)
        .unwrap();
    for (path, secs) in [("dir/big", 1), ("dir/small", 2), ("dir/deep", -3), ("dir", 4)] {
        set_mtime(&stand, path, secs);
    }
    let view = stand.fs.open_view().unwrap();
    (stand, view)
}

#[track_caller]
fn assert_copied(stand: &Stand, dir: &str) {
    assert_like_original(stand, dir);
    assert_eq!(stand.attr(&format!("{dir}/deep/outside")).nlink, 1, "the other link lies outside");
}

#[track_caller]
fn assert_like_original(stand: &Stand, dir: &str) {
    let at = |name: &str| stand.at(&format!("{dir}{name}"));
    let [top, big, small, deep] = ["", "/big", "/small", "/deep"].map(at);
    let mtimes = [&big, &small, &deep, &top].map(|node| node.attr.mtime);
    assert_eq!(mtimes, [1, 2, -3, 4].map(|secs| UnixTime { secs, nanos: 7 }));
    assert_eq!(&*stand.getxattr(top.ino, b"user.mark").unwrap(), b"1");
    assert_eq!((small.attr.uid, small.attr.gid, small.attr.mode), (1234, 77, 0o4711));
    assert_eq!(stand.read(small.ino, 0, 10).unwrap(), b"hello");
    let content = stand.read(big.ino, 0, BIG + 1).unwrap();
    assert!(content.len() == BIG && content.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8));
    assert_eq!(at("/deep/again").ino, big.ino, "a link within is a link again");
    assert_eq!(big.attr.nlink, 2);
    assert_eq!(stand.readlink(at("/link").ino).unwrap(), b"deep/again");
}

#[test]
fn everything_comes_back_and_content_is_shared() {
    let (stand, view) = original();
    let dir = view.find_dentry(ROOT, b"dir").unwrap().ino;
    let before = stand.write_log().used_bytes();
    stand.names().remove_tree(ROOT, b"dir", 0).unwrap();
    assert!(!stand.exists("dir"));
    for name in ["dir", "copy"] {
        stand.copy_tree(&view, dir, ROOT, name.as_bytes()).unwrap();
        assert_copied(&stand, name);
    }
    assert_eq!(stand.write_log().used_bytes(), before, "no byte was copied");
    assert_eq!(errno(stand.copy_tree(&view, dir, ROOT, b"copy")), Errno::EXIST);
    drop(view);
    check(&stand);
    stand.publisher().publish_all().unwrap();
    assert_copied(&stand, "dir");
    let names: Vec<_> = stand.list_entries(ROOT).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [&b"copy"[..], b"dir", b"outside"], "nothing else is left");
}

#[test]
fn published_content_is_shared_too() {
    let (stand, view) = original();
    drop(view);
    let request = LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User };
    let id = stand.create_snapshot(&request).unwrap();
    stand.publisher().publish_all().unwrap();
    stand.names().remove_tree(ROOT, b"dir", 0).unwrap();
    let view = stand.fs.open_snapshot_view(id).unwrap();
    stand.copy_tree(&view, view.find_dentry(ROOT, b"dir").unwrap().ino, ROOT, b"dir").unwrap();
    assert_eq!(stand.write_log().used_bytes(), 0, "no byte was copied");
    assert_copied(&stand, "dir");
    stand.publisher().publish_all().unwrap();
    assert_copied(&stand, "dir");
    check(&stand);
}

#[test]
fn a_whole_view_is_copied_into_itself() {
    let (stand, view) = original();
    stand.copy_tree(&view, ROOT, stand.at("dir").ino, b"all").unwrap();
    assert_like_original(&stand, "dir/all/dir");
    assert_eq!(stand.at("dir/all/outside").ino, stand.at("dir/all/dir/deep/outside").ino);
    assert!(!stand.exists("dir/all/dir/all"));
    check(&stand);
}

#[test]
fn a_file_of_many_pieces_is_copied() {
    let stand = Stand::new();
    stand.populate(&["scattered"]);
    let ino = stand.at("scattered").ino;
    let count: u64 = 2500;
    // Holes between them, so that each is an extent.
    for block in 0..count {
        stand.content().write(ino, block * 16384, &[block as u8; 5000], false).unwrap();
    }
    let view = stand.fs.open_view().unwrap();
    let copy = stand.copy_tree(&view, ino, ROOT, b"copy").unwrap();
    assert_eq!((copy.attr.nlink, copy.attr.size), (1, (count - 1) * 16384 + 5000));
    drop(view);
    stand.unlink("scattered").unwrap();
    for block in 0..count {
        let read = stand.read(copy.ino, block * 16384, 5001).unwrap();
        let hole = usize::from(block + 1 < count);
        assert!(read.len() == 5000 + hole && read[..5000] == [block as u8; 5000], "block {block}");
    }
    check(&stand);
    let stand = stand.again();
    assert_eq!(stand.attr("copy").nlink, 1);
}

#[test]
fn what_cannot_be_copied_leaves_nothing() {
    let (stand, view) = original();
    let dir = view.find_dentry(ROOT, b"dir").unwrap().ino;
    let file = stand.at("outside").ino;
    assert_eq!(errno(stand.copy_tree(&view, dir, file, b"x")), Errno::NOTDIR);
    assert_eq!(errno(stand.copy_tree(&view, Ino(999_999), ROOT, b"x")), Errno::STALE);
    assert_eq!(errno(stand.copy_tree(&view, dir, ROOT, b"a/b")), Errno::INVAL);
    assert_eq!(errno(stand.copy_tree(&view, dir, ROOT, b".vellum")), Errno::PERM);
    check(&stand);
}

#[test]
fn a_tree_is_removed_with_all_in_it() {
    let stand = Stand::new();
    stand.populate(&["a/", "a/b/", "a/b/c/", "a/d/", "a/b/c/file", "a/file", "b"]);
    stand.link("b", "a/d/b").unwrap();
    stand.names().remove_tree(ROOT, b"a", 0).unwrap();
    assert!(!stand.exists("a"));
    assert_eq!(stand.attr("b").nlink, 1);
    stand.names().remove_tree(ROOT, b"b", 0).unwrap();
    assert_eq!(errno(stand.names().remove_tree(ROOT, b"b", 0)), Errno::NOENT);
    check(&stand);
}

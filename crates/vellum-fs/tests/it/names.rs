//! Making, linking and removing names.

use rustix::io::Errno;
use vellum_fs::RequestCaller;
use vellum_fs::StateReader;
use vellum_types::{FileKind, Ino};

use crate::stand::{CALLER, MOVE, ROOT, Stand, errno, wait_for_tick};

#[test]
fn a_new_worktree_is_an_empty_root() {
    let fs = Stand::new();
    let root = fs.inode_attr(ROOT).unwrap();
    assert_eq!((root.kind, root.nlink, root.parent), (FileKind::Dir, 2, Ino::SUPER));
    assert!(fs.list_entries(ROOT).unwrap().is_empty());
    assert_eq!(fs.names().parent_dir(ROOT).unwrap(), ROOT);
}

#[test]
fn what_is_made_is_found() {
    let fs = Stand::new();
    let dir = fs.mkdir("d").unwrap();
    let file = fs.create("d/f").unwrap();
    fs.names().symlink(dir.ino, b"s", b"f", CALLER).unwrap();
    fs.names().mknod(dir.ino, b"p", FileKind::Fifo, 0o600, 7, CALLER).unwrap();
    fs.names().mknod(dir.ino, b"c", FileKind::CharDevice, 0o600, 0x103, CALLER).unwrap();
    assert_eq!(fs.names().lookup(dir.ino, b"f").unwrap().attr, file.attr);
    assert_eq!((&*file.attr.name, file.attr.parent, file.attr.nlink), (&b"f"[..], dir.ino, 1));
    assert_eq!(file.attr.inline.as_deref(), Some(&[][..]), "as an empty file is recorded elsewhere");
    assert_eq!(fs.readlink(fs.at("d/s").ino).unwrap(), b"f");
    assert_eq!((fs.attr("d/s").size, fs.attr("d/s").mode), (1, 0o777));
    assert_eq!((fs.attr("d/p").rdev, fs.attr("d/c").rdev), (0, 0x103));
    let names: Vec<_> = fs.list_entries(dir.ino).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [b"c", b"f", b"p", b"s"]);
    assert_eq!(fs.names().parent_dir(dir.ino).unwrap(), ROOT);
    assert_eq!(fs.at("d/../d/./f").ino, file.ino);
    assert_eq!(errno(fs.readlink(file.ino)), Errno::INVAL);
}

#[test]
fn names_are_checked() {
    let fs = Stand::new();
    let long = vec![b'x'; 256];
    for (name, expected) in [
        (&b""[..], Errno::NOENT),
        (b".", Errno::INVAL),
        (b"..", Errno::INVAL),
        (b"a/b", Errno::INVAL),
        (b"a\0", Errno::INVAL),
        (&long, Errno::NAMETOOLONG),
    ] {
        assert_eq!(errno(fs.fs.names().create(ROOT, name, 0o644, CALLER)), expected, "{name:?}");
        assert_eq!(errno(fs.fs.names().unlink(ROOT, name, 0)), expected, "{name:?}");
        assert_eq!(errno(fs.names().lookup(ROOT, name)), expected, "{name:?}");
    }
    fs.fs.names().create(ROOT, &long[..255], 0o644, CALLER).unwrap();
}

#[test]
fn refusals_have_the_numbers_of_linux() {
    let fs = Stand::new();
    fs.populate(&["d/", "d/f", "f"]);
    let file = fs.at("f").ino;
    let missing = Ino(999_999);
    assert_eq!(errno(fs.names().lookup(ROOT, b"none")), Errno::NOENT);
    assert_eq!(errno(fs.names().lookup(file, b"x")), Errno::NOTDIR);
    assert_eq!(errno(fs.create("f")), Errno::EXIST);
    assert_eq!(errno(fs.mkdir("d")), Errno::EXIST);
    assert_eq!(errno(fs.fs.names().create(file, b"x", 0o644, CALLER)), Errno::NOTDIR);
    assert_eq!(errno(fs.fs.names().create(missing, b"x", 0o644, CALLER)), Errno::STALE);
    assert_eq!(errno(fs.unlink("d")), Errno::ISDIR);
    assert_eq!(errno(fs.unlink("none")), Errno::NOENT);
    assert_eq!(errno(fs.rmdir("f")), Errno::NOTDIR);
    assert_eq!(errno(fs.rmdir("d")), Errno::NOTEMPTY);
    assert_eq!(errno(fs.link("d", "d2")), Errno::PERM);
    assert_eq!(errno(fs.link("f", "d/f")), Errno::EXIST);
    assert_eq!(errno(fs.list_entries(file)), Errno::NOTDIR);
    assert_eq!(errno(fs.names().symlink(ROOT, b"s", b"", CALLER)), Errno::NOENT);
    assert_eq!(errno(fs.names().symlink(ROOT, b"s", &[b'x'; 4096], CALLER)), Errno::NAMETOOLONG);
    assert_eq!(errno(fs.names().mknod(ROOT, b"n", FileKind::Dir, 0o644, 0, CALLER)), Errno::INVAL);
}

#[test]
fn the_name_of_the_state_directory_is_taken() {
    let fs = Stand::new();
    fs.populate(&["d/", "e/", "f"]);
    assert_eq!(errno(fs.mkdir(".vellum")), Errno::PERM);
    assert_eq!(errno(fs.create(".vellum")), Errno::PERM);
    assert_eq!(errno(fs.mkdir("d/.vellum")), Errno::PERM);
    assert_eq!(errno(fs.rename("e", "d/.vellum", MOVE)), Errno::PERM);
    assert_eq!(errno(fs.rename("f", ".vellum", MOVE)), Errno::PERM);
    assert_eq!(errno(fs.link("f", ".vellum")), Errno::PERM);
    fs.create("d/.vellum").unwrap();
    assert_eq!(errno(fs.rename("e", "d/.vellum", crate::stand::EXCHANGE)), Errno::PERM);
}

#[test]
fn directories_count_their_subdirectories() {
    let fs = Stand::new();
    fs.populate(&["d/", "d/a/", "d/b/", "d/f"]);
    assert_eq!((fs.attr("").nlink, fs.attr("d").nlink, fs.attr("d/a").nlink), (3, 4, 2));
    fs.rmdir("d/a").unwrap();
    assert_eq!(fs.attr("d").nlink, 3);
}

#[test]
fn times_of_the_parent_and_the_inode_follow() {
    let fs = Stand::new();
    fs.populate(&["d/", "f"]);
    let before = fs.attr("d");
    wait_for_tick();
    let made = fs.create("d/a").unwrap();
    let after = fs.attr("d");
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    assert_eq!((after.atime, after.mtime), (before.atime, made.attr.btime));

    wait_for_tick();
    let linked = fs.link("f", "d/l").unwrap();
    assert!(linked.attr.ctime > made.attr.ctime && linked.attr.mtime < made.attr.mtime);
    assert_eq!(fs.attr("d").mtime, linked.attr.ctime);
    wait_for_tick();
    fs.unlink("d/l").unwrap();
    assert!(fs.attr("d").mtime > linked.attr.ctime && fs.attr("f").ctime > linked.attr.ctime);
    let before = fs.attr("d");
    assert_eq!(errno(fs.create("d/a")), Errno::EXIST);
    assert_eq!(fs.attr("d"), before);
}

#[test]
fn owners_come_from_the_caller_and_groups_from_setgid_directories() {
    let fs = Stand::new();
    let caller = RequestCaller { uid: 5, gid: 6, umask: 0o027 };
    let plain = fs.fs.names().create(ROOT, b"f", 0o4666, caller).unwrap().attr;
    assert_eq!((plain.uid, plain.gid, plain.mode), (5, 6, 0o4640));
    let dir = fs.fs.names().mkdir(ROOT, b"d", 0o6777, caller).unwrap();
    assert_eq!(dir.attr.mode, 0o750, "mkdir takes no set-id bits");
    let set = vellum_fs::AttributeChanges { mode: Some(0o2770), gid: Some(42), ..Default::default() };
    fs.attributes().setattr(dir.ino, &set, CALLER).unwrap();
    let file = fs.fs.names().create(dir.ino, b"f", 0o644, caller).unwrap().attr;
    let sub = fs.fs.names().mkdir(dir.ino, b"s", 0o755, caller).unwrap().attr;
    assert_eq!((file.uid, file.gid, file.mode), (5, 42, 0o640));
    assert_eq!((sub.uid, sub.gid, sub.mode), (5, 42, 0o2750));
}

#[test]
fn the_first_link_is_always_a_real_one() {
    let fs = Stand::new();
    fs.populate(&["d/", "a"]);
    fs.link("a", "d/b").unwrap();
    fs.link("a", "c").unwrap();
    assert_eq!((fs.attr("c").nlink, &*fs.attr("c").name), (3, &b"a"[..]));
    fs.unlink("a").unwrap();
    check_place(&fs, "c");
    fs.rename("c", "d/c", MOVE).unwrap();
    check_place(&fs, "d/b");
    fs.unlink("d/b").unwrap();
    assert_eq!((fs.attr("d/c").nlink, &*fs.attr("d/c").name), (1, &b"c"[..]));
}

/// What was not linked in this run is found by looking through the map.
#[test]
fn links_of_an_earlier_run_are_found() {
    let fs = Stand::new();
    fs.populate(&["d/", "a", "x"]);
    for name in ["d/b", "d/c"] {
        fs.link("a", name).unwrap();
    }
    fs.link("x", "d/y").unwrap();
    let fs = fs.again();
    fs.unlink("a").unwrap();
    check_place(&fs, "d/b");
    fs.unlink("x").unwrap();
    check_place(&fs, "d/y");
    let fs = fs.again();
    fs.create("z").unwrap();
    let place = fs.attr("d/b").name.clone();
    let first = if place == b"b" { "d/b" } else { "d/c" };
    fs.rename("z", first, MOVE).unwrap();
    check_place(&fs, if first == "d/b" { "d/c" } else { "d/b" });
}

fn check_place(fs: &Stand, path: &str) {
    let node = fs.at(path);
    let first = fs.names().lookup(node.attr.parent, &node.attr.name).unwrap();
    assert_eq!(first.ino, node.ino, "{path}");
}

#[test]
fn an_open_file_outlives_its_name() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let held = fs.hold(file).unwrap();
    fs.unlink("f").unwrap();
    let orphan = fs.inode_attr(file).unwrap();
    assert_eq!((orphan.nlink, orphan.parent, &*orphan.name), (0, Ino::SUPER, &b""[..]));
    assert!(!fs.exists("f"));
    fs.release(held).unwrap();
    assert_eq!(errno(fs.inode_attr(file)), Errno::STALE);
}

#[test]
fn a_replaced_open_file_is_an_orphan_too() {
    let fs = Stand::new();
    fs.populate(&["new", "old"]);
    let old = fs.at("old").ino;
    let held = fs.hold(old).unwrap();
    fs.rename("new", "old", MOVE).unwrap();
    assert_eq!(fs.inode_attr(old).unwrap().nlink, 0);
    fs.release(held).unwrap();
    assert_eq!(errno(fs.inode_attr(old)), Errno::STALE);
}

#[test]
fn an_orphan_is_gone_after_a_crash() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let tmp = fs.names().tmpfile(ROOT, 0o600, CALLER).unwrap().ino;
    fs.hold(file).unwrap();
    fs.unlink("f").unwrap();
    let fs = fs.again();
    assert_eq!(errno(fs.inode_attr(file)), Errno::STALE);
    assert_eq!(errno(fs.inode_attr(tmp)), Errno::STALE);
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let fs = Stand::new();
    let tmp = fs.names().tmpfile(ROOT, 0o666, CALLER).unwrap();
    assert_eq!((tmp.attr.nlink, tmp.attr.mode), (0, 0o644));
    assert!(fs.list_entries(ROOT).unwrap().is_empty());
    let held = fs.hold(tmp.ino).unwrap();
    let linked = fs.fs.names().link(tmp.ino, ROOT, b"f").unwrap();
    assert_eq!((linked.attr.nlink, linked.attr.parent, &*linked.attr.name), (1, ROOT, &b"f"[..]));
    fs.release(held).unwrap();
    let fs = fs.again();
    assert_eq!(fs.at("f").ino, tmp.ino);
}

#[test]
fn a_removed_directory_takes_nothing_new() {
    let fs = Stand::new();
    let dir = fs.mkdir("d").unwrap().ino;
    let held = fs.hold(dir).unwrap();
    fs.rmdir("d").unwrap();
    assert_eq!(fs.inode_attr(dir).unwrap().nlink, 0);
    assert_eq!(errno(fs.fs.names().create(dir, b"f", 0o644, CALLER)), Errno::NOENT);
    assert_eq!(errno(fs.names().tmpfile(dir, 0o644, CALLER)), Errno::NOENT);
    assert!(fs.list_entries(dir).unwrap().is_empty());
    fs.release(held).unwrap();
}

#[test]
fn numbers_are_not_used_twice_over_runs() {
    let fs = Stand::new();
    let first = fs.create("a").unwrap().ino;
    fs.unlink("a").unwrap();
    let fs = fs.again();
    let second = fs.create("a").unwrap();
    assert!(second.ino > first);
    assert_eq!(second.attr.generation, fs.attr("a").generation);
    assert!(second.attr.generation <= u64::from(u16::MAX));
}

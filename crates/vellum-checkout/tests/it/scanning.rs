//! What a scan sees.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;

use vellum_checkout::scan::{OpenTreeDirs, ScanOptions, ScanProblemCause, scan_tree};
use vellum_host::beneath::{BeneathError, HeldDir, SpecialFile};
use vellum_types::FileKind;

use crate::workspace::{Workspace, is_root, paths};

#[test]
fn every_kind_of_file_is_seen_as_what_it_is() {
    let space = Workspace::new();
    space.write("file", "content");
    space.write("dir/inner", "");
    symlink("nowhere", space.at("link")).unwrap();
    space.root.create_special(b"fifo", SpecialFile::Fifo, 0o600).unwrap();
    let _socket = UnixListener::bind(space.at("socket")).unwrap();
    std::fs::hard_link(space.at("file"), space.at("other")).unwrap();
    let sparse = std::fs::File::create(space.at("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"x", 1 << 20).unwrap();
    let mut kinds = vec![
        ("dir", FileKind::Dir),
        ("dir/inner", FileKind::File),
        ("fifo", FileKind::Fifo),
        ("file", FileKind::File),
        ("link", FileKind::Symlink),
        ("other", FileKind::File),
        ("socket", FileKind::Socket),
        ("sparse", FileKind::File),
    ];
    if is_root() {
        // Some sandboxes forbid device nodes even to root.
        if space.root.create_special(b"tty", SpecialFile::CharDevice(0x500), 0o600).is_ok() {
            kinds.push(("tty", FileKind::CharDevice));
        }
    }
    let tree = space.scan();
    let seen: Vec<_> = tree.walk_entries().map(|entry| (entry.path(), entry.kind())).collect();
    assert_eq!(seen, kinds.iter().map(|(path, kind)| (path.as_bytes().to_vec(), *kind)).collect::<Vec<_>>());
    for entry in tree.walk_entries() {
        let real = space.at(std::ffi::OsStr::from_bytes(&entry.path())).symlink_metadata().unwrap();
        let stat = entry.stat();
        assert_eq!((stat.dev, stat.ino, stat.rdev), (real.dev(), real.ino(), real.rdev()));
        assert_eq!((stat.size, stat.mode, stat.uid), (real.size(), real.mode() & 0o7777, real.uid()));
        assert_eq!((stat.mtime.secs, i64::from(stat.mtime.nanos)), (real.mtime(), real.mtime_nsec()));
        assert_eq!((stat.ctime.secs, i64::from(stat.ctime.nanos)), (real.ctime(), real.ctime_nsec()));
        assert_eq!(stat.may_have_holes, real.is_file() && real.blocks() * 512 < real.size());
    }
    let by_name = |name: &str| {
        *tree.dir(vellum_checkout::scan::ScanDirIndex::ROOT).find_entry(name.as_bytes()).unwrap().stat()
    };
    assert!(by_name("file").is_same_file(&by_name("other")));
    assert_eq!(by_name("file").nlink, 2);
    assert!(by_name("sparse").may_have_holes);
    assert!(tree.is_complete() && tree.problems().is_empty());
}

#[test]
fn order_is_by_bytes_and_by_depth() {
    let space = Workspace::new();
    for path in ["b/x", "b/a/1", "b.txt", "a", "b-", "c/d/e/f", "B"] {
        space.write(path, "");
    }
    let expected = ["B", "a", "b", "b/a", "b/a/1", "b/x", "b-", "b.txt", "c", "c/d", "c/d/e", "c/d/e/f"];
    let tree = space.scan();
    assert_eq!(paths(&tree), expected);
    let dirs: Vec<_> = tree.dirs().map(|dir| String::from_utf8(dir.path()).unwrap()).collect();
    assert_eq!(dirs, ["", "b", "b/a", "c", "c/d", "c/d/e"]);
}

#[test]
fn names_may_hold_any_bytes_and_have_255() {
    let space = Workspace::new();
    let longest = [b'n'; 255];
    let names = [&b"\n\x1b[2J"[..], b"\xff\xfe", b" ", b"-rf", &longest, "é".as_bytes()];
    for name in names {
        space.root.create_file(name, 0o600).unwrap();
    }
    let tree = space.scan();
    let seen: Vec<_> = tree.walk_entries().map(|entry| entry.name().to_vec()).collect();
    let mut expected: Vec<_> = names.map(<[u8]>::to_vec).to_vec();
    expected.sort();
    assert_eq!(seen, expected);
}

/// A chain of directories, deeper and longer than any path that the kernel takes.
fn deepen(space: &Workspace, levels: usize) {
    let name = [b'd'; 100];
    let mut here = space.root.clone();
    for _ in 0..levels {
        here.create_file(b"file", 0o600).unwrap();
        here.create_file(b"z", 0o600).unwrap();
        here.create_dir(&name, 0o700).unwrap();
        here = here.open_dir(&name).unwrap();
    }
    std::io::Write::write_all(&mut here.create_file(b"deepest", 0o600).unwrap(), b"found").unwrap();
}

/// Takes a deep tree down from the inside: not every library that removes trees can.
fn flatten(root: &HeldDir) {
    let name = [b'd'; 100];
    let mut way = vec![root.clone()];
    while let Ok(next) = way.last().unwrap().open_dir(&name) {
        way.push(next);
    }
    while let Some(dir) = way.pop() {
        for listed in dir.read_names().unwrap().iter() {
            dir.unlink(listed.name).or_else(|_| dir.remove_dir(listed.name)).unwrap();
        }
    }
}

#[test]
fn trees_deeper_than_paths_can_say_are_walked_and_reached_again() {
    let space = Workspace::new();
    deepen(&space, 1200);
    let tree = space.scan();
    assert!(tree.is_complete());
    assert_eq!((tree.dir_count(), tree.entry_count()), (1201, 3 * 1200 + 1));
    let deepest = tree.walk_entries().find(|entry| entry.name() == b"deepest").unwrap();
    assert_eq!(deepest.path().len(), 1200 * 101 + 7);
    let open = OpenTreeDirs::new(&tree, &space.root);
    let dir = open.open_dir(deepest.id().dir).unwrap();
    let content = std::io::read_to_string(dir.open_file(b"deepest").unwrap().file).unwrap();
    assert_eq!(content, "found");
    let resolved = space.root.resolve_dir(&tree.dir(deepest.id().dir).path()).unwrap();
    assert_eq!(resolved.stat(b"deepest").unwrap().ino, deepest.stat().ino);
    assert!(tree.dirs().all(|dir| open.open_dir(dir.index()).is_ok()));
    space.settle_and_remember();
    assert!(space.scan_cached().walk_entries().all(|entry| entry.is_unchanged()));
    flatten(&space.root);
}

#[test]
fn one_directory_of_many_names_is_shared_between_threads() {
    let space = Workspace::new();
    for number in 0..6000 {
        space.root.create_file(format!("{:x}-{number}", number * 7919 % 6000).as_bytes(), 0o600).unwrap();
    }
    let trees = [1, 2, 5]
        .map(|threads| scan_tree(&space.root, ScanOptions { threads, ..ScanOptions::default() }).unwrap());
    let [one, two, five] = trees.each_ref().map(paths);
    assert_eq!(one.len(), 6000);
    assert!(one.is_sorted());
    assert_eq!(one, two);
    assert_eq!(one, five);
}

#[test]
fn rules_own_state_and_torn_files_are_left_out() {
    let space = Workspace::new();
    for path in [
        ".vellum/key",
        "a.log",
        "keep/a.log",
        "keep/b.log",
        "build/x",
        "src/build",
        ".vellum-tmp-0123456789abcdef",
    ] {
        space.write(path, "");
    }
    space.write(".vellumignore", "*.log\nbuild/\n");
    space.write("keep/.vellumignore", "!a.log\n");
    let tree = space.scan();
    assert_eq!(
        paths(&tree),
        [".vellumignore", "keep", "keep/.vellumignore", "keep/a.log", "src", "src/build"]
    );
    assert_eq!(tree.dir(vellum_checkout::scan::ScanDirIndex::ROOT).ignored_count(), 4);
    assert!(tree.problems().is_empty());
}

#[test]
fn the_state_of_a_volume_within_is_left_out() {
    let space = Workspace::new();
    space.write("inner/.vellum/key", "");
    space.write("inner/file", "");
    space.write("other/.vellum", "a file of that name is no state");
    let tree = space.scan();
    assert!(tree.problems().is_empty(), "{:?}", tree.problems());
    assert_eq!(paths(&tree), ["inner", "inner/file", "other", "other/.vellum"]);
}

#[test]
fn a_rule_file_that_is_no_file_is_reported_and_never_waited_for() {
    let space = Workspace::new();
    space.write("a", "");
    space.root.create_special(b".vellumignore", SpecialFile::Fifo, 0o600).unwrap();
    let tree = space.scan();
    assert_eq!(paths(&tree), [".vellumignore", "a"]);
    assert!(matches!(tree.problems(), [problem] if matches!(problem.cause, ScanProblemCause::Rules(_))));
}

#[test]
fn a_directory_replaced_after_the_scan_is_noticed() {
    let space = Workspace::new();
    space.write("d/f", "");
    let tree = space.scan();
    std::fs::rename(space.at("d"), space.at("old")).unwrap();
    std::fs::create_dir(space.at("d")).unwrap();
    let d = tree.walk_entries().find_map(|entry| entry.child_index()).unwrap();
    assert!(
        matches!(OpenTreeDirs::new(&tree, &space.root).open_dir(d), Err(BeneathError::Replaced(path)) if *path == *b"d")
    );
}

#[test]
fn what_is_mounted_within_is_entered_and_marked() {
    let Ok(dev) = HeldDir::open_root("/dev".as_ref()) else { return };
    let Ok(mounted) = dev.stat(b"shm") else { return };
    if mounted.kind == FileKind::Dir && mounted.dev != dev.stat_self().unwrap().dev {
        assert!(mounted.is_mount_root);
    }
}

//! `vellum snapshot --exclude`, `--one-file-system` and `--exclude-caches`

use std::fs;

use crate::mounting::{Mount, sh};
use crate::world::World;

/// How a file begins that marks a cache.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# made by a test\n";

#[test]
fn what_is_excluded_is_in_no_snapshot_even_if_the_last_one_has_it() {
    let world = World::with_snapshot();
    world.write("dir/b.o", "object");
    world.write("keep.o", "kept");
    world.write("b", "beside");
    let ran =
        world.run(&["snapshot", "--exclude", "*.o", "--exclude", "!keep.o", "--exclude", "/dir/deep"]).ok();
    assert!(ran.err.is_empty(), "{}", ran.err);
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains("b.o") && !ran.out.contains("deep"), "{}", ran.out);
    ran.says("keep.o").says("dir/b.txt");
    assert!(world.has("dir/b.o") && world.has("dir/deep/c.bin"));
    // It is neither new nor gone.
    let ran = world.run(&["status"]).ok().remarks("left out, as from the last snapshot");
    assert!(!ran.out.contains("deep"), "{}", ran.out);
    // The next snapshot says anew what is left out.
    world.run(&["snapshot", "--dry-run"]).code(0).says("deep");
    // One of some paths leaves out what the whole one did.
    world.write("dir/b.txt", "changed");
    world.run(&["snapshot", "dir", "--exclude", "x"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains("b.o") && !ran.out.contains("deep"), "{}", ran.out);
    world.run(&["status"]).remarks("'*.o'");
    world.run(&["snapshot"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("b.o").says("c.bin");
    assert!(!world.run(&["status"]).ok().err.contains("left out"));
}

#[test]
fn a_restore_does_not_touch_what_is_excluded() {
    let world = World::with_snapshot();
    world.write("huge/data", "not to be stored");
    world.write("dir/deep/new", "excluded, too");
    world.write("a.txt", "second");
    let second = world.run(&["snapshot", "-q", "--exclude", "huge", "--exclude", "deep"]).ok().out;
    // The first snapshot has files where excluded ones are now.
    world.run(&["restore", "first"]).code(2).remarks("dir/deep").remarks("would be overwritten or removed");
    assert_eq!(world.read("a.txt"), "second");
    world.run(&["restore", "first", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    world.run(&["restore", second.trim()]).ok();
    assert_eq!(world.read("a.txt"), "second");
    assert_eq!(world.read("huge/data"), "not to be stored");
    assert_eq!(world.read("dir/deep/new"), "excluded, too");
    // Nobody has stored it on the way.
    for id in world.json(&["history", "--all"])["snapshots"].as_array().unwrap() {
        let ran = world.run(&["ls", id["id"].as_str().unwrap(), "-R"]).ok();
        assert!(!ran.out.contains("huge"), "{}", ran.out);
    }
    // Once a snapshot was made without it, it is a change like others, and is kept before it goes.
    world.run(&["snapshot", "dir"]).ok();
    world.run(&["snapshot"]).ok();
    world.run(&["restore", "first"]).ok();
    assert!(!world.has("huge/data"));
    world.run(&["restore", "latest"]).ok();
    assert_eq!(world.read("huge/data"), "not to be stored");
}

#[test]
fn patterns_that_are_none_are_refused_and_a_damaged_list_is_named() {
    let world = World::with_snapshot();
    for (wrong, reason) in
        [("#x", "is a comment"), ("", "excludes nothing"), ("a\nb", "line break"), ("[z-a]", "z-a")]
    {
        world.run(&["snapshot", "--exclude", wrong]).code(3).remarks(reason);
    }
    assert_eq!(world.json(&["info"])["snapshots"], 1);
    fs::write(world.tree().join(".vellum/exclusions.json"), "{").unwrap();
    for command in [&["status"][..], &["restore", "first"], &["snapshot"]] {
        world.run(command).code(2).remarks("exclusions.json does not say what the last snapshot left out");
    }
    fs::remove_file(world.tree().join(".vellum/exclusions.json")).unwrap();
    world.run(&["status"]).ok();
}

#[test]
fn a_cache_is_left_out_but_for_its_mark() {
    let world = World::with_snapshot();
    world.write("cache/CACHEDIR.TAG", CACHE_TAG);
    world.write("cache/deep/data", "data");
    world.write("false/CACHEDIR.TAG", "no signature");
    world.write("false/data", "data");
    world.run(&["snapshot", "--exclude-caches"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok().says("cache/CACHEDIR.TAG").says("false/data");
    assert!(!ran.out.contains("deep/data"), "{}", ran.out);
    world.run(&["status"]).ok();
    world.run(&["restore", "first"]).code(1).remarks("cache: it stays");
    assert_eq!(world.read("cache/deep/data"), "data");
    // A worktree that is marked itself is not left empty.
    world.write("CACHEDIR.TAG", CACHE_TAG);
    world.write("more", "x");
    world.run(&["snapshot", "--exclude-caches"]).ok();
    world.run(&["ls", "HEAD"]).ok().says("more");
}

#[test]
fn what_is_mounted_is_left_out() {
    let world = World::with_snapshot();
    let before = "beneath the mount";
    world.write("other/before", before);
    world.snapshot("second");
    sh(&world.tree(), "mount -t tmpfs -o mode=755 none other");
    world.write("other/large", "of another filesystem");
    world.run(&["snapshot", "-x", "--tag", "without"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok().says("other");
    assert!(!ran.out.contains("large") && !ran.out.contains("before"), "{}", ran.out);
    world.run(&["status"]).ok();
    world.run(&["restore", "first"]).code(1).remarks("cannot remove the directory 'other'");
    assert_eq!(world.read("other/large"), "of another filesystem");
    // A path that is named is looked at where it is.
    world.run(&["restore", "without"]).ok();
    world.run(&["snapshot", "other"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("other/large");
    world.run(&["snapshot"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("other/large");
    sh(&world.tree(), "umount other");
    assert_eq!(world.read("other/before"), before);
}

#[test]
fn a_mount_has_nothing_to_leave_out() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    for option in [&["--exclude", "*.o"][..], &["-x"], &["--exclude-caches"], &["-n", "-x"]] {
        let ran =
            crate::world::run(&mount.at(""), &[&["snapshot"], option].concat(), std::process::Stdio::null());
        ran.code(3).remarks("the worktree is mounted");
    }
}

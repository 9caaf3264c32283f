//! `vellum restore`

use std::fs;

use crate::mounting::Mount;
use crate::world::World;

#[test]
fn the_directory_comes_back_and_nothing_is_lost() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    world.write("new.txt", "unsaved too");
    world.remove("dir/b.txt");
    let ran = world.run(&["restore", "first"]).ok().says("Restored").says("brings it back");
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(world.read("dir/b.txt"), "b\n");
    assert!(!world.has("new.txt"));
    let safety = ran.out.split("'vellum restore ").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    world.run(&["restore", &safety]).ok();
    assert_eq!(world.read("a.txt"), "unsaved");
    assert_eq!(world.read("new.txt"), "unsaved too");
    assert!(!world.has("dir/b.txt"));
}

#[test]
fn what_a_snapshot_holds_needs_no_other() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.snapshot("second");
    let ran = world.run(&["restore", "first"]).ok();
    assert!(!ran.out.contains("brings it back"), "{}", ran.out);
    world.run(&["restore", "first"]).ok().says("nothing had to change");
    world.run(&["status"]).ok();
}

#[test]
fn discard_makes_no_snapshot() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    world.run(&["restore", "first", "--discard"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(world.json(&["info"])["snapshots"], 1);
}

#[test]
fn only_the_named_paths_come_back() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    world.write("dir/b.txt", "unsaved");
    world.run_in("dir", &["restore", "HEAD", "b.txt"]).ok();
    assert_eq!(world.read("dir/b.txt"), "b\n");
    assert_eq!(world.read("a.txt"), "unsaved");
    world.run(&["restore", "HEAD", "nothing"]).code(2).remarks("'nothing'");
}

#[test]
fn a_dry_run_changes_nothing() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    world.write("new.txt", "unsaved");
    let ran =
        world.run(&["restore", "HEAD", "--dry-run"]).code(1).says("a.txt").says("new.txt").remarks("2 paths");
    assert_eq!(ran.lines().len(), 2);
    assert_eq!(world.read("a.txt"), "unsaved");
    world.run(&["restore", "HEAD"]).ok();
    world.run(&["restore", "HEAD", "-n"]).ok().remarks("nothing to do");
}

#[test]
fn a_file_in_the_snapshots_place_is_explained() {
    let world = World::with_snapshot();
    world.run(&["restore", "a.txt"]).code(3).remarks("'vellum restore HEAD a.txt'");
    world.run(&["restore", "nothing"]).code(2);
}

#[test]
fn json() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    let value = world.json(&["restore", "HEAD", "-n"]);
    assert_eq!(value["dry_run"], true);
    assert_eq!(value["steps"][0]["path"], "a.txt");
    let value = world.json(&["restore", "HEAD"]);
    assert_eq!(value["written"], 1);
    assert_eq!(value["safety"].as_str().unwrap().len(), 64);
}

#[test]
fn a_path_that_is_nowhere_is_told_with_the_snapshot_that_was_named() {
    let world = World::with_snapshot();
    world.write("later", "x");
    world.snapshot("second");
    let first = world.json(&["show", "first"]);
    let id = first["snapshot"]["id"].as_str().unwrap_or_default().to_owned();
    let ran = world
        .run(&["restore", "first", "nothing"])
        .code(2)
        .remarks("'nothing' is neither in the directory nor in");
    assert!(ran.err.contains(&id[..8]) && !ran.err.contains("last snapshot"), "{} {}", id, ran.err);
}

#[test]
fn a_path_that_the_snapshot_does_not_have_is_deleted_and_one_that_nobody_has_is_refused() {
    let world = World::with_snapshot();
    world.write("later", "x");
    world.write("dir/later", "x");
    world.snapshot("second");
    world.run(&["restore", "first", "later", "dir/later", "-n"]).code(1).says("delete   later");
    assert!(world.has("later"));
    world.run(&["restore", "first", "later", "nothing"]).code(2).remarks("'nothing' is neither");
    assert!(world.has("later"), "nothing is done if a path is wrong");
    world.run(&["restore", "first", "later"]).ok().says("1 deleted");
    assert!(!world.has("later") && world.has("dir/later") && world.has("dir/b.txt"));

    let mount = Mount::new(&world, "work");
    let run = |args: &[&str]| world.run_in(mount.path.to_str().unwrap(), args);
    assert!(mount.at("later").exists());
    run(&["restore", "first", "later", "-n"]).code(1).says("later");
    for args in [&["restore", "first", "later", "nothing"][..], &["restore", "first", "dir/no/thing", "-n"]] {
        run(args).code(2).remarks("is neither in the worktree nor in snapshot ");
    }
    assert!(mount.at("later").exists());
    assert_eq!(world.json(&["info"])["snapshots"], 2, "no safety snapshot of a restore that is refused");
    run(&["restore", "first", "later", "dir"]).ok();
    assert!(!mount.at("later").exists() && !mount.at("dir/later").exists());
    assert_eq!(fs::read_to_string(mount.at("dir/b.txt")).unwrap(), "b\n");
    mount.umount().ok();
}

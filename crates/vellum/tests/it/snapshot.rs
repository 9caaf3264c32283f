//! `vellum snapshot`

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::world::World;

#[test]
fn a_snapshot_says_what_it_holds() {
    let world = World::new();
    world.write("a", "content");
    world.run(&["snapshot", "-m", "note"]).ok().says("1 file, 7 B").says("changed");
    world.run(&["snapshot"]).ok().says("nothing changed");
}

#[test]
fn quiet_prints_the_id_alone() {
    let world = World::new();
    let id = world.snapshot("first");
    assert_eq!(id.len(), 64);
    assert_eq!(world.json(&["show"])["snapshot"]["id"], id);
}

#[test]
fn only_the_named_paths_are_recorded() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    world.write("dir/b.txt", "changed");
    world.write("dir/new", "new");
    world.run(&["snapshot", "dir"]).ok();
    world.run(&["cat", "HEAD", "a.txt"]).ok().says("one");
    world.run(&["cat", "HEAD", "dir/b.txt"]).ok().says("changed");
    let ran = world.run(&["status"]).code(1).says("M  a.txt");
    assert!(!ran.out.contains("dir"));
    world.run(&["snapshot", "nothing"]).code(2).remarks("'nothing' is neither");
}

#[test]
fn nothing_of_the_state_directory_is_recorded() {
    let world = World::with_snapshot();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains(".vellum"));
    world.run(&["snapshot", ".vellum"]).code(3).remarks("belongs to Vellum itself");
}

#[test]
fn ignored_files_are_left_out() {
    let world = World::new();
    world.write(".vellumignore", "*.log\n");
    world.write("a.log", "");
    world.write("a.txt", "");
    world.snapshot("first");
    let ran = world.run(&["ls", "HEAD"]).ok();
    assert_eq!(ran.lines(), [".vellumignore", "a.txt"]);
}

#[test]
fn tags_are_checked_before_the_work() {
    let world = World::with_snapshot();
    let before = world.json(&["info"])["snapshots"].clone();
    world.run(&["snapshot", "--tag", "first"]).code(3).remarks("exists already");
    world.run(&["snapshot", "--tag", "a b"]).code(3);
    assert_eq!(world.json(&["info"])["snapshots"], before);
}

#[test]
fn a_note_comes_from_standard_input() {
    let world = World::new();
    world.run_with_input(&["snapshot", "-m", "-"], "from input\nsecond line\n").ok();
    assert_eq!(world.json(&["show"])["snapshot"]["note"], "from input\nsecond line");
}

#[test]
fn what_cannot_be_read_is_reported_and_all_else_recorded() {
    let world = World::with_snapshot();
    world.write("secret", "x");
    world.write("open", "y");
    world.chmod("secret", 0);
    // Root reads everything.
    let ran = if fs::read(world.tree().join("secret")).is_ok() {
        world.give_to(NOBODY);
        world.run_as(NOBODY, &["snapshot"])
    } else {
        world.run(&["snapshot"])
    };
    ran.code(1).remarks("secret: ").remarks("1 path could not be recorded");
    world.run(&["cat", "HEAD", "open"]).ok().says("y");
    world.run(&["cat", "HEAD", "secret"]).code(2);
}

/// A user who is not root.
const NOBODY: u32 = 65_534;

#[test]
fn commands_wait_for_each_other() {
    let world = World::with_snapshot();
    let lock = fs::File::options().write(true).open(world.tree().join(".vellum/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["snapshot"])
        .current_dir(world.tree())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("another vellum command is at work"), "{line}");
    assert_eq!(child.try_wait().unwrap(), None);
    drop(lock);
    assert!(child.wait().unwrap().success());
}

#[test]
fn snapshots_at_the_same_time_all_stay() {
    let world = World::with_snapshot();
    let start = |n: usize| {
        Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["snapshot", "-q", "-m", &n.to_string()])
            .current_dir(world.tree())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..6).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(world.run(&["history"]).ok().lines().len(), 7);
}

#[test]
fn json() {
    let world = World::new();
    world.write("a", "content");
    let value = world.json(&["snapshot", "-m", "note", "--tag", "t"]);
    assert_eq!(value["snapshot"]["note"], "note");
    assert_eq!(value["snapshot"]["author"], "tester");
    assert_eq!(value["snapshot"]["tags"][0], "t");
    assert_eq!(value["snapshot"]["files"], 1);
    assert_eq!(value["unchanged"], false);
}

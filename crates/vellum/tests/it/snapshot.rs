//! `vellum snapshot`

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::mounting::Mount;
use crate::world::{World, run};

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
    assert!(line.contains("waiting for another vellum command"), "{line}");
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

#[test]
fn sudo_once_in_a_users_directory_locks_the_user_out_of_nothing() {
    use std::os::unix::fs::MetadataExt;
    const USER: u32 = 12_345;
    let world = World::empty();
    std::fs::create_dir(world.path("disk")).unwrap();
    world.give_to(USER);
    std::os::unix::fs::chown(world.path("disk"), Some(USER), Some(USER)).unwrap();
    let init = |args: &[&str]| world.run_as(USER, &[&["init", "--plain"], args].concat()).ok();
    init(&[]);
    init(&["../disk/other", "--store", "../disk/store"]);
    let other = world.path("disk/other");
    let other = other.to_str().unwrap();
    for dir in [".", other] {
        // Root is first at nearly everything.
        for round in ["one", "two"] {
            std::fs::write(world.tree().join(dir).join(round), round).unwrap();
            world.run(&["-C", dir, "snapshot", "--tag", round]).ok();
        }
        world.run(&["-C", dir, "restore", "one"]).ok();
        world.run(&["-C", dir, "gc", "run"]).ok();
    }
    // All that root has made, and nothing of the worktree's files.
    let mut pending =
        vec![world.tree().join(".vellum"), world.path("disk/other/.vellum"), world.path("disk/store")];
    let mut foreign = Vec::new();
    while let Some(path) = pending.pop() {
        if path.symlink_metadata().unwrap().uid() != USER {
            foreign.push(path.clone());
        }
        if path.is_dir() {
            pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert_eq!(foreign, Vec::<std::path::PathBuf>::new());
    for dir in [".", other] {
        world.run_as(USER, &["-C", dir, "restore", "two", "--discard"]);
        world.run_as(USER, &["-C", dir, "snapshot", "--tag", "three"]).ok();
        world.run_as(USER, &["-C", dir, "gc", "run"]).ok();
        world.run_as(USER, &["-C", dir, "verify", "--all"]).ok();
    }
    world.run(&["init", "--plain", "../disk/fresh"]).code(0);
    assert_eq!(std::fs::metadata(world.path("disk/fresh/.vellum")).unwrap().uid(), 0, "of root's directory");
}

#[test]
fn a_note_that_is_too_long_is_refused_as_such_wherever_it_is_cut() {
    let world = World::new();
    let long = "é".repeat(40_000);
    world.run_with_input(&["snapshot", "-m", "-"], &long).code(3).remarks("the note is longer than 64.0 KiB");
}

#[test]
fn what_would_be_recorded_is_listed() {
    let world = World::with_snapshot();
    world.run(&["snapshot", "--dry-run"]).ok().remarks("nothing changed");
    world.write("a.txt", "changed");
    world.write("new", "new");
    let ran = world.run(&["snapshot", "-n"]).ok().remarks("would record: 1 added, 1 modified");
    assert_eq!(ran.lines().len(), 2);
    let ran = world.run(&["snapshot", "-n", "new"]).ok().says("A  new");
    assert_eq!(ran.lines().len(), 1);
    let json = world.json(&["snapshot", "-n"]);
    assert_eq!((&json["dry_run"], &json["counts"]["added"]), (&true.into(), &1.into()));
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
}

#[test]
fn no_snapshot_is_made_of_what_the_last_one_holds() {
    let world = World::new();
    world.write("a.txt", "one");
    let id = world.run(&["snapshot", "-q", "--if-changed"]).ok().out;
    assert_eq!(world.run(&["snapshot", "-q", "--if-changed"]).ok().out, id);
    world.run(&["snapshot", "--if-changed", "--tag", "same"]).ok().says("Nothing changed since snapshot");
    assert_eq!(world.json(&["show", "same"])["snapshot"]["id"], id.trim());
    let json = world.json(&["snapshot", "--if-changed"]);
    assert_eq!((&json["made"], &json["unchanged"]), (&false.into(), &true.into()));
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
    world.write("a.txt", "two");
    assert_eq!(world.json(&["snapshot", "--if-changed"])["made"], true);
    assert_eq!(world.run(&["history"]).ok().lines().len(), 2);
}

#[test]
fn of_a_mount_nothing_is_recorded_twice_either() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let in_mount = |args: &[&str]| run(&mount.path, args, Stdio::null());
    in_mount(&["snapshot", "--if-changed"]).ok().says("Nothing changed since snapshot");
    fs::write(mount.at("new"), "new").unwrap();
    in_mount(&["snapshot", "-n"]).ok().says("A  new").remarks("would record: 1 added");
    in_mount(&["snapshot", "--if-changed"]).ok().says("Snapshot ");
    in_mount(&["snapshot", "--if-changed", "--tag", "same"]).ok().says("Nothing changed since snapshot");
    in_mount(&["show", "same", "new"]).ok();
}

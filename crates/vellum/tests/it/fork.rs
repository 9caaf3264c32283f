//! `vellum fork`

use std::fs;
use std::process::Stdio;

use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{World, run};

#[test]
fn a_fork_is_a_worktree_of_its_own() {
    let world = World::with_snapshot();
    world.write("a.txt", "not in a snapshot");
    world.run(&["fork", "side", "--to", "../side"]).ok().says("starts from");
    let side = world.path("side");
    assert_eq!(fs::read_to_string(side.join("a.txt")).unwrap(), "one\ntwo\nthree\n");
    run(&side, &["status"], Stdio::null()).ok();
    fs::write(side.join("new"), "new").unwrap();
    run(&side, &["snapshot", "-m", "on the side"], Stdio::null()).ok();
    let ran = world.run(&["history"]).ok();
    assert_eq!(ran.lines().len(), 1);
    world.run(&["history", "--all"]).ok().says("on the side [worktree side]");
    world.run(&["cat", "side", "new"]).ok().says("new");
}

#[test]
fn the_way_can_be_chosen() {
    let world = World::with_snapshot();
    world.run(&["fork", "one", "--to", "../one", "--engine", "chunks"]).ok().says("3 written from the store");
    world.run(&["fork", "two", "--to", "../two", "--engine", "copy"]).ok().says("copied");
    world.run(&["fork", "x", "--to", "../x", "--engine", "magic"]).code(3);
}

#[test]
fn a_fork_destroys_nothing() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("full")).unwrap();
    fs::write(world.path("full/file"), "mine").unwrap();
    world.run(&["fork", "side", "--to", "../full"]).code(2).remarks("not empty");
    world.run(&["fork", "main", "--to", "../other"]).code(2).remarks("exists already");
    assert_eq!(fs::read_to_string(world.path("full/file")).unwrap(), "mine");
    world.run(&["fork", "side", "--to", "inside"]).code(3).remarks("inside");
}

#[test]
fn json() {
    let world = World::with_snapshot();
    let value = world.json(&["fork", "side", "--to", "../side", "--from", "first"]);
    assert_eq!(value["name"], "side");
    let files = ["reflinked", "copied", "from_chunks"].map(|way| value[way].as_u64().unwrap());
    assert_eq!(files.iter().sum::<u64>(), 3);
}

/// Names of the worktrees.
fn worktrees(world: &World) -> Vec<String> {
    let listed = world.json(&["worktree", "list"]);
    let name = |item: &serde_json::Value| item["name"].as_str().unwrap().to_owned();
    listed["worktrees"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn a_fork_that_cannot_be_mounted_leaves_nothing() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--mount", "../missing"]).code(2).remarks("does not exist").remarks("mkdir");
    assert_eq!(worktrees(&world), ["main"]);
    assert!(!world.tree().join(".vellum/live/side").exists());
    // What the hint says, and then the same again.
    let mount = Mount::place(&world, "missing");
    world.run(&["fork", "side", "--mount", "../missing"]).ok();
    mount.umount().ok();
}

#[test]
fn a_fork_that_was_stopped_leaves_nothing() {
    let world = World::with_snapshot();
    sh(&world.tree(), "for i in $(seq 30000); do echo $i > $i; done");
    world.snapshot("many");
    for round in 0..3 {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["fork", "side", "--to", "../side", "--engine", "chunks"])
            .current_dir(world.tree())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("it has begun", || world.path("side/.vellum/restore.json").exists());
        kill(i32::try_from(child.id()).unwrap(), "-INT");
        let status = child.wait().unwrap();
        assert!(!status.success(), "round {round}: it was done before it could be stopped");
        assert!(!world.path("side").exists(), "round {round}");
        assert_eq!(worktrees(&world), ["main"]);
    }
    world.run(&["fork", "side", "--to", "../side"]).ok();
}

#[test]
fn a_fork_that_was_stopped_leaves_what_a_user_put_there_meanwhile() {
    let world = World::new();
    // A directory that holds another one is made under its own name at once.
    world.write("shared/deep/a.txt", "of the fork");
    world.write("b.txt", "of the fork");
    sh(&world.tree(), "mkdir many && cd many && for i in $(seq 30000); do echo $i > $i; done");
    world.snapshot("many");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["fork", "side", "--to", "../side", "--engine", "chunks"])
        .current_dir(world.tree())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let side = world.path("side");
    wait_until("it has begun", || side.join("shared").exists());
    fs::write(side.join("mine"), "mine").unwrap();
    fs::write(side.join("shared/mine"), "mine").unwrap();
    kill(i32::try_from(child.id()).unwrap(), "-INT");
    assert!(!child.wait().unwrap().success(), "it was done before it could be stopped");
    let names = |dir: &std::path::Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&side), ["mine", "shared"]);
    assert_eq!(names(&side.join("shared")), ["mine"]);
    assert_eq!(worktrees(&world), ["main"]);
}

#[test]
fn a_fork_that_was_stopped_is_mounted_or_leaves_nothing() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "mnt");
    let live = world.tree().join(".vellum/live/side");
    for round in 0..5 {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["fork", "side", "--mount", "../mnt"])
            .current_dir(world.tree())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it has begun", || worktrees(&world).len() == 2);
        kill(i32::try_from(child.id()).unwrap(), "-INT");
        let code = child.wait().unwrap().code();
        if mount.is_mounted() {
            assert_eq!(worktrees(&world), ["main", "side"], "round {round}");
            mount.umount().ok();
            world.run(&["worktree", "remove", "side"]).ok();
        } else {
            assert_eq!(code, Some(130), "round {round}");
            assert_eq!(worktrees(&world), ["main"], "round {round}");
            assert!(!live.exists(), "round {round}");
        }
    }
}

//! `vellum fork`

use std::fs;
use std::process::Stdio;

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

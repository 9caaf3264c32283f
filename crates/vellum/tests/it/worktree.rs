//! `vellum worktree`

use std::process::Stdio;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{World, run};

#[test]
fn worktrees_are_listed_renamed_and_removed() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let ran = world.run(&["worktree", "list"]).ok();
    assert!(ran.lines()[0].starts_with("*  main"), "{}", ran.out);
    assert!(ran.lines()[1].starts_with("   side"), "{}", ran.out);
    world.run(&["worktree", "rename", "side", "feature"]).ok().says("now called feature");
    run(&world.path("side"), &["info"], Stdio::null()).ok().says("feature");
    world.run(&["worktree", "rename", "feature", "main"]).code(2).remarks("exists already");
    world.run(&["worktree", "remove", "feature"]).ok().remarks("delete them yourself");
    assert!(world.path("side/a.txt").exists());
    world.run(&["worktree", "remove", "feature"]).code(2).remarks("there is no worktree 'feature'");
}

#[test]
fn the_worktree_one_stands_in_is_renamed_and_not_removed() {
    let world = World::with_snapshot();
    world.run(&["worktree", "rename", "main", "trunk"]).ok();
    world.run(&["status"]).ok().remarks("Worktree trunk");
    world.run(&["worktree", "remove", "trunk"]).code(3).remarks("you stand in");
}

#[test]
fn a_deleted_worktree_shows() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    std::fs::remove_dir_all(world.path("side")).unwrap();
    world.run(&["worktree", "list"]).ok().says("not there any more");
    let value = world.json(&["worktree", "list"]);
    assert_eq!(value["worktrees"][1]["missing"], true);
    assert_eq!(value["worktrees"][0]["here"], true);
}

#[test]
fn a_mounted_worktree_is_renamed_with_its_live_state_once_it_is_not_mounted() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.sh("echo unpublished > file; sync file");
    world.run(&["worktree", "rename", "work", "play"]).code(2).remarks("mounted on");
    // Killed, it leaves in the folder what is not in the store.
    kill(mount.pid(), "-9");
    let live = |name: &str| world.tree().join(".vellum/live").join(name);
    world.run(&["worktree", "rename", "work", "main"]).code(2).remarks("exists already");
    wait_until("the process is gone", || world.run(&["worktree", "rename", "work", "play"]).code == 0);
    assert!(!live("work").exists() && live("play").join("meta").exists());
    let listed = world.json(&["worktree", "list"]);
    let ours = listed["worktrees"].as_array().unwrap().iter().find(|item| item["name"] == "play").unwrap();
    assert_eq!((&ours["missing"], ours["directory"].as_str()), (&false.into(), live("play").to_str()));
    mount.again(&["--worktree", "play"]).ok();
    assert_eq!(std::fs::read_to_string(mount.at("file")).unwrap(), "unpublished\n");
    // The old name is free for another worktree, which has nothing of it.
    mount.umount().ok();
    mount.again(&[]).ok();
    assert!(mount.at("a.txt").exists() && !mount.at("file").exists());
    assert!(live("work").exists());
}

//! `vellum worktree`

use std::process::Stdio;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{World, copy_dir, run};

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
    // Tokens that cannot be read may be those of changes that are not in the store.
    std::fs::create_dir_all(live("play")).unwrap();
    std::fs::write(live("play").join("tokens"), "damaged\n").unwrap();
    world.run(&["worktree", "rename", "work", "play"]).code(2).remarks("tokens");
    assert!(live("play").join("tokens").exists());
    std::fs::remove_dir_all(live("play")).unwrap();
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

/// A worktree `tree` of a store beside it, with a snapshot "one" of a file; the store's path.
fn with_store_elsewhere() -> (World, std::path::PathBuf) {
    let world = World::empty();
    world.write("a.txt", "first");
    world.run(&["init", "-q", "--plain", "--store", "../store", "--name", "main"]).ok();
    world.run(&["snapshot", "-q", "-m", "one"]).ok();
    let store = world.path("store");
    (world, store)
}

fn copy(world: &World, name: &str) {
    copy_dir(&world.tree(), &world.path(name));
}
/// The notes of all snapshots of the worktree in `dir`, newest first.
fn notes(dir: &std::path::Path) -> Vec<String> {
    let ran = run(dir, &["history", "--json"], Stdio::null()).ok();
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let snapshots = listed["snapshots"].as_array().unwrap().iter();
    snapshots.map(|snapshot| snapshot["note"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_copied_worktree_does_not_move_the_head_of_the_original() {
    let (world, _store) = with_store_elsewhere();
    copy(&world, "copy");
    let dir = world.path("copy");
    std::fs::write(dir.join("b.txt"), "of the copy").unwrap();
    let in_copy = |args: &[&str]| run(&dir, args, Stdio::null());
    in_copy(&["snapshot", "-m", "two"]).code(2).remarks("is a copy of").remarks("worktree adopt --as NAME");
    in_copy(&["restore", "HEAD", "a.txt"]).code(2).remarks("is a copy of");
    in_copy(&["status"]).code(1).says("A  b.txt").remarks("is a copy of");
    // The original goes on, and the copy then stands on what it was copied from.
    world.write("c.txt", "of the original");
    world.run(&["snapshot", "-q", "-m", "of the original"]).ok();
    in_copy(&["worktree", "adopt", "--as", "main"]).code(2).remarks("exists already");
    in_copy(&["worktree", "adopt", "--as", "second"]).ok().says("is now the worktree second");
    in_copy(&["status"]).code(1).says("A  b.txt");
    in_copy(&["snapshot", "-q", "-m", "of the copy"]).ok();
    assert_eq!(notes(&dir), ["of the copy", "one"]);
    assert_eq!(notes(&world.tree()), ["of the original", "one"]);
    in_copy(&["worktree", "adopt", "--as", "third"]).code(3).remarks("is no copy of another worktree");
    world.run(&["worktree", "adopt", "--as", "third"]).code(3).remarks("is no copy of another worktree");
}

#[test]
fn a_copy_that_goes_on_where_the_original_is_out_of_sight_puts_the_original_out() {
    let (world, _store) = with_store_elsewhere();
    copy(&world, "copy");
    std::fs::rename(world.tree(), world.path("away")).unwrap();
    std::fs::write(world.path("copy/b.txt"), "of the copy").unwrap();
    run(&world.path("copy"), &["snapshot", "-q", "-m", "of the copy"], Stdio::null()).ok();
    let back = world.path("away");
    let refused = run(&back, &["snapshot"], Stdio::null()).code(2);
    refused.remarks("is not the worktree 'main' any more").remarks("worktree adopt --as NAME");
    run(&back, &["status"], Stdio::null()).remarks("is not the worktree 'main' any more");
    run(&back, &["worktree", "adopt", "--as", "back"], Stdio::null()).ok();
    run(&back, &["snapshot", "-q", "-m", "of the original"], Stdio::null()).ok();
    assert_eq!(notes(&back), ["of the original", "one"]);
    assert_eq!(notes(&world.path("copy")), ["of the copy", "one"]);
}

#[test]
fn a_moved_worktree_goes_on_where_it_is() {
    let (world, _store) = with_store_elsewhere();
    std::fs::rename(world.tree(), world.path("moved")).unwrap();
    let dir = world.path("moved");
    run(&dir, &["snapshot", "-q", "-m", "two"], Stdio::null()).ok();
    let listed = run(&dir, &["worktree", "list"], Stdio::null()).ok();
    assert!(listed.out.contains("/moved\n") && !listed.out.contains("not there"), "{}", listed.out);
    // So does one that was restored from a backup in the place of the lost one, and one with a store of its own.
    copy_dir(&dir, &world.path("backup"));
    std::fs::remove_dir_all(&dir).unwrap();
    copy_dir(&world.path("backup"), &dir);
    std::fs::remove_dir_all(world.path("backup")).unwrap();
    run(&dir, &["snapshot", "-q", "-m", "three"], Stdio::null()).ok();
    assert_eq!(notes(&dir), ["three", "two", "one"]);
    let whole = World::with_snapshot();
    std::fs::rename(whole.tree(), whole.path("moved")).unwrap();
    run(&whole.path("moved"), &["worktree", "relocate"], Stdio::null()).ok();
    let listed = run(&whole.path("moved"), &["worktree", "list"], Stdio::null()).ok();
    assert!(!listed.out.contains("not there"), "{}", listed.out);
}

#[test]
fn a_store_that_was_moved_is_found_again() {
    let (world, store) = with_store_elsewhere();
    let other = World::with_snapshot();
    std::fs::rename(&store, world.path("elsewhere")).unwrap();
    world.run(&["snapshot"]).code(2).remarks("vellum worktree relocate --store URL");
    let foreign = other.tree().join(".vellum/store");
    let foreign = foreign.to_str().unwrap();
    world.run(&["worktree", "relocate", "--store", foreign]).code(2).remarks("is not the volume");
    world.run(&["worktree", "relocate", "--store", "../nowhere"]).code(2).remarks("No such file");
    world.run(&["worktree", "relocate", "--store", "../elsewhere"]).ok().says("its store is");
    world.run(&["snapshot", "-q", "-m", "two"]).ok();
    assert_eq!(notes(&world.tree()), ["two", "one"]);
}

#[test]
fn an_empty_worktree_is_created() {
    let world = World::with_snapshot();
    world.run(&["worktree", "create", "fresh", "../fresh"]).ok().says("is the worktree fresh");
    let fresh = world.path("fresh");
    std::fs::write(fresh.join("file"), "of the new one").unwrap();
    run(&fresh, &["snapshot", "-q", "-m", "its first"], Stdio::null()).ok();
    world.run(&["cat", "fresh", "file"]).ok().says("of the new one");
    assert_eq!(run(&fresh, &["history"], Stdio::null()).ok().lines().len(), 1);
    world.run(&["worktree", "create", "fresh"]).code(2).remarks("exists already");
    world.run(&["worktree", "create", "other", "../fresh"]).code(3).remarks("is a worktree already");
    world.run(&["worktree", "create", "live"]).ok().remarks("vellum mount --worktree live");
    let mount = Mount::place(&world, "live");
    mount.again(&["--worktree", "live"]).ok();
    assert_eq!(mount.sh("ls"), "");
    assert_eq!(world.run(&["worktree", "path", "live"]).ok().out.trim(), mount.path.to_str().unwrap());
    mount.umount().ok();
    world.run(&["worktree", "path", "live"]).code(3).remarks("vellum mount --worktree live");
    assert_eq!(world.run(&["worktree", "path"]).ok().out.trim(), world.tree().to_str().unwrap());
    assert_eq!(world.run(&["worktree", "path", "fresh"]).ok().out.trim(), fresh.to_str().unwrap());
}

#[test]
fn the_list_shows_how_worktrees_stand() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let side = world.path("side");
    std::fs::write(side.join("new"), "new").unwrap();
    run(&side, &["snapshot", "-q"], Stdio::null()).ok();
    world.write("b.txt", "here");
    world.snapshot("here");
    world.run(&["worktree", "list"]).ok().says("1 ahead, 1 behind");
    std::fs::write(side.join("new"), "not in a snapshot").unwrap();
    let before = world.json(&["worktree", "list"])["worktrees"].clone();
    assert_eq!((&before[1]["changed"], &before[1]["ahead"]), (&serde_json::Value::Null, &1.into()));
    let after = world.json(&["worktree", "list", "--changes"])["worktrees"].clone();
    assert_eq!((&after[0]["changed"], &after[1]["changed"]), (&false.into(), &true.into()));
    world
        .run(&["worktree", "show", "side", "--changes"])
        .ok()
        .says("no snapshot holds")
        .says("1 ahead, 1 behind");
    world.run(&["worktree", "show"]).ok().says("main");
    world.run(&["worktree", "show", "nobody"]).code(2);
}

#[test]
fn files_are_deleted_only_if_a_snapshot_holds_them() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let side = world.path("side");
    std::fs::write(side.join("new"), "not in a snapshot").unwrap();
    world.run(&["worktree", "remove", "side", "--delete"]).code(3).remarks("no snapshot does");
    assert!(side.join("new").exists());
    run(&side, &["snapshot", "-q"], Stdio::null()).ok();
    world.run(&["worktree", "remove", "side", "--delete"]).ok().says("deleted");
    assert!(!side.exists());
    let mount = Mount::new(&world, "work");
    mount.sh("echo new > new");
    world.run(&["worktree", "remove", "work", "--delete"]).code(3);
    mount.umount().ok();
    world.run(&["worktree", "remove", "work", "--delete"]).code(3).remarks("no snapshot does");
    mount.again(&[]).ok();
    run(&mount.path, &["snapshot", "-q"], Stdio::null()).ok();
    mount.umount().ok();
    world.run(&["worktree", "remove", "work", "--delete"]).ok();
    assert!(!world.tree().join(".vellum/live/work").exists());
    // One that never had a snapshot, and holds nothing.
    world.run(&["worktree", "create", "empty", "../empty"]).ok();
    world.run(&["worktree", "remove", "empty", "--delete"]).ok();
    assert!(!world.path("empty").exists());
    // The directory that holds the store of the volume.
    let other = world.path("side");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    run(&other, &["worktree", "remove", "main", "--delete"], Stdio::null()).code(3).remarks("store");
}

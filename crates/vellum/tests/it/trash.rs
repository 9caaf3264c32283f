//! `vellum trash`, in real mounts: what was deleted comes back, whatever happened meanwhile.

use serde_json::Value;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{Ran, World};

/// A mounted worktree with a trash, and a tree in it.
fn mounted(world: &World) -> Mount<'_> {
    let mount = Mount::place(world, "work");
    mount.again(&["--trash-days", "7"]).ok();
    mount.sh(
        "mkdir -p tree/sub; echo one > tree/1; head -c 300000 /dev/urandom > tree/sub/2; ln -s 1 tree/link",
    );
    mount.sh("find tree -type f | sort | xargs sha256sum > sums");
    mount
}

/// Runs a command in the mount.
fn run(mount: &Mount<'_>, world: &World, args: &[&str]) -> Ran {
    world.run_in(mount.path.to_str().unwrap(), args)
}

fn trash(mount: &Mount<'_>, world: &World, args: &[&str]) -> Ran {
    run(mount, world, &[&["trash"], args].concat())
}

fn list(mount: &Mount<'_>, world: &World) -> Value {
    let listed = trash(mount, world, &["list", "--json"]).ok();
    serde_json::from_str(&listed.out).unwrap()
}

fn paths(listed: &Value) -> Vec<&str> {
    listed["listed"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

#[test]
fn a_deleted_tree_is_listed_and_restored() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("rm -rf tree");
    let listed = list(&mount, &world);
    let mut deleted = paths(&listed);
    deleted.sort_unstable();
    assert_eq!(deleted, ["tree", "tree/1", "tree/link", "tree/sub", "tree/sub/2"]);
    assert_eq!(
        (listed["days"].as_u64(), listed["entries"].as_u64(), listed["bytes"].as_u64()),
        (Some(7), Some(5), Some(300_004))
    );
    let one = listed["listed"].as_array().unwrap().iter().find(|entry| entry["path"] == "tree/1").unwrap();
    assert_eq!(
        (one["kind"].as_str(), one["size"].as_u64(), one["uid"].as_u64()),
        (Some("file"), Some(4), Some(0))
    );
    trash(&mount, &world, &["list"])
        .ok()
        .says("tree/sub/2")
        .says("293.0 KiB")
        .says("root")
        .remarks("5 entries");
    crate::pager::assert_fits(&world, &["-C", mount.path.to_str().unwrap(), "trash", "list"], 60);
    assert_eq!(trash(&mount, &world, &["list", "tree/sub"]).ok().lines().len(), 2);
    // What the kernel knows to be gone is there again.
    assert!(!mount.at("tree").exists());
    trash(&mount, &world, &["restore", "tree"]).ok().says("Restored 5 entries");
    mount.sh("sha256sum -c sums; test \"$(readlink tree/link)\" = 1");
    assert_eq!(list(&mount, &world)["entries"], 0);
    mount.umount().ok();
}

#[test]
fn nothing_is_replaced_and_the_message_tells_the_way_out() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("echo old > f; echo new > g; mv g f; ln f hard; rm hard");
    let listed = list(&mount, &world);
    assert_eq!(paths(&listed), ["f"], "what was replaced, and no link of a file that has others");
    let number = listed["listed"][0]["number"].as_u64().unwrap().to_string();
    trash(&mount, &world, &["restore", "f"]).code(2).remarks("'f' exists").remarks("--to");
    trash(&mount, &world, &["restore", "--number", &number, "--to", "f"]).code(2);
    trash(&mount, &world, &["restore", "--number", &number, "--to", "other/place"]).ok().says("1 entry");
    assert_eq!(mount.sh("cat f other/place"), "new\nold\n");
    trash(&mount, &world, &["restore", "f"]).code(2).remarks("no entry 'f'").remarks("'vellum trash list'");
    trash(&mount, &world, &["list"]).ok().remarks("0 entries");
    trash(&mount, &world, &["restore", "a", "b", "--to", "c"]).code(3);
    world.run(&["trash", "list"]).code(3).remarks("'vellum mounts'").remarks("--worktree NAME");
    world.run(&["mounts"]).ok();
    mount.umount().ok();
}

#[test]
fn what_was_deleted_survives_a_killed_process_and_a_collection() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("cp tree/sub/2 published");
    run(&mount, &world, &["flush"]).ok();
    mount.sh("cp tree/1 unpublished; sync unpublished; rm published unpublished; rm -r tree; sync -f .");
    kill(mount.pid(), "-KILL");
    wait_until("the mount is dead", || mount.is_dead());
    mount.again(&[]).ok();
    assert_eq!(paths(&list(&mount, &world)).len(), 7);
    run(&mount, &world, &["flush"]).ok();
    run(&mount, &world, &["snapshot"]).ok();
    run(&mount, &world, &["flush"]).ok();
    world.run(&["gc", "run"]).ok();
    mount.umount().ok();
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
    mount.again(&[]).ok();
    trash(&mount, &world, &["restore", "tree", "published", "unpublished"]).ok().says("7 entries");
    mount.sh("sha256sum -c sums; cmp published tree/sub/2; cmp unpublished tree/1");
    mount.umount().ok();
}

#[test]
fn it_is_emptied_and_switched_off() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("rm -r tree");
    run(&mount, &world, &["status"]).remarks("Trash: 5 entries");
    trash(&mount, &world, &["empty"]).ok().says("Deleted 5 entries").remarks("'vellum gc run'");
    assert_eq!(list(&mount, &world)["entries"], 0);
    mount.sh("rm sums");
    trash(&mount, &world, &["days"]).ok().says("7");
    trash(&mount, &world, &["days", "36501"]).code(3);
    trash(&mount, &world, &["days", "0"]).ok().says("0");
    mount.sh("echo gone > f; rm f");
    trash(&mount, &world, &["list"]).ok().remarks("'vellum trash days NUMBER'");
    let status: Value = serde_json::from_str(&run(&mount, &world, &["status", "--json"]).out).unwrap();
    assert!(status["mount"].get("trash").is_none());
    trash(&mount, &world, &["days", "3"]).ok().says("3");
    mount.sh("echo kept > f; rm f");
    mount.umount().ok();
    mount.again(&[]).ok();
    assert_eq!(paths(&list(&mount, &world)), ["f"], "the days belong to the worktree");
    mount.umount().ok();
    mount.again(&["--trash-days", "0"]).ok();
    assert_eq!(list(&mount, &world)["entries"], 0);
    mount.umount().ok();
    world.run(&["gc", "run"]).ok();
}

#[test]
fn a_fork_and_its_original_have_nothing_of_the_trash_in_common() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("rm -r tree");
    let side = Mount::place(&world, "side");
    run(&mount, &world, &["fork", "side", "--mount", side.path.to_str().unwrap()]).ok();
    let listed = list(&side, &world);
    assert_eq!((listed["days"].as_u64(), listed["entries"].as_u64()), (Some(0), Some(0)));
    side.umount().ok();
    trash(&mount, &world, &["restore", "tree"]).ok();
    mount.sh("sha256sum -c sums");
    mount.umount().ok();
}

#[test]
fn the_trash_of_a_worktree_that_is_not_mounted_is_listed() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    mount.sh("rm -r tree");
    mount.umount().ok();
    let listed = world.json(&["trash", "list", "--worktree", "work"]);
    let mut deleted = paths(&listed);
    deleted.sort_unstable();
    assert_eq!(deleted, ["tree", "tree/1", "tree/link", "tree/sub", "tree/sub/2"]);
    assert_eq!((listed["days"].as_u64(), listed["bytes"].as_u64()), (Some(7), Some(300_004)));
    let text = world.run(&["trash", "list", "--worktree", "work", "tree/sub"]).ok().says("tree/sub/2");
    assert_eq!(text.lines().len(), 2);
    world
        .run(&["trash", "list", "--worktree", "work"])
        .ok()
        .remarks("5 entries")
        .remarks("published it last");
    world.run(&["trash", "list", "--worktree", "nowhere"]).code(2).remarks("'nowhere'");
    for command in [&["trash", "restore", "tree"][..], &["trash", "empty"], &["trash", "days"]] {
        world.run(command).code(3).remarks("'vellum mount'");
    }
    // Where another worktree is mounted, and where this one is.
    mount.again(&[]).ok();
    let side = Mount::new(&world, "side");
    let there = run(&side, &world, &["trash", "list", "--worktree", "work"]).ok();
    assert_eq!(there.lines().len(), 5);
    assert_eq!(trash(&mount, &world, &["list", "--worktree", "work"]).ok().lines().len(), 5);
    side.umount().ok();
    mount.umount().ok();
}

#[test]
fn figures_of_a_mount_tell_what_its_trash_holds() {
    let world = World::with_snapshot();
    let mount = mounted(&world);
    let figures = || {
        let ran = world.run(&[
            "stats",
            mount.path.to_str().unwrap(),
            "--json",
            "--interval",
            "0.02",
            "--count",
            "1",
        ]);
        serde_json::from_str::<Value>(&ran.ok().out).unwrap()
    };
    assert_eq!(figures()["trash"], Value::Null);
    mount.sh("rm -r tree");
    assert_eq!(figures()["trash"], serde_json::json!({ "entries": 5, "bytes": 300_004 }));
    mount.umount().ok();
}

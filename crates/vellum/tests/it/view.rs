//! `vellum view`, and what keeps a mounted snapshot.

use std::fs;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{World, noise};

/// A volume with an old snapshot that alone has some 200 kB, and a fork with a state directory of its own.
fn with_old_snapshot() -> (World, String) {
    let world = World::with_snapshot();
    world.write("noise", noise(200_000));
    let id = world.run(&["snapshot", "-q"]).ok().out.trim().to_owned();
    world.remove("noise");
    world.snapshot("last");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    (world, id)
}

#[test]
fn a_view_stays_readable_whatever_is_forgotten_and_collected() {
    let (world, id) = with_old_snapshot();
    let view = Mount::place(&world, "view");
    world.run(&["view", &id, "../view"]).ok().says("Mounted the snapshot");
    assert_eq!(view.description()["snapshot"], id.as_str());
    let place = format!("it is viewed on {} by process {}", view.path.display(), view.pid());
    for dry in [&["forget", &id, "-n"][..], &["forget", &id]] {
        world.run(dry).code(2).remarks("still needed").remarks(&place).remarks("--force");
    }
    world.run_beside("side", &["forget", &id]).code(2).remarks(&place);
    world.run(&["forget", &id, "--force"]).ok();
    world.run(&["gc", "run"]).ok().says("Nothing to free");
    world.run_beside("side", &["gc", "run"]).ok().says("Nothing to free");
    // Read for the first time: neither the kernel nor the mount had it in memory.
    assert_eq!(fs::read(view.at("noise")).unwrap(), noise(200_000));
    assert_eq!(fs::read(view.at("dir/deep/c.bin")).unwrap(), [0, 1, 2, 255]);
    assert_eq!(fs::write(view.at("a.txt"), "x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    view.umount().ok();
    world.run_beside("side", &["gc", "run"]).ok().says("Freed");
    world.run(&["view", &id, "../view"]).code(2);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn rules_keep_what_is_viewed_and_usage_says_what_that_takes() {
    let (world, id) = with_old_snapshot();
    let rows = |json: &serde_json::Value| {
        let groups = json["groups"].as_array().unwrap();
        let readers = groups.iter().filter(|group| group["kind"] == "readers");
        readers.map(|group| group["unique"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert!(rows(&world.json(&["usage"])).is_empty());
    let view = Mount::place(&world, "view");
    world.run(&["view", &id, "../view"]).ok();
    // A snapshot with the same tree stays, and so nothing that is read leaves the history.
    let process = format!("in use by process {}", view.pid());
    world.run(&["forget", "--keep-last", "1", "-n"]).ok().says(&process);
    world.run(&["forget", "--keep-last", "1"]).ok().says("keep").says(&process);
    let report = world.json(&["forget", "--keep-last", "1", "-n"]);
    assert!(report["snapshots"].to_string().contains(&process), "{report}");
    // As long as the snapshot is listed, the view shares all of it.
    assert_eq!(rows(&world.json(&["usage"])), [0]);
    world.run(&["forget", &id, "--force"]).ok();
    let [unique] = rows(&world.json(&["usage"]))[..] else { panic!("one row") };
    assert!((200_000..210_000).contains(&unique), "{unique}");
    world.run(&["usage"]).ok().says("mounts and views");
    view.umount().ok();
    assert!(rows(&world.json(&["usage"])).is_empty());
    world.run(&["gc", "run"]).ok().says("Freed");
}

#[test]
fn a_snapshot_with_the_tree_of_another_one_can_be_forgotten_while_that_is_viewed() {
    let world = World::with_snapshot();
    let same = world.run(&["snapshot", "-q"]).ok().out.trim().to_owned();
    world.write("a.txt", "other");
    world.snapshot("last");
    let view = Mount::place(&world, "view");
    world.run(&["view", "first", "../view"]).ok();
    world.run(&["forget", &same]).ok();
    assert!(view.at("a.txt").exists());
}

#[test]
fn a_pin_that_ends_while_a_mount_reads_the_snapshot_takes_nothing_from_it() {
    let (world, id) = with_old_snapshot();
    world.run(&["pin", &id, "--until", "3s"]).ok();
    let view = Mount::place(&world, "view");
    view.again(&["--snapshot", &id]).ok();
    // Before the pin has ended, it keeps the snapshot.
    wait_until("the pin has ended", || {
        let forgotten = world.run(&["forget", &id, "--force"]);
        assert!(forgotten.code == 0 || forgotten.err.contains("pinned by"), "{}", forgotten.err);
        forgotten.code == 0
    });
    for place in ["tree", "side"] {
        world.run_beside(place, &["gc", "run"]).ok().says("Nothing to free");
    }
    // Read for the first time.
    assert_eq!(fs::read(view.at("noise")).unwrap(), noise(200_000));
    view.umount().ok();
    world.run(&["gc", "run"]).ok().says("Freed");
    world.run(&["view", &id, "../view"]).code(2);
    assert!(world.json(&["pins"])["snapshots"].as_array().unwrap().is_empty());
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_view_that_was_killed_holds_nothing() {
    let (world, id) = with_old_snapshot();
    let view = Mount::place(&world, "view");
    view.again(&["--snapshot", &id]).ok();
    kill(view.pid(), "-KILL");
    wait_until("it is gone", || view.is_dead());
    world.run(&["forget", &id]).ok();
    world.run_beside("side", &["gc", "run"]).ok().says("Freed");
    assert_eq!(fs::read_dir(world.tree().join(".vellum/store/sessions")).unwrap().count(), 0);
}

#[test]
fn a_store_that_cannot_be_written_to_can_be_viewed() {
    let world = World::empty();
    fs::create_dir(world.path("store")).unwrap();
    world.run(&["init", "--plain", "--store", "../store/s"]).ok();
    world.write("a.txt", "one");
    world.snapshot("first");
    let view = Mount::place(&world, "view");
    let store = world.path("store");
    let store = store.to_str().unwrap();
    let remount = |how: &str| {
        let args = ["-o", how, store, store];
        let args = if how == "bind" { &args[..] } else { &["-o", how, store][..] };
        assert!(std::process::Command::new("mount").args(args).status().unwrap().success());
    };
    remount("bind");
    remount("remount,bind,ro");
    let viewed = world.run(&["--json", "view", "first", "../view"]);
    let content = fs::read_to_string(view.at("a.txt"));
    let unmounted = view.umount();
    assert!(std::process::Command::new("umount").arg(store).status().unwrap().success());
    let report: serde_json::Value = serde_json::from_str(&viewed.ok().out).unwrap();
    assert_eq!(report["read_only"], true);
    assert_eq!(content.unwrap(), "one");
    unmounted.ok();
}

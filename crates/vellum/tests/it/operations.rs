//! `vellum operations`

use std::fs;

use crate::mounting::Mount;
use crate::world::World;

#[test]
fn operations_say_what_was_done_by_whom() {
    let world = World::with_snapshot();
    world.run(&["tag", "add", "v1"]).ok();
    world.run(&["worktree", "quota", "--bytes", "1G"]);
    world.run(&["operations"]).ok().says("tag add v1").says("tag v1: added at");
    let json = world.json(&["operations"]);
    let newest = json["operations"].as_array().unwrap().iter();
    let tag = newest.clone().find(|operation| operation["command"][0] == "tag").unwrap();
    assert_eq!(tag["command"], serde_json::json!(["tag", "add", "v1"]));
    assert_eq!(tag["changes"][0]["kind"], "tag");
    assert_eq!(tag["changes"][0]["before"], serde_json::Value::Null);
    assert!(newest.clone().any(|operation| operation["command"][0] == "snapshot"));
    assert!(newest.clone().any(|operation| operation["command"][0] == "init"));
    world.run(&["operations", "-n", "1"]).ok().remarks("older ones: vellum operations -n 5");
    world.run(&["operations", "--verify"]).ok().says("all as they were recorded");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_lost_record_is_named() {
    let world = World::with_snapshot();
    let chains = world.tree().join(".vellum/store/operations");
    let chain = fs::read_dir(chains).unwrap().next().unwrap().unwrap().path();
    let mut records: Vec<_> = fs::read_dir(chain).unwrap().map(|entry| entry.unwrap().path()).collect();
    records.sort();
    fs::remove_file(&records[0]).unwrap();
    world.run(&["operations", "--verify"]).code(1).says("operation 1").says("it is missing");
    world.run(&["operations", "--verify", "--all"]).code(1);
    world.run(&["verify", "--all"]).code(1).says("/0000000000000001").says("operation 1");
}

#[test]
fn snapshots_and_restores_of_a_mount_are_recorded() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("new"), "content").unwrap();
    let place = mount.path.to_str().unwrap();
    let run = |args: &[&str]| world.run(&[&["-C", place], args].concat()).ok();
    run(&["snapshot", "-m", "of the mount", "--tag", "mounted"]);
    run(&["snapshot", "new", "-m", "of a file"]);
    fs::write(mount.at("unsaved"), "content").unwrap();
    run(&["restore", "first"]);
    run(&["worktree", "quota", "--inodes", "1000"]);
    world.write("theirs", "content");
    world.run(&["snapshot", "-m", "of the directory"]).ok();
    run(&["merge", "main"]);
    run(&["try", "--apply", "--", "touch", "tried"]);
    mount.umount().ok();
    // Each twice or once: the tag and the safety snapshots are operations of the same commands.
    let expected = [
        "try --apply -- touch ***",
        "merge main",
        "worktree quota --inodes 1000",
        "restore first",
        "snapshot new -m of a file",
        "snapshot -m of the mount --tag mounted",
    ];
    let mut found = commands_of(&world, "work", place);
    found.dedup();
    assert_eq!(found[..expected.len()], expected, "{found:?}");
    world.run(&["operations", "--verify", "--all"]).ok();
}

/// The commands of a worktree's operations, newest first, without the directory that they were told to run in.
fn commands_of(world: &World, worktree: &str, place: &str) -> Vec<String> {
    let json = world.json(&["operations", "-n", "0", "--worktree", worktree]);
    let words = |operation: &serde_json::Value| -> Vec<String> {
        let words = operation["command"].as_array().unwrap();
        words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let operations = json["operations"].as_array().unwrap().iter();
    let joined = operations.map(|operation| words(operation).join(" "));
    joined.map(|words| words.strip_prefix(&format!("-C {place} ")).unwrap_or(&words).to_owned()).collect()
}

#[test]
fn what_a_mount_has_not_published_is_recorded_with_its_command_by_the_next_mount() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let place = mount.path.to_str().unwrap();
    fs::write(mount.at("new"), "content").unwrap();
    // Nothing can be published: whoever would is killed first.
    let store = fs::canonicalize(world.tree().join(".vellum/store")).unwrap();
    let away = store.with_extension("away");
    fs::rename(&store, &away).unwrap();
    world.run(&["-C", place, "snapshot", "-q", "-m", "pending"]);
    crate::mounting::kill(mount.pid(), "-KILL");
    crate::mounting::detach_mount(&mount.path);
    fs::rename(&away, &store).unwrap();
    mount.again(&[]).ok();
    world.run(&["-C", place, "flush"]).ok();
    mount.umount().ok();
    let found = commands_of(&world, "work", place);
    assert!(found.contains(&"snapshot -q -m pending".to_owned()), "{found:?}");
}

#[test]
fn a_tag_and_a_snapshot_in_a_mount_are_recorded_once() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let place = mount.path.to_str().unwrap();
    for tag in ["one", "two"] {
        world.run(&["-C", place, "tag", "add", tag, "HEAD"]).ok();
        fs::write(mount.at(tag), "content").unwrap();
        world.run(&["-C", place, "snapshot", "-q", "-m", tag]).ok();
    }
    let verified = world.run(&["-C", place, "operations", "--verify"]).ok();
    let told = format!("{}{}", verified.out, verified.err);
    assert!(!told.contains("not carried out"), "{told}");
    mount.umount().ok();
}

#[test]
fn no_secret_is_recorded() {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    world.write("../canary-file", "canary-passphrase\n");
    world.run(&["key", "add", "--passphrase-file", "../canary-file"]).ok();
    world.run(&["key", "add", "--passphrase-file=../canary-file"]).ok();
    let all = world.run(&["operations", "-n", "0", "--all", "--json"]).ok().out;
    assert!(all.contains("--passphrase-file"), "{all}");
    assert!(!all.contains("canary"), "{all}");
}

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
    world.run(&["-C", place, "snapshot", "--wait", "--tag", "mounted"]).ok();
    world.run(&["-C", place, "restore", "first"]).ok();
    mount.umount().ok();
    let commands = |worktree: &str| -> Vec<String> {
        let json = world.json(&["operations", "--worktree", worktree]);
        let operations = json["operations"].as_array().unwrap().clone();
        operations.iter().map(|operation| operation["command"][0].as_str().unwrap().into()).collect()
    };
    let found = commands("work");
    assert!(found.contains(&"snapshot".to_owned()) && found.contains(&"restore".to_owned()), "{found:?}");
    world.run(&["operations", "--verify", "--all"]).ok();
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

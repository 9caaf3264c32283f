//! `vellum device rotate`, `vellum key open`

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use vellum_testkit::SeaweedServer;

use crate::remote::world_with_credentials;
use crate::world::{Ran, World, run};

fn world() -> World {
    let world = World::empty();
    world.run(&["init", "--name", "main", "--store", "../store"]).ok();
    world.write("a", "one\n");
    world.run(&["snapshot"]).ok();
    world
}

/// Adds a device and clones the store as that does; gives its code.
fn add_clone(world: &World, name: &str) -> String {
    let code = world.json(&["device", "add", name])["code"].as_str().unwrap().to_owned();
    fs::write(world.path("code"), &code).unwrap();
    let args = ["clone", "store", name, "--passphrase-file", "code"];
    run(&world.path(""), &args, Stdio::null()).ok();
    code
}

fn run_in(world: &World, dir: &str, args: &[&str]) -> Ran {
    run(&world.path(dir), args, Stdio::null())
}

#[test]
fn a_revoked_device_reads_nothing_new_and_the_others_go_on() {
    let world = world();
    add_clone(&world, "laptop");
    add_clone(&world, "desk");
    world.run(&["device", "revoke", "desk"]).ok().remarks("'vellum device rotate' changes the key");
    world
        .run(&["device", "rotate", "-n"])
        .ok()
        .says("Would change the key, to that of key epoch 1")
        .says("  device laptop");
    assert!(!world.path("store/key-epochs").exists());
    let ran =
        world.run(&["device", "rotate"]).ok().says("Changed the key: key epoch 1").says("device laptop");
    assert!(!ran.out.contains("desk"), "{}", ran.out);
    world.write("b", "two\n");
    world.run(&["snapshot"]).ok();
    fs::write(world.path("laptop/c"), "three\n").unwrap();
    run_in(&world, "laptop", &["snapshot"]).ok();
    run_in(&world, "laptop", &["cat", "main", "b"]).ok().says("two");
    world.run(&["merge", "laptop.laptop"]).ok();
    assert_eq!(world.read("c"), "three\n");

    for args in
        [&["snapshot"][..], &["history"], &["cat", "main", "b"], &["worktree", "list"], &["tag", "add", "x"]]
    {
        run_in(&world, "desk", args).code(2).remarks("this device was revoked");
    }
    let listed = world.run(&["device", "list"]).ok().says("revoked").remarks("key epoch 1");
    assert_eq!(listed.lines().len(), 2);
    assert_eq!(world.json(&["device", "list"])["key_epoch"], 1);
    world.run(&["verify", "--all"]).ok();
    let again = world.json(&["device", "rotate"]);
    assert_eq!((again["key_epoch"].as_u64(), again["resumed"].as_bool()), (Some(2), Some(false)));
    run_in(&world, "laptop", &["history"]).ok();
}

#[test]
fn the_hint_of_revoke_is_a_command_that_works() {
    let world = world();
    add_clone(&world, "laptop");
    let ran = world.run(&["device", "revoke", "laptop"]).ok();
    let quoted = ran.err.split('\'').find(|part| part.starts_with("vellum device rotate")).unwrap();
    let args: Vec<_> = quoted.split(' ').skip(1).collect();
    world.run(&args).ok().says("Changed the key");
}

#[test]
fn a_worktree_that_keeps_only_the_old_key_is_opened_with_a_secret() {
    let world = world();
    let code = add_clone(&world, "laptop");
    fs::remove_file(world.path("laptop/.vellum/slot-key")).unwrap();
    // As on another machine, which is not given the key by this one.
    fs::rename(world.path("laptop"), world.path("elsewhere")).unwrap();
    world.run(&["device", "rotate"]).ok();
    run_in(&world, "elsewhere", &["history"])
        .code(2)
        .remarks("this worktree has only the one before")
        .remarks("'vellum key open'");
    fs::write(world.path("wrong"), "00000").unwrap();
    run_in(&world, "elsewhere", &["key", "open", "--passphrase-file", "../wrong"]).code(2);
    fs::write(world.path("code"), code).unwrap();
    run_in(&world, "elsewhere", &["key", "open", "--passphrase-file", "../code"]).ok().says("key epoch 1");
    run_in(&world, "elsewhere", &["history"]).ok();
    world.run(&["device", "rotate"]).ok();
    run_in(&world, "elsewhere", &["history"]).ok();
}

#[test]
fn a_store_of_an_early_version_is_prepared_slot_by_slot() {
    let world = world();
    let code = add_clone(&world, "laptop");
    fs::remove_dir_all(world.path("store/slot-keys")).unwrap();
    let ran = world.run(&["device", "rotate"]).code(2).remarks("device laptop").remarks("recovery code");
    assert!(ran.err.contains("'vellum key open'"), "{}", ran.err);
    fs::write(world.path("code"), code).unwrap();
    run_in(&world, "laptop", &["key", "open", "--passphrase-file", "../code"]).ok().says("key epoch 0");
    let keys = world.json(&["key", "list"])["keys"].clone();
    let other = keys.as_array().unwrap().iter().find(|key| key.get("device").is_none()).unwrap();
    world.run(&["key", "remove", other["id"].as_str().unwrap()]).ok();
    world.run(&["device", "rotate"]).ok().says("device laptop");
    world.run(&["history"]).ok();
}

#[test]
fn a_mount_goes_on_with_the_new_key() {
    let world = world();
    add_clone(&world, "laptop");
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.run(&["mount", &shown]).ok();
    fs::write(mountpoint.join("before"), "before\n").unwrap();
    run(&mountpoint, &["snapshot"], Stdio::null()).ok();
    run_in(&world, "laptop", &["device", "rotate"]).ok();
    fs::write(mountpoint.join("after"), "after\n").unwrap();
    run(&mountpoint, &["snapshot", "--wait"], Stdio::null()).ok();
    run_in(&world, "laptop", &["cat", "mnt", "after"]).ok().says("after");
    assert_eq!(fs::read_to_string(mountpoint.join("before")).unwrap(), "before\n");
    run(&world.path(""), &["umount", &shown], Stdio::null()).ok();
    run_in(&world, "laptop", &["verify", "--all"]).ok();
}

#[test]
fn a_remote_has_a_key_of_its_own() {
    let world = world();
    add_clone(&world, "laptop");
    add_clone(&world, "desk");
    world.run(&["remote", "add", "origin", "../far"]).ok();
    world.run(&["push"]).ok();
    world.run(&["device", "revoke", "desk"]).ok();
    world.run(&["device", "rotate"]).ok().remarks("'vellum device rotate --remote origin' changes it");
    let rotated = world.json(&["device", "rotate", "--remote", "origin"]);
    assert_eq!(rotated["key_epoch"], 1);
    assert_eq!(rotated["recipients"].as_array().unwrap().len(), 2, "{rotated}");
    world.write("b", "two\n");
    world.run(&["snapshot"]).ok();
    world.run(&["push"]).ok();
    let code = world.json(&["device", "add", "late"])["code"].as_str().unwrap().to_owned();
    world.run(&["push"]).ok();
    fs::write(world.path("code"), code).unwrap();
    run_in(&world, "", &["clone", "far", "late", "--passphrase-file", "code"]).ok();
    assert_eq!(fs::read_to_string(world.path("late/b")).unwrap(), "two\n");
    run_in(&world, "late", &["verify", "--all"]).ok();
    fs::write(world.path("late/c"), "three\n").unwrap();
    run_in(&world, "late", &["snapshot"]).ok();
    world.run(&["pull"]).ok();
    world.run(&["cat", "origin/late.late", "c"]).ok().says("three");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn plain_volumes_have_no_key_to_change() {
    World::new().run(&["device", "rotate"]).code(3).remarks("not encrypted");
    World::new().run(&["key", "open", "--passphrase-file", "/dev/null"]).code(3).remarks("not encrypted");
}

#[test]
fn a_store_in_a_service_changes_its_key() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("rotated");
    world.run_at_home(&["init", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one\n");
    world.run_at_home(&["snapshot", "--tag", "first"]).ok();
    let clone = |name: &str| {
        let added = world.run_at_home(&["device", "add", name, "--json"]).ok();
        let added: Value = serde_json::from_str(&added.out).unwrap();
        fs::write(world.path("code"), added["code"].as_str().unwrap()).unwrap();
        let to = world.path(name).display().to_string();
        let args = ["clone", &url, &to, "--credentials", "test", "--passphrase-file", "../code"];
        world.run_at_home(&args).ok();
    };
    clone("laptop");
    clone("desk");
    world.run_at_home(&["device", "revoke", "desk"]).ok();
    world.run_at_home(&["device", "rotate"]).ok().says("Changed the key: key epoch 1");
    world.write("b", "two\n");
    world.run_at_home(&["snapshot"]).ok();
    let in_dir = |dir: &str, args: &[&str]| {
        let output = world.command_at_home(args).current_dir(world.path(dir)).output().unwrap();
        Ran::of(args, output)
    };
    in_dir("laptop", &["cat", "main", "b"]).ok().says("two");
    fs::write(world.path("laptop/c"), "three\n").unwrap();
    in_dir("laptop", &["snapshot"]).ok();
    in_dir("laptop", &["verify", "--all"]).ok();
    in_dir("desk", &["history"]).code(2).remarks("this device was revoked");
    in_dir("desk", &["snapshot"]).code(2).remarks("this device was revoked");
    clone("late");
    assert_eq!(fs::read_to_string(world.path("late/a")).unwrap(), "one\n");
}

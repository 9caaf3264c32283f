//! `vellum device`

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use vellum_testkit::LyingS3;

use crate::remote::world_with_credentials;
use crate::world::{Ran, World, run};

/// Adds a device; gives its code.
fn add(world: &World, name: &str) -> String {
    let added = world.json(&["device", "add", name]);
    assert_eq!(added["name"], name);
    assert_eq!(added["kind"], "recovery code");
    added["code"].as_str().unwrap().into()
}

/// Clones the store as a device does that has this code.
fn clone(world: &World, dir: &str, code: &str, more: &[&str]) -> Ran {
    fs::write(world.path("code"), format!("{}\n", code.to_lowercase())).unwrap();
    let args = [&["clone", "store", dir, "--passphrase-file", "code"], more].concat();
    run(&world.path(""), &args, Stdio::null())
}

fn world() -> World {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    world.write("a", "one\n");
    world.run(&["snapshot"]).ok();
    world
}

fn devices(world: &World) -> Vec<Value> {
    world.json(&["device", "list"])["devices"].as_array().unwrap().clone()
}

#[test]
fn a_device_clones_with_its_code_and_works_on_a_line_of_its_own() {
    let world = world();
    world.run(&["device", "list"]).ok().remarks("no devices yet");
    let ran =
        world.run(&["device", "add", "laptop"]).ok().says("Added the device laptop").says("not shown again");
    let code = ran.lines().into_iter().find_map(|line| line.strip_prefix("Code: ")).unwrap().to_owned();
    let desk = add(&world, "desk");
    clone(&world, "photos", &code, &[]).ok().says("is now the worktree 'laptop.photos'");
    clone(&world, "desk/photos", &desk, &[]).ok().says("is now the worktree 'desk.photos'");
    let laptop = world.path("photos");
    fs::write(laptop.join("b"), "two\n").unwrap();
    run(&laptop, &["snapshot"], Stdio::null()).ok();

    let ran = world.run(&["device", "list"]).ok().remarks("belongs to none of them");
    assert_eq!(ran.lines().len(), 2);
    assert!(ran.out.contains("laptop.photos") && ran.out.contains("just now"), "{}", ran.out);
    run(&laptop, &["device", "list"], Stdio::null()).ok().says("this one");
    let found = devices(&world);
    let names: Vec<_> = found.iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["desk", "laptop"]);
    assert_eq!(found[1]["state"], "active");
    assert_eq!(found[1]["this"], false);
    assert_eq!(found[1]["worktrees"][0]["name"], "laptop.photos");
    // Its work is a line that can be merged here.
    world.run(&["merge", "laptop.photos"]).ok();
    assert_eq!(world.read("b"), "two\n");
}

#[test]
fn a_name_that_is_given_stays_as_it_is() {
    let world = world();
    let code = add(&world, "laptop");
    clone(&world, "photos", &code, &["--name", "mine"]).ok().says("worktree 'mine'");
    fs::write(world.path("code"), &code).unwrap();
    let two = world.path("two");
    fs::create_dir(&two).unwrap();
    run(&two, &["init", "--store", "../store", "--passphrase-file", "../code"], Stdio::null())
        .ok()
        .says("'laptop.two'");
}

/// Clones into a mount, and mounts the clone again as one does who does not know the name of its worktree.
fn clone_and_mount_again(dir: &str) {
    let world = world();
    let code = add(&world, "laptop");
    let lazy = world.path("d").join(dir);
    let beside = format!("{dir}.vellum");
    let run_in = |args: &[&str]| run(&world.path("d"), args, Stdio::null());
    let name = format!("laptop.{dir}");
    clone(&world, &format!("d/{dir}"), &code, &["--mount"]).ok().says(&name);
    assert_eq!(fs::read_to_string(lazy.join("a")).unwrap(), "one\n");
    fs::write(lazy.join("b"), "two\n").unwrap();
    run_in(&["umount", dir]).ok();
    run_in(&["mount", &beside, dir]).ok().says(&name);
    assert_eq!(fs::read_to_string(lazy.join("b")).unwrap(), "two\n");
    run_in(&["umount", dir]).ok();
    let found = devices(&world);
    let worktrees: Vec<_> =
        found[0]["worktrees"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(worktrees, [&name, &format!("{name}.vellum")]);
}

#[test]
fn a_mounted_clone_of_a_device_is_on_its_line_and_is_mounted_again() {
    clone_and_mount_again("lazy");
}

#[test]
fn a_device_mounts_a_worktree_of_its_own_though_another_machine_has_one_of_that_name() {
    // The directory of the machine that made the volume is called so, and its worktree.
    clone_and_mount_again("tree");
}

#[test]
fn a_refusal_to_clone_twice_says_how_the_clone_is_mounted() {
    let world = world();
    let code = add(&world, "laptop");
    let args = ["--mount", "--name", "mine"];
    clone(&world, "lazy", &code, &args).ok().says("Mounted the worktree mine");
    let run_in = |args: &[&str]| run(&world.path(""), args, Stdio::null());
    run_in(&["umount", "lazy"]).ok();
    let hint = clone(&world, "lazy", &code, &args).code(3);
    let hint = hint.remarks("'vellum mount --worktree mine ").err;
    let command = hint.split('\'').find(|part| part.starts_with("vellum mount")).unwrap();
    run_in(&command.split(' ').skip(1).collect::<Vec<_>>()).ok().says("Mounted the worktree mine");
    run_in(&["umount", "lazy"]).ok();
}

#[test]
fn a_passphrase_may_take_the_place_of_the_code() {
    let world = world();
    world.run_with_input(&["device", "add", "laptop", "--passphrase-file", "-"], "a word\n").ok();
    let key = world.run(&["key", "list"]).ok().says("device laptop");
    assert_eq!(key.lines().len(), 2);
    clone(&world, "photos", "a word", &[]).ok().says("'laptop.photos'");
}

#[test]
fn a_revoked_device_is_shut_out_and_what_it_has_kept_is_told() {
    let world = world();
    let code = add(&world, "laptop");
    clone(&world, "photos", &code, &[]).ok();
    world.run(&["remote", "add", "origin", "../far"]).ok();
    let slot = devices(&world)[0]["slot"].as_str().unwrap().to_owned();
    world.run(&["key", "remove", &slot[..8]]).code(3).remarks("'vellum device revoke laptop'");
    world
        .run(&["device", "revoke", "laptop"])
        .ok()
        .says("Revoked the device laptop")
        .says("laptop.photos stays")
        .remarks("may have kept the volume's key")
        .remarks("take away its access as well")
        .remarks("'vellum push origin' removes it");
    clone(&world, "again", &code, &[]).code(2);
    assert!(!world.path("again").exists());
    world.run(&["device", "revoke", "laptop"]).ok().says("was revoked before");
    world.run(&["device", "list"]).ok().says("revoked");
    // It has the key still, as was said.
    let laptop: PathBuf = world.path("photos");
    fs::write(laptop.join("c"), "three\n").unwrap();
    run(&laptop, &["snapshot"], Stdio::null()).ok();
    world.run(&["push"]).ok();
    world.run(&["verify", "--all"]).ok();
    let revoked = world.json(&["device", "revoke", "laptop"]);
    assert_eq!(revoked["revoked_before"], true);
    assert_eq!(revoked["stores"][1]["remote"], "origin");
}

#[test]
fn a_device_does_not_lock_itself_out_unasked() {
    let world = world();
    let code = add(&world, "laptop");
    clone(&world, "photos", &code, &[]).ok();
    let laptop = world.path("photos");
    run(&laptop, &["device", "revoke", "laptop"], Stdio::null())
        .code(2)
        .remarks("this worktree belongs to it")
        .remarks("'vellum device revoke --force laptop'");
    run(&laptop, &["device", "revoke", "--force", "laptop"], Stdio::null()).ok();
    assert_eq!(devices(&world)[0]["state"], "revoked");
}

#[test]
fn mistakes_are_told() {
    let world = world();
    add(&world, "laptop");
    world.run(&["device", "add", "laptop"]).code(2).remarks("laptop");
    world.run(&["device", "add", "a.b"]).code(3).remarks("a dot");
    world.run(&["device", "add", "x", "--passphrase"]).code(3).remarks("cannot ask for the passphrase");
    world.run(&["device", "revoke", "nobody"]).code(2).remarks("'vellum device list' shows all devices");
    for args in [&["device", "list"][..], &["device", "add", "x"]] {
        World::new().run(args).code(3).remarks("not encrypted");
    }
}

#[test]
fn a_record_that_was_forged_is_told_and_the_others_are_listed() {
    let world = world();
    add(&world, "laptop");
    add(&world, "desk");
    let slot = devices(&world)[0]["slot"].as_str().unwrap().to_owned();
    fs::write(world.path("store/devices").join(&slot), "junk").unwrap();
    world.run(&["device", "list"]).code(1).says("laptop").remarks("a device is left out").remarks(&slot);
    world.run(&["verify", "--all"]).code(1).says(&slot);
}

#[test]
fn what_opens_a_service_is_named_when_a_device_is_revoked() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    world.run_at_home(&["key", "add", "--recovery"]).ok();
    let added = world.run_at_home(&["device", "add", "laptop", "--json"]).ok();
    let added: Value = serde_json::from_str(&added.out).unwrap();
    fs::write(world.path("code"), added["code"].as_str().unwrap()).unwrap();
    let two = world.path("two").display().to_string();
    let clone = ["clone", &url, &two, "--credentials", "test", "--passphrase-file", "../code"];
    world.run_at_home(&clone).ok().says("'laptop.two'");
    world
        .run_at_home(&["device", "revoke", "laptop"])
        .ok()
        .says("laptop.two stays")
        .remarks("opens here with the credentials 'test'")
        .remarks("replace them in the service");
    let revoked = world.run_at_home(&["device", "revoke", "laptop", "--json"]).ok();
    let revoked: Value = serde_json::from_str(&revoked.out).unwrap();
    assert_eq!(revoked["stores"][0]["credentials"], "test");
}

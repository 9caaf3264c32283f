//! `vellum key`

use std::fs;
use std::process::Stdio;

use crate::world::{World, run};

#[test]
fn keys_are_added_listed_and_removed() {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    fs::write(world.path("keyfile"), [0, 1, 2, 3, 250]).unwrap();
    world.run(&["key", "add", "--key-file", "../keyfile", "--label", "laptop"]).ok().says("laptop");
    world.run_with_input(&["key", "add", "--passphrase-file", "-"], "word\n").ok();
    let ran = world.run(&["key", "list"]).ok().says("recovery code").says("laptop").says("passphrase");
    assert_eq!(ran.lines().len(), 3);
    let line = ran.lines().into_iter().find(|line| line.contains("recovery")).unwrap().to_owned();
    let id = line.split_whitespace().next().unwrap();
    world.run(&["key", "remove", &id[..8]]).ok().says(id);
    assert_eq!(world.run(&["key", "list"]).ok().lines().len(), 2);
    world.run(&["key", "remove", "zz"]).code(2).remarks("there is no key slot 'zz'");

    let two = world.path("two");
    fs::create_dir(&two).unwrap();
    run(&two, &["init", "--store", "../store", "--passphrase-file", "../keyfile"], Stdio::null()).ok();
}

#[test]
fn a_recovery_code_can_be_made_anew() {
    let world = World::empty();
    world.run(&["init"]).ok();
    world.run(&["key", "add", "--recovery"]).ok().says("Recovery code: ").says("not shown again");
    let value = world.json(&["key", "list"]);
    assert_eq!(value["keys"].as_array().unwrap().len(), 2);
    assert_eq!(value["keys"][0]["kind"], "recovery code");
}

#[test]
fn secrets_come_from_a_terminal_or_a_file() {
    let world = World::empty();
    world.run(&["init"]).ok();
    world.run(&["key", "add"]).code(3).remarks("cannot ask for the passphrase");
    world.run_with_input(&["key", "add", "--passphrase-file", "-"], "\n").code(3).remarks("empty");
    world.run(&["key", "add", "--passphrase-file", "/nonexistent"]).code(2).remarks("/nonexistent");
    World::new().run(&["key", "list"]).code(3).remarks("not encrypted");
}

#[test]
fn a_key_file_that_ends_with_a_newline_opens_the_volume() {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    fs::write(world.path("keyfile"), "0123456789abcdef\n").unwrap();
    world.run(&["key", "add", "--key-file", "../keyfile"]).ok();
    for (name, option, content) in [
        ("two", "--key-file", "0123456789abcdef\n"),
        ("three", "--passphrase-file", "0123456789abcdef\n"),
        ("four", "--key-file", "0123456789abcdef"),
    ] {
        fs::write(world.path("keyfile"), content).unwrap();
        let dir = world.path(name);
        fs::create_dir(&dir).unwrap();
        run(&dir, &["init", "--store", "../store", option, "../keyfile"], Stdio::null()).ok();
    }
    world.run(&["init", "../other", "--key-file", "../keyfile"]).ok();
    run(&world.path("other"), &["key", "list"], Stdio::null()).ok().says("key file");
    let volume = world.path("other/.vellum/store");
    let other = world.path("again");
    fs::create_dir(&other).unwrap();
    run(&other, &["init", "--store", volume.to_str().unwrap(), "--key-file", "../keyfile"], Stdio::null())
        .ok();
}

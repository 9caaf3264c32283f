//! `vellum objbench`

use std::fs;

use crate::disk::Disk;
use crate::world::World;

const FAST: [&str; 6] = ["--small-objects", "5", "--big-object-size", "100K", "--block-size", "40K"];

fn args<'a>(first: &[&'a str]) -> Vec<&'a str> {
    [&["objbench"], first, &FAST, &["--runs", "1"]].concat()
}

#[test]
fn a_store_that_was_not_there_is_made_tried_and_removed() {
    let world = World::empty();
    let ran =
        world.run(&args(&["new/store"])).ok().says("created the store").says("Vellum can use this store");
    let ran = ran.says("no compare-and-swap is lost").says("put small").says("MiB/s");
    assert!(!ran.out.contains("BROKEN"), "{}", ran.out);
    assert_eq!(fs::read_dir(world.tree()).unwrap().count(), 0);
}

#[test]
fn the_store_of_a_volume_is_left_as_it_was() {
    let world = World::with_snapshot();
    let before = world.json(&["info"])["objects"].clone();
    let report = world.json(&args(&[".vellum/store"]));
    assert_eq!(report["verdict"], "fit");
    assert!(report["promises"].as_array().unwrap().iter().all(|promise| promise["holds"] == true));
    assert_eq!(world.json(&["info"])["objects"], before);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_store_that_is_full_is_not_told_to_break_its_promises() {
    let world = World::empty();
    let disk = Disk::in_memory(20);
    let store = disk.path().join("store");
    let store = store.to_str().unwrap();
    let ran = world.run(&["objbench", store, "--block-size", "30M"]).code(2);
    let ran = ran.remarks("No space left").remarks("use fewer threads");
    assert_eq!(ran.out, "", "there is nothing to say of its promises");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[test]
fn addresses_and_numbers_that_make_no_sense_are_refused() {
    let world = World::empty();
    world.run(&["objbench", "gopher://x"]).code(2).remarks("gopher://x");
    world.run(&["objbench", ""]).code(3);
    world.run(&["objbench", "x", "--block-size", "0"]).code(3).remarks("at least a byte");
    fs::write(world.path("file"), "x").unwrap();
    world.run(&["objbench", "../file"]).code(2).remarks("file");
    assert_eq!(fs::read_dir(world.tree()).unwrap().count(), 0);
}

//! `vellum mdtest`

use crate::world::World;

#[test]
fn a_tree_is_measured_and_removed() {
    let world = World::empty();
    world.write("mine", "x");
    let report = world
        .json(&["mdtest", ".", "--depth", "1", "--branch", "2", "--files", "3", "-p", "2", "--runs", "2"]);
    assert_eq!(report["bench"], "mdtest");
    assert_eq!(report["parameters"]["branch"], 2);
    assert_eq!(report["rows"].as_array().unwrap().len(), 7);
    assert_eq!(std::fs::read_dir(world.tree()).unwrap().count(), 1);
    world.run(&["mdtest", ".", "--files", "2", "--runs", "1"]).ok().says("file create").says("op/s");
}

#[test]
fn bad_shapes_and_missing_directories_are_named() {
    let world = World::empty();
    world.run(&["mdtest", "missing"]).code(2).remarks("missing");
    world.run(&["mdtest", ".", "--depth", "65"]).code(3).remarks("64 directories deep");
    world.run(&["mdtest", ".", "--depth", "60", "--branch", "9"]).code(3).remarks("names");
    world.run(&["mdtest", ".", "--depth", "0", "--files", "0"]).code(3).remarks("nothing to measure");
}

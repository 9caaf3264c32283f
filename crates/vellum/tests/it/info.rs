//! `vellum info`

use crate::world::World;

#[test]
fn a_worktree_and_its_volume_are_described() {
    let world = World::new();
    world.run(&["info"]).ok().says("no snapshot yet").says("Encrypted  no");
    world.write("x", "x");
    world.snapshot("first");
    world.run(&["info"]).ok().says("\"first\"").says("1 snapshot, 1 tag, 1 worktree");
}

#[test]
fn json() {
    let world = World::with_snapshot();
    let value = world.json(&["info"]);
    assert_eq!(value["directory"], world.tree().to_str().unwrap());
    assert_eq!(value["encrypted"], false);
    assert_eq!(value["snapshots"], 1);
    assert!(value["stored_bytes"].as_u64().unwrap() > 0);
}

//! `vellum tag`

use crate::world::World;

#[test]
fn tags_name_snapshots_until_removed() {
    let world = World::with_snapshot();
    world.run(&["tag", "add", "v1"]).ok().says("v1 is snapshot");
    world.run(&["tag", "list"]).ok().says("first").says("v1");
    world.run(&["cat", "v1", "a.txt"]).ok().says("one");
    world.run(&["tag", "remove", "v1", "first"]).ok().says("Removed the tag v1");
    world.run(&["tag", "list"]).ok().remarks("no tags yet");
    world.run(&["cat", "v1", "a.txt"]).code(2);
}

#[test]
fn a_tag_is_not_moved_by_accident() {
    let world = World::with_snapshot();
    world.write("x", "");
    world.snapshot("second");
    world.run(&["tag", "add", "first", "HEAD"]).code(2).remarks("the tag 'first' exists already");
    world.run(&["tag", "add", "first", "first"]).ok();
    world
        .run(&["tag", "remove", "nothing"])
        .code(2)
        .remarks("there is no tag 'nothing'")
        .remarks("vellum tag list");
    world.run(&["tag", "add", "HEAD"]).code(3);
    world.run(&["tag", "add", "a~1"]).code(3);
}

#[test]
fn json() {
    let world = World::with_snapshot();
    let id = world.snapshot("second");
    let value = world.json(&["tag", "list"]);
    assert_eq!(value["tags"][1], serde_json::json!({"name": "second", "snapshot": id}));
}

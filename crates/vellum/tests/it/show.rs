//! `vellum show`

use crate::world::World;

#[test]
fn a_snapshot_in_full() {
    let world = World::with_snapshot();
    world
        .run(&["show"])
        .ok()
        .says("Note      first")
        .says("Names     HEAD, first")
        .says("3 files, 3 directories")
        .says("a.txt");
    world.run(&["show", "first"]).ok().says("tester@");
}

#[test]
fn a_file_in_full() {
    let world = World::with_snapshot();
    world.chmod("a.txt", 0o640);
    world.snapshot("mode");
    world
        .run(&["show", "HEAD", "a.txt"])
        .ok()
        .says("-rw-r----- (0640)")
        .says("14 bytes")
        .says("within the tree");
    world.run(&["show", "HEAD", "dir"]).ok().says("b.txt").says("directory");
    world.run_in("dir", &["show", "HEAD", "b.txt"]).ok().says("dir/b.txt");
    world.run(&["show", "HEAD", "nothing"]).code(2).remarks("'nothing' is not in snapshot");
}

#[test]
fn json() {
    let world = World::with_snapshot();
    let value = world.json(&["show", "first"]);
    assert_eq!(value["snapshot"]["bytes"], 20);
    assert_eq!(value["entries"][0]["path"], "a.txt");
    let value = world.json(&["show", "first", "a.txt"]);
    assert_eq!(value["file"]["size"], 14);
    assert_eq!(value["file"]["kind"], "file");
}

//! `vellum snapshot`

use std::fs;

use crate::world::World;

#[test]
fn a_snapshot_says_what_it_holds() {
    let world = World::new();
    world.write("a", "content");
    world.run(&["snapshot", "-m", "note"]).ok().says("1 file, 7 B").says("changed");
    world.run(&["snapshot"]).ok().says("nothing changed");
}

#[test]
fn quiet_prints_the_id_alone() {
    let world = World::new();
    let id = world.snapshot("first");
    assert_eq!(id.len(), 64);
    assert_eq!(world.json(&["show"])["snapshot"]["id"], id);
}

#[test]
fn only_the_named_paths_are_recorded() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    world.write("dir/b.txt", "changed");
    world.write("dir/new", "new");
    world.run(&["snapshot", "dir"]).ok();
    world.run(&["cat", "HEAD", "a.txt"]).ok().says("one");
    world.run(&["cat", "HEAD", "dir/b.txt"]).ok().says("changed");
    let ran = world.run(&["status"]).code(1).says("M  a.txt");
    assert!(!ran.out.contains("dir"));
    world.run(&["snapshot", "nothing"]).code(2).remarks("'nothing' is neither");
}

#[test]
fn nothing_of_the_state_directory_is_recorded() {
    let world = World::with_snapshot();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains(".vellum"));
    world.run(&["snapshot", ".vellum"]).code(3).remarks("belongs to Vellum itself");
}

#[test]
fn ignored_files_are_left_out() {
    let world = World::new();
    world.write(".vellumignore", "*.log\n");
    world.write("a.log", "");
    world.write("a.txt", "");
    world.snapshot("first");
    let ran = world.run(&["ls", "HEAD"]).ok();
    assert_eq!(ran.lines(), [".vellumignore", "a.txt"]);
}

#[test]
fn tags_are_checked_before_the_work() {
    let world = World::with_snapshot();
    let before = world.json(&["info"])["snapshots"].clone();
    world.run(&["snapshot", "--tag", "first"]).code(3).remarks("exists already");
    world.run(&["snapshot", "--tag", "a b"]).code(3);
    assert_eq!(world.json(&["info"])["snapshots"], before);
}

#[test]
fn a_note_comes_from_standard_input() {
    let world = World::new();
    world.run_with_input(&["snapshot", "-m", "-"], "from input\nsecond line\n").ok();
    assert_eq!(world.json(&["show"])["snapshot"]["note"], "from input\nsecond line");
}

#[test]
fn what_cannot_be_read_is_reported_and_all_else_recorded() {
    // Root reads everything; a file that cannot be opened at all is hard to come by. Nobody is not root.
    let world = World::with_snapshot();
    world.write("secret", "x");
    world.chmod("secret", 0);
    let ran = world.run(&["snapshot"]);
    if fs::read(world.tree().join("secret")).is_ok() {
        ran.ok();
    } else {
        ran.code(1).remarks("secret");
    }
}

#[test]
fn json() {
    let world = World::new();
    world.write("a", "content");
    let value = world.json(&["snapshot", "-m", "note", "--tag", "t"]);
    assert_eq!(value["snapshot"]["note"], "note");
    assert_eq!(value["snapshot"]["author"], "tester");
    assert_eq!(value["snapshot"]["tags"][0], "t");
    assert_eq!(value["snapshot"]["files"], 1);
    assert_eq!(value["unchanged"], false);
}

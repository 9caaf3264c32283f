//! `vellum pin`, `unpin` and `pins`, of snapshots. Those of content are tested with `hydrate`.

use crate::world::World;

/// A world with two snapshots, of which the first has the tag `first`.
fn world_with_two() -> World {
    let world = World::with_snapshot();
    world.write("b.txt", "second");
    world.snapshot("second");
    world.run(&["tag", "remove", "second"]).ok();
    world.write("b.txt", "third");
    world.run(&["snapshot"]).ok();
    world
}

#[test]
fn a_pinned_snapshot_stays_until_it_is_unpinned() {
    let world = world_with_two();
    world.run(&["pins"]).ok().remarks("nothing is pinned");
    world.run(&["pin", "HEAD~1", "--reason", "audit of May"]).ok().says("Pinned ");
    for words in [&["pins"][..], &["pin", "list"]] {
        world.run(words).ok().says("snapshot ").says(": audit of May");
    }
    world.run(&["forget", "HEAD~1"]).code(2).remarks("it is pinned by").remarks("audit of May");
    world.run(&["forget", "--keep-last", "1", "--dry-run"]).ok().says("pinned by").says("audit of May");
    world.run(&["forget", "--keep-last", "1", "--ignore-tags"]).ok().remarks("kept 2 snapshots, forgot 1");
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
    world.run(&["cat", "HEAD~1", "b.txt"]).ok().says("second");
    // Said again it is no error; said otherwise it is.
    world.run(&["pin", "HEAD~1", "--reason", "audit of May"]).ok();
    world
        .run(&["pin", "HEAD~1", "--until", "1d"])
        .code(2)
        .remarks("is pinned already")
        .remarks("vellum unpin");
    world.run(&["unpin", "HEAD~1"]).ok().says("Unpinned").says("audit of May");
    world.run(&["unpin", "HEAD~1"]).code(3).remarks("there is no pin 'HEAD~1'");
    world.run(&["forget", "HEAD~1"]).ok();
}

#[test]
fn pins_are_listed_for_programs() {
    let world = world_with_two();
    let made = world.json(&["pin", "first", "HEAD", "--until", "30d"]);
    assert_eq!(made["snapshots"].as_array().unwrap().len(), 2);
    let listed = world.json(&["pins"]);
    let first = listed["snapshots"].as_array().unwrap().iter().find(|it| it["until"].is_string()).unwrap();
    assert_eq!(first["reason"], "");
    assert!(first["author"].is_string() && first["host"].is_string() && first["created"].is_string());
    assert_eq!(listed["pins"].as_array().unwrap().len(), 0);
    let id = first["snapshot"].as_str().unwrap();
    let removed = world.json(&["unpin", id]);
    assert_eq!(removed["snapshots"][0], id);
    assert_eq!(world.json(&["pins"])["snapshots"].as_array().unwrap().len(), 1);
}

#[test]
fn a_word_that_is_a_snapshot_and_a_path_is_refused() {
    let world = world_with_two();
    world.write("first", "a file with the name of a tag");
    world
        .run(&["pin", "first"])
        .code(3)
        .remarks("'first' is a snapshot and a path")
        .remarks("'./first' is the path, '--snapshot first' is the snapshot");
    world.run(&["pin", "first", "--reason", "x"]).code(3).remarks("a snapshot and a path");
    world.run(&["pins"]).ok().remarks("nothing is pinned");
    // The store is a directory, and the directory is checked out: all content is here.
    world.run(&["pin", "./first"]).code(3).remarks("all its files are here");
    world.run(&["pin", "a.txt"]).code(3).remarks("all its files are here");
    world.run(&["pin", "a.txt", "HEAD"]).code(3).remarks("'a.txt' is a path, and others are snapshots");
    world.run(&["pin", "./a.txt", "--until", "3d"]).code(3).remarks("are for pins of snapshots");
    world.run(&["pin", "--snapshot", "first"]).ok();
    world.run(&["unpin", "--snapshot", "first"]).ok();
    world.run(&["pin", "nothing"]).code(2).remarks("nothing");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let world = world_with_two();
    for until in ["yesterday", "soon", "2001-01-01"] {
        world
            .run(&["pin", "HEAD", "--until", until])
            .code(3)
            .remarks("a moment in the future is typed like 30d");
    }
    world.run(&["pin", "HEAD", "--reason", "\x1b[2J"]).code(3).remarks("control characters");
    world.run(&["pin", "HEAD", "--reason", &"x".repeat(5000)]).code(3).remarks("the reason of a pin");
    world.run(&["pin", "HEAD", "--name", "x", "--reason", "y"]).code(3);
    world.run(&["pins"]).ok().remarks("nothing is pinned");
}

#[test]
fn pins_go_with_pushes_and_pulls() {
    let world = world_with_two();
    let store = world.path("remote").display().to_string();
    world.run(&["remote", "add", "origin", &store]).ok();
    world.run(&["pin", "HEAD~1", "--reason", "audit"]).ok();
    world.run(&["push"]).ok();
    let clone = world.path("clone").display().to_string();
    world.run_beside("", &["clone", "--plain", &store, &clone]).ok();
    world.run_beside("clone", &["pins"]).ok().says(": audit");
    world.run_beside("clone", &["unpin", "HEAD~1"]).ok();
    world.run(&["pull"]).ok();
    world.run(&["pins"]).ok().remarks("nothing is pinned");
}

//! `vellum note`, `snapshot --set` and `history --where`

use crate::world::World;

#[test]
fn a_note_changes_afterwards_and_the_id_does_not() {
    let world = World::with_snapshot();
    let id = world.json(&["show"])["snapshot"]["id"].clone();
    world.run(&["note", "HEAD", "-m", "what it was\nin two lines"]).ok().says("what it was");
    let shown = world.json(&["show"]);
    assert_eq!(
        (&shown["snapshot"]["id"], &shown["snapshot"]["note"]),
        (&id, &"what it was\nin two lines".into())
    );
    world.run(&["show"]).ok().says("in two lines").says("Noted").says("@");
    world.run(&["history"]).ok().says("what it was");
    world.run(&["history", "--grep", "TWO LINES"]).ok().says("what it was");
    world.run(&["note", "HEAD", "-m", ""]).ok();
    assert_eq!(world.json(&["show"])["snapshot"]["note"], "");
    world.run(&["verify", "--all"]).ok();
    world.run(&["gc", "run"]).ok();
}

#[test]
fn properties_are_set_found_and_taken_away() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    world.run(&["snapshot", "--set", "build=41", "--set", "result=ok"]).ok();
    world.write("a.txt", "third");
    world.run(&["snapshot", "--set", "build=42"]).ok();
    let found = |condition: &[&str]| world.run(&[&["history"], condition].concat()).ok().out.lines().count();
    assert_eq!((found(&[]), found(&["--where", "build=41"]), found(&["--where", "build=4"])), (3, 1, 0));
    assert_eq!(found(&["--where", "result=ok", "--where", "build=42"]), 0);
    world.run(&["note", "HEAD~1", "--set", "build=40", "--unset", "result"]).ok().says("build  40");
    assert_eq!((found(&["--where", "build=40"]), found(&["--where", "result=ok"])), (1, 0));
    let json = world.json(&["history", "--where", "build=40"]);
    assert_eq!(json["snapshots"][0]["properties"], serde_json::json!({ "build": "40" }));
    let note = world.json(&["note", "HEAD~1"]);
    assert_eq!(
        (&note["properties"][0]["name"], &note["properties"][0]["value"]),
        (&"build".into(), &"40".into())
    );
    assert!(note["properties"][0]["author"].is_string() && note["note"].is_null());
    world.run(&["show", "HEAD~1"]).ok().says("build=40");
}

#[test]
fn what_could_deceive_is_refused_before_anything_is_done() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    world.run(&["snapshot", "--set", "a b=1"]).code(3).remarks("no name of a property");
    world.run(&["snapshot", "--set", "nothing"]).code(3).remarks("NAME=VALUE");
    world.run(&["snapshot", "--set", "a=\x1b[2J"]).code(3).remarks("control characters");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1, "no snapshot was made");
    world.run(&["note", "HEAD", "-m", "\x1b[2J"]).code(3).remarks("the note has control characters");
    world.run(&["note", "HEAD", "--set", "a=1", "--unset", "a"]).code(3).remarks("set and unset");
    world.run(&["note", "HEAD", "-m", &"x".repeat(17_000)]).code(3).remarks("longer than 16 KiB");
    world.run(&["note", "nothing", "-m", "x"]).code(2);
}

#[test]
fn notes_go_with_pushes_and_pulls_and_the_later_one_counts() {
    let world = World::with_snapshot();
    let store = world.path("remote").display().to_string();
    world.run(&["remote", "add", "origin", &store]).ok();
    world.run(&["note", "HEAD", "-m", "from here", "--set", "a=1"]).ok();
    world.run(&["push"]).ok();
    let clone = world.path("clone").display().to_string();
    world.run_beside("", &["clone", "--plain", &store, &clone]).ok();
    world.run_beside("clone", &["show"]).ok().says("from here").says("a=1");
    world.run_beside("clone", &["note", "HEAD", "-m", "from there", "--set", "b=2"]).ok();
    world.run(&["note", "HEAD", "--unset", "a"]).ok();
    world.run(&["pull"]).ok();
    let shown = world.json(&["show"]);
    assert_eq!(shown["snapshot"]["note"], "from there");
    assert_eq!(shown["snapshot"]["properties"], serde_json::json!({ "b": "2" }));
}

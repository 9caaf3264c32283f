//! `vellum history`

use crate::merge::diverged;
use crate::world::World;

fn three() -> World {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.snapshot("second");
    world.write("dir/b.txt", "third");
    world.snapshot("third");
    world
}

#[test]
fn the_newest_comes_first() {
    let world = three();
    let ran = world.run(&["history"]).ok();
    let lines = ran.lines();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].ends_with("third [HEAD, third]"), "{lines:?}");
    assert!(lines[2].ends_with("first [first]"), "{lines:?}");
    assert!(lines[1].contains("1 changed"), "{lines:?}");
}

#[test]
fn lists_are_limited_and_say_so() {
    let world = three();
    let ran = world.run(&["history", "-n", "1"]).ok().remarks("older ones");
    assert_eq!(ran.lines().len(), 1);
    assert_eq!(world.run(&["history", "-n", "0"]).ok().lines().len(), 3);
}

#[test]
fn filters() {
    let world = three();
    let shown = |args: &[&str]| {
        let ran = world.run(&[&["history"], args].concat()).ok();
        ran.lines()
            .iter()
            .filter_map(|line| line.split(" [").next()?.rsplit(' ').next())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(&["--grep", "SECO"]), ["second"]);
    assert_eq!(shown(&["--tag", "t*"]), ["third"]);
    assert_eq!(shown(&["--path", "a.txt"]), ["second", "first"]);
    assert_eq!(shown(&["--path", "dir"]), ["third", "first"]);
    assert_eq!(shown(&["--path", "nothing"]), Vec::<String>::new());
}

#[test]
fn the_history_of_a_path_tells_when_a_directory_above_it_was_renamed() {
    let world = three();
    std::fs::rename(world.tree().join("dir"), world.tree().join("moved")).unwrap();
    world.snapshot("fourth");
    for (path, count) in [("dir/b.txt", 3), ("moved/b.txt", 1), ("a.txt", 2)] {
        let ran = world.run(&["history", "--path", path]).ok();
        assert_eq!(ran.lines().len(), count, "{path}: {:?}", ran.lines());
    }
}

#[test]
fn forks_are_drawn() {
    let world = three();
    world.run(&["restore", "first"]).ok();
    world.write("a.txt", "other line");
    world.snapshot("other");
    let ran = world.run(&["history", "--graph", "--all"]).ok();
    let marks: Vec<String> =
        ran.lines().iter().map(|line| line.chars().take(3).collect::<String>().trim_end().into()).collect();
    assert_eq!(marks, ["●", "│ ●", "│ ●", "├─╯", "●"]);
    let ran = world.run(&["history"]).ok();
    assert_eq!(ran.lines().len(), 2);
}

#[test]
fn without_snapshots_it_says_how_to_make_one() {
    World::new().run(&["history"]).ok().remarks("vellum snapshot");
}

#[test]
fn json() {
    let world = three();
    let value = world.json(&["history", "-n", "2"]);
    assert_eq!(value["more"], true);
    assert_eq!(value["snapshots"][0]["note"], "third");
    assert_eq!(value["snapshots"][0]["heads"][0], "main");
    assert_eq!(value["snapshots"][0]["parents"][0], value["snapshots"][1]["id"]);
}

#[test]
fn after_a_restore_the_newer_snapshots_are_told_of_and_latest_goes_back() {
    let world = World::with_snapshot();
    for name in ["second", "third"] {
        world.write("a.txt", name);
        world.snapshot(name);
    }
    let ran = world.run(&["history"]).ok();
    assert!(!ran.err.contains("newer"), "{}", ran.err);
    world.run(&["restore", "first"]).ok();
    world.run(&["history"]).ok().remarks("2 newer: vellum history --all");
    world.run(&["history", "--all"]).ok().says("second").says("third");
    world.run(&["restore", "latest"]).ok();
    assert_eq!(world.read("a.txt"), "third");
    let ran = world.run(&["history"]).ok();
    assert!(!ran.err.contains("newer"), "{}", ran.err);
}

#[test]
fn reasons_stand_outside_of_the_quotes() {
    let world = World::with_snapshot();
    let ran = world.run(&["restore", "HEAD~1"]).code(2);
    let ran = ran.remarks("'HEAD~1' names no snapshot: the history is not that long");
    assert!(ran.err.contains("hint"), "{}", ran.err);
    world
        .run(&["cat", "@{1970-01-01}", "a.txt"])
        .code(2)
        .remarks("'@{1970-01-01}' names no snapshot: no snapshot is that old");
    World::new().run(&["ls", "HEAD"]).code(2).remarks("'HEAD' names no snapshot: none was made yet");
}

#[test]
fn ranges_and_ancestors_of_others_are_listed() {
    let world = three();
    let notes = |range: &str| {
        let found = world.json(&["history", range]);
        let notes = found["snapshots"].as_array().unwrap().iter();
        notes.map(|snapshot| snapshot["note"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(notes("second"), ["second", "first"]);
    assert_eq!(notes("@^"), ["second", "first"]);
    assert_eq!(notes("first..third"), ["third", "second"]);
    assert_eq!(notes("second.."), ["third"]);
    assert_eq!(notes("..second"), ["second", "first"]);
    assert_eq!(notes("third..first"), Vec::<String>::new());
    world.run(&["history", ".."]).code(3).remarks("a range is typed like");
    world.run(&["history", "frist.."]).code(2).remarks("called 'frist'");
}

#[test]
fn each_parent_of_a_merge_has_a_name() {
    let world = diverged(false);
    world.snapshot("here");
    world.run(&["merge", "fork"]).ok();
    let merge = world.json(&["history", "-n", "1"])["snapshots"][0].clone();
    let named = |text: &str| world.json(&["show", text])["snapshot"]["id"].clone();
    assert_eq!(named("@^"), merge["parents"][0]);
    assert_eq!(named("HEAD^2"), merge["parents"][1]);
    assert_eq!(named("HEAD^0"), merge["id"]);
    assert_eq!(named("HEAD^2^"), named("first"));
    assert_eq!(named("@~2"), named("first"));
    world.run(&["show", "HEAD^3"]).code(2).remarks("it has no such parent");
}

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
    world.run(&["history", "--all", "-n", "1"]).ok().remarks("older ones: vellum history --all -n 5");
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
fn latest_is_what_was_left_with_unsaved_work_and_no_line_of_another_directory() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.snapshot("second");
    world.write("a.txt", "unsaved");
    world.run(&["restore", "first"]).ok();
    world.run_with_input(&["snapshot", "--from-stdin", "later"], "of another line").ok();
    world.run(&["restore", "latest"]).ok();
    assert_eq!(world.read("a.txt"), "unsaved");
    world.run(&["restore", "latest"]).ok().says("nothing had to change");
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

/// The versions of a file: what each snapshot did, its path there, and the note.
fn versions(world: &World, args: &[&str]) -> Vec<(String, String, String)> {
    let json = world.json(&[&["history"], args].concat());
    let versions = json["files"][0]["versions"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    versions
        .map(|version| (text(&version["change"]), text(&version["path"]), text(&version["snapshot"]["note"])))
        .collect()
}

fn version(change: &str, path: &str, note: &str) -> (String, String, String) {
    (change.into(), path.into(), note.into())
}

#[test]
fn the_versions_of_a_file_are_listed_across_renames() {
    let world = three();
    world.chmod("dir/b.txt", 0o755);
    world.snapshot("mode");
    std::fs::rename(world.tree().join("dir"), world.tree().join("moved")).unwrap();
    world.snapshot("moved");
    std::fs::rename(world.tree().join("moved/b.txt"), world.tree().join("c.txt")).unwrap();
    world.write("c.txt", "new content");
    world.snapshot("renamed");
    world.write("a.txt", "not this one");
    world.snapshot("other");
    let all = [
        version("renamed", "c.txt", "renamed"),
        version("renamed", "moved/b.txt", "moved"),
        version("modified", "dir/b.txt", "mode"),
        version("modified", "dir/b.txt", "third"),
        version("added", "dir/b.txt", "first"),
    ];
    assert_eq!(versions(&world, &["c.txt"]), all);
    // A path that the file had: the snapshot after which it has another one, and those before that.
    assert_eq!(versions(&world, &["--", "dir/b.txt"]), all[1..]);
    assert_eq!(versions(&world, &["third..moved", "dir/b.txt"]), all[1..3]);
    assert_eq!(versions(&world, &["mode", "dir/b.txt"]), all[2..]);
    assert_eq!(versions(&world, &["c.txt", "--grep", "third"]), all[3..4]);
    let lines = world.run(&["history", "c.txt"]).ok();
    assert!(lines.lines()[0].contains("renamed from moved/b.txt, content"), "{}", lines.out);
    assert!(lines.lines()[0].contains("11 B") && lines.lines()[0].ends_with("renamed [renamed]"));
    assert!(lines.lines()[2].contains(" mode "), "{}", lines.out);
    world.run(&["history", "dir/b.txt"]).ok().says("renamed to moved/b.txt");
    let page = world.run(&["history", "-n", "2", "c.txt"]).ok();
    assert_eq!(page.lines().len(), 2);
    page.remarks("older ones: vellum history -n 10 c.txt");
}

#[test]
fn deleted_and_replaced_files_have_a_history() {
    let world = World::with_snapshot();
    world.remove("a.txt");
    world.snapshot("gone");
    world.write("a.txt", "again");
    world.snapshot("back");
    // As editors save.
    world.write("new", "saved");
    std::fs::rename(world.tree().join("new"), world.tree().join("a.txt")).unwrap();
    world.snapshot("saved");
    // A time alone is no version.
    let later = std::fs::File::options().write(true).open(world.tree().join("a.txt")).unwrap();
    later.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    world.snapshot("touched");
    let all = [
        version("modified", "a.txt", "saved"),
        version("added", "a.txt", "back"),
        version("deleted", "a.txt", "gone"),
        version("added", "a.txt", "first"),
    ];
    assert_eq!(versions(&world, &["a.txt"]), all);
    let two = world.run(&["history", "a.txt", "dir"]).ok();
    assert!(two.lines().contains(&"a.txt:") && two.lines().contains(&"dir:"), "{}", two.out);
    world.write("dir/deep/d", "d");
    world.snapshot("inside");
    assert_eq!(versions(&world, &["dir"])[0], version("modified", "dir", "inside"));
    assert_eq!(versions(&world, &["dir"]).len(), 2);
}

#[test]
fn a_merge_is_no_version_of_what_one_side_had() {
    let world = diverged(false);
    world.snapshot("here");
    world.run(&["merge", "fork"]).ok();
    // What one side alone has changed; of a.txt, both have.
    let changed_there = world.json(&["diff", "first", "HEAD^2"]);
    let paths = changed_there["changes"].as_array().unwrap().iter().filter(|it| it["kind"] == "file");
    let path = paths.filter_map(|it| it["path"].as_str()).find(|path| *path != "a.txt").unwrap();
    assert!(!versions(&world, &[path]).is_empty());
    assert_eq!(versions(&world, &["a.txt"]).len(), 4);
    let merge = world.json(&["show", "HEAD"])["snapshot"]["id"].clone();
    let json = world.json(&["history", path]);
    let listed = json["files"][0]["versions"].as_array().unwrap();
    assert!(listed.iter().all(|version| version["snapshot"]["id"] != merge), "{json}");
}

#[test]
fn words_that_name_nothing_or_two_things_are_refused() {
    let world = three();
    world
        .run(&["history", "a.tx"])
        .code(2)
        .remarks("'a.tx' is not in any snapshot")
        .remarks("did you mean 'a.txt'");
    world.run(&["history", "thrid"]).code(2).remarks("no snapshot is called that").remarks("'third'");
    world.run(&["history", "HEAD~9"]).code(2).remarks("the history is not that long");
    world.run(&["history", "third", "nothing"]).code(2).remarks("'nothing' is not in any snapshot of third");
    world.write("third", "a file");
    world.run(&["history", "third"]).code(3).remarks("is a snapshot and a path").remarks("./third");
    world.run(&["history", "third~0"]).ok();
    world.run(&["history", "./third"]).code(2).remarks("is not in any snapshot");
    world.run(&["history", "first", "--all"]).code(3).remarks("--all");
    world.run(&["history", "a.txt", "--graph"]).code(3).remarks("--graph");
    world.run(&["history", "a.txt", "--all"]).ok();
    world.run(&["history", "../outside"]).code(3).remarks("outside of the worktree");
}

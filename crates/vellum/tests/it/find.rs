//! `vellum find`

use std::fs;

use crate::world::World;

/// Five snapshots: `a.txt` always, `docs/plan.pdf` from the second to the third and in the fifth, `docs` renamed in the fourth.
fn world_with_names() -> World {
    let world = World::with_snapshot();
    let snapshot = |tag: &str| drop(world.run(&["snapshot", "-q", "--tag", tag, "-m", tag]).ok());
    world.write("docs/plan.pdf", "one");
    snapshot("second");
    world.write("docs/plan.pdf", "two!");
    world.write("docs/Other.PDF", "x");
    snapshot("third");
    world.remove("docs/plan.pdf");
    fs::rename(world.tree().join("docs"), world.tree().join("papers")).unwrap();
    snapshot("fourth");
    world.write("papers/plan.pdf", "three");
    snapshot("fifth");
    world
}

fn short(world: &World, tag: &str) -> String {
    let id = world.json(&["show", tag])["snapshot"]["id"].as_str().unwrap().to_owned();
    id[..8].to_owned()
}

#[test]
fn a_name_is_found_with_its_first_and_last_snapshot() {
    let world = world_with_names();
    let ran = world.run(&["find", "plan.pdf"]).ok();
    let lines = ran.lines();
    assert_eq!(lines.len(), 2, "{}", ran.out);
    assert!(lines[0].starts_with(&short(&world, "second")) && lines[0].contains(&short(&world, "third")));
    assert!(lines[0].ends_with("docs/plan.pdf") && lines[0].contains("4 B"));
    assert!(lines[1].starts_with(&short(&world, "fifth")) && lines[1].contains("still there"));
    assert!(lines[1].ends_with("papers/plan.pdf"));
    // The directory was renamed, its file was not touched: it is there all the time, at its last path.
    let other = world.run(&["find", "-i", "*.pdf", "--max-size", "1"]).ok();
    assert_eq!(other.lines().len(), 1);
    other.says("papers/Other.PDF").says("still there").says(&short(&world, "third"));
}

#[test]
fn searches_are_narrowed_by_path_kind_size_time_and_range() {
    let world = world_with_names();
    let count = |args: &[&str], code: i32| world.run(&[&["find"], args].concat()).code(code).lines().len();
    assert_eq!(count(&["docs/*.pdf"], 0), 1);
    assert_eq!(count(&["/papers/plan.pdf"], 0), 1);
    assert_eq!(count(&["/plan.pdf"], 1), 0);
    assert_eq!(count(&["docs", "--type", "directory"], 0), 1);
    assert_eq!(count(&["papers", "--type", "directory"], 0), 1);
    assert_eq!(count(&["papers", "--type", "file"], 1), 0);
    assert_eq!(count(&["plan.pdf", "--deleted"], 0), 1);
    assert_eq!(count(&["plan.pdf", "--min-size", "5"], 0), 1);
    assert_eq!(count(&["plan.pdf", "--newer", "1 hour ago"], 0), 2);
    assert_eq!(count(&["plan.pdf", "--newer", "2999-01-01"], 1), 0);
    assert_eq!(count(&["plan.pdf", "--in", "first..second"], 0), 1);
    assert_eq!(count(&["plan.pdf", "--in", "third..fourth", "--deleted"], 0), 1);
    assert_eq!(count(&["plan.pdf", "--in", "fourth..fourth"], 1), 0);
    assert_eq!(count(&["plan.pdf", "--in", "fourth.."], 0), 1);
    world.run(&["find", "plan.pdf", "--in", "first"]).code(3).remarks("v1..v2");
    world.run(&["find", "plan.pdf", "--newer", "soon"]).code(3).remarks("2 weeks ago");
    world.run(&["find", "plan.pdf", "--in", "nothing..first"]).code(2).remarks("'nothing'");
    world.run(&["find", "nothing"]).code(1).remarks("no snapshot has such a name");
}

#[test]
fn other_worktrees_are_searched_on_request() {
    let world = world_with_names();
    world.run(&["restore", "first"]).ok();
    assert_eq!(world.run(&["find", "plan.pdf"]).code(1).lines().len(), 0);
    let json = world.json(&["find", "plan.pdf", "--all"]);
    let found = json["found"].as_array().unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[0]["path"], "docs/plan.pdf");
    assert_eq!(found[0]["kind"], "file");
    assert_eq!(found[0]["size"], 4);
    assert_eq!(found[0]["current"], false);
    assert_eq!(found[1]["current"], true);
    assert_eq!(found[1]["worktree"], "main");
}

#[test]
fn a_branch_goes_on_with_what_it_began_with() {
    let world = World::with_snapshot();
    world.write("kept.txt", "k");
    world.write("gone.txt", "g");
    world.snapshot("second");
    let side = world.path("side");
    world.run(&["fork", "side", "--to", side.to_str().unwrap()]).ok();
    fs::remove_file(side.join("gone.txt")).unwrap();
    fs::write(side.join("new.txt"), "n").unwrap();
    world.run_beside("side", &["snapshot", "-q", "--tag", "apart"]).ok();
    let found = |dir: &str, args: &[&str]| {
        let ran = world.run_beside(dir, &[&["--json", "find"], args].concat());
        let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let periods = json["found"].as_array().unwrap().iter();
        let moment =
            |period: &serde_json::Value, end: &str| period[end]["id"].as_str().unwrap()[..8].to_owned();
        periods
            .map(|period| (moment(period, "first"), moment(period, "last"), period["current"] == true))
            .collect::<Vec<_>>()
    };
    let [second, apart] = ["second", "apart"].map(|tag| short(&world, tag));
    // What the other worktree recorded before the fork is the history of this one.
    assert_eq!(found("side", &["kept.txt"]), [(second.clone(), apart.clone(), true)]);
    assert_eq!(found("side", &["gone.txt"]), [(second.clone(), second.clone(), false)]);
    assert_eq!(found("tree", &["gone.txt"]), [(second.clone(), second.clone(), true)]);
    // Of several branches that have a name, one is enough.
    assert_eq!(found("tree", &["kept.txt", "--all"]).len(), 1);

    // A merge goes on with what either side had.
    world.write("own.txt", "o");
    world.snapshot("third");
    world.run(&["merge", "side"]).ok();
    let merged = world.json(&["show", "HEAD"])["snapshot"]["id"].as_str().unwrap()[..8].to_owned();
    assert_eq!(found("tree", &["new.txt"]), [(apart, merged.clone(), true)]);
    assert_eq!(found("tree", &["kept.txt"]), [(second.clone(), merged.clone(), true)]);
    assert_eq!(found("tree", &["own.txt"]), [(short(&world, "third"), merged, true)]);
    let gone = found("tree", &["gone.txt"]);
    assert!(gone.iter().all(|(first, _, is_current)| *first == second && !is_current), "{gone:?}");

    // The name of a worktree is no part of its line.
    world.run(&["worktree", "rename", "main", "trunk"]).ok();
    world.remove("own.txt");
    world.run(&["snapshot", "-q"]).ok();
    let own = found("tree", &["own.txt"]);
    assert!(own.len() == 1 && !own[0].2, "{own:?}");
}

/// The contents of a name: when each was first and last there, by tags, and its size.
fn contents(world: &World, args: &[&str]) -> Vec<(String, String, u64)> {
    let json = world.json(&[&["find", "--content-changed"], args].concat());
    let tag = |moment: &serde_json::Value| {
        let id = moment["id"].as_str().unwrap();
        world.json(&["show", id])["snapshot"]["tags"][0].as_str().unwrap().to_owned()
    };
    let periods = json["found"].as_array().unwrap().iter();
    periods
        .map(|found| (tag(&found["first"]), tag(&found["last"]), found["size"].as_u64().unwrap()))
        .collect()
}

#[test]
fn each_content_of_a_name_has_a_line_of_its_own() {
    let world = world_with_names();
    let version = |first: &str, last: &str, size| (first.to_owned(), last.to_owned(), size);
    // What came in the fifth snapshot, after a break, replaced nothing.
    let versions = [version("second", "second", 3), version("third", "third", 4)];
    assert_eq!(contents(&world, &["plan.pdf"]), versions);
    let ran = world.run(&["find", "plan.pdf", "--content-changed"]).ok();
    assert_eq!(ran.lines().len(), 2, "{}", ran.out);
    assert_eq!(contents(&world, &["plan.pdf", "--min-size", "4"]), versions[1..]);
    let unchanged = world.run(&["find", "Other.PDF", "--content-changed"]).code(1);
    unchanged.remarks("no name like this changed its content");
    world.run(&["find", "plan.pdf", "--content-changed", "--in", "third..fifth"]).code(1);
    world.run(&["find", "docs", "--content-changed"]).code(1);
    world.run(&["find", "plan.pdf", "--content-changed", "--deleted"]).code(3);
}

#[test]
fn only_another_content_counts_as_a_change_of_it() {
    let world = World::with_snapshot();
    let snapshot = |tag: &str| drop(world.run(&["snapshot", "-q", "--tag", tag]).ok());
    world.write("file", "one");
    world.write("linked", "one");
    fs::hard_link(world.tree().join("linked"), world.tree().join("other name")).unwrap();
    snapshot("a");
    // Another mode, and another file of the same content.
    world.chmod("file", 0o600);
    snapshot("b");
    fs::write(world.tree().join("new"), "one").unwrap();
    fs::rename(world.tree().join("new"), world.tree().join("file")).unwrap();
    snapshot("c");
    world.run(&["find", "file", "--content-changed"]).code(1);
    // Of a file with several names the content of each changes.
    world.write("linked", "two two");
    snapshot("d");
    let versions = [("a", "c", 3), ("d", "d", 7)].map(|(a, b, size)| (a.to_owned(), b.to_owned(), size));
    assert_eq!(contents(&world, &["linked"]), versions);
    assert_eq!(contents(&world, &["other name"]), versions);
    // A symbolic link in place of a file.
    fs::remove_file(world.tree().join("file")).unwrap();
    std::os::unix::fs::symlink("one", world.tree().join("file")).unwrap();
    snapshot("e");
    assert_eq!(contents(&world, &["file"]).len(), 2);
}

#[test]
fn a_merge_goes_on_with_the_content_of_either_side() {
    let world = World::with_snapshot();
    world.write("file", "one");
    world.snapshot("begin");
    let side = world.path("side");
    world.run(&["fork", "side", "--to", side.to_str().unwrap()]).ok();
    fs::write(side.join("file"), "changed").unwrap();
    world.run_beside("side", &["snapshot", "-q", "--tag", "apart"]).ok();
    world.write("own.txt", "o");
    world.snapshot("own");
    world.run(&["merge", "side"]).ok();
    world.run(&["tag", "add", "merged"]).ok();
    let versions = contents(&world, &["file"]);
    let of_the_side = ("apart".to_owned(), "merged".to_owned(), 7);
    assert!(versions.contains(&of_the_side), "{versions:?}");
    assert!(versions.iter().all(|version| *version == of_the_side || version.0 == "begin"), "{versions:?}");
}

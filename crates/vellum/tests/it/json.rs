//! docs/json.md names every field that any command prints.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::world::World;

fn fields(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                into.insert(name.clone());
                fields(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let world = World::empty();
    let mut found = BTreeSet::new();
    let mut run = |args: &[&str]| fields(&world.json(args), &mut found);
    run(&["init"]);
    world.write("a", "content");
    world.write("d/b", "content");
    std::os::unix::fs::symlink("a", world.tree().join("link")).unwrap();
    run(&["snapshot", "--tag", "t"]);
    world.write("d/b", "other");
    std::fs::rename(world.tree().join("a"), world.tree().join("c")).unwrap();
    let all: &[&[&str]] = &[
        &["status"],
        &["diff"],
        &["history"],
        &["show"],
        &["show", "t", "a"],
        &["ls", "t", "-R"],
        &["export", "t", "--tar", "../t.tar"],
        &["restore", "t", "-n"],
        &["restore", "t"],
        &["fork", "side", "--to", "../side"],
        &["try", "--discard", "--", "true"],
        &["try", "--keep", "tried", "--", "touch", "tried"],
        &["try", "--", "touch", "tried"],
        &["try", "--list"],
        &["worktree", "list"],
        &["worktree", "show"],
        &["worktree", "path"],
        &["worktree", "create", "empty"],
        &["worktree", "rename", "side", "other"],
        &["worktree", "remove", "other"],
        &["tag", "list"],
        &["verify", "--all"],
        &["operations"],
        &["operations", "--verify"],
        &["usage"],
        &["gc", "plan"],
        &["gc", "run"],
        &["info"],
        &["key", "add", "--recovery"],
        &["key", "list"],
        &["device", "add", "laptop"],
        &["device", "list"],
        &["device", "revoke", "laptop"],
        &["mdtest", ".", "--files", "1", "--runs", "1"],
        &["objbench", "memory://fields", "--small-objects", "1", "--big-object-size", "10", "--runs", "1"],
        &["bench", "--big-file-size", "10K", "--small-file-count", "1", "--runs", "1"],
    ];
    for args in all {
        run(args);
    }
    let text = include_str!("../../../../docs/json.md");
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let missing: Vec<_> = found.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/json.md does not describe {missing:?}");
    assert!(found.len() > 80, "{found:?}");
}

#[test]
fn directories_are_not_escaped() {
    let world = World::with_snapshot();
    let run_json = |dir: &str, args: &[&str]| {
        let ran = world.run_beside(dir, &[&["--json"], args].concat()).ok();
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    let copy = world.path("a \\ tab\t");
    let shown = copy.to_str().unwrap();
    let cloned = run_json(
        "tree",
        &["clone", "--name", "copy", "--plain", world.tree().join(".vellum/store").to_str().unwrap(), shown],
    );
    assert_eq!(cloned["directory"], shown);
    let relocated = run_json("a \\ tab\t", &["worktree", "relocate"]);
    assert_eq!(relocated["directory"], shown);
    let other = world.path("other\t");
    assert!(std::process::Command::new("cp").arg("-a").args([&copy, &other]).status().unwrap().success());
    let adopted = run_json("other\t", &["worktree", "adopt", "--as", "other"]);
    assert_eq!(adopted["directory"], other.to_str().unwrap());
}

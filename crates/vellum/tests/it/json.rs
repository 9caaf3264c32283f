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
        &["try", "--copy", "--discard", "--", "true"],
        &["try", "--list"],
        &["worktree", "list"],
        &["worktree", "show"],
        &["worktree", "path"],
        &["worktree", "create", "empty"],
        &["worktree", "rename", "side", "other"],
        &["worktree", "remove", "other"],
        &["tag", "list"],
        &["verify", "--all"],
        &["doctor"],
        &["operations"],
        &["operations", "--verify"],
        &["undo", "-n"],
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

#[test]
fn each_failure_is_an_object_with_a_code() {
    let world = World::with_snapshot();
    world.run(&["pin", "HEAD", "--reason", "audit"]).ok();
    let cases: &[(&[&str], &str, i32)] = &[
        (&["show", "nothing"], "not_found", 2),
        (&["show", "HEAD~99"], "not_found", 2),
        (&["pin", "HEAD", "--reason", "another"], "conflict", 2),
        (&["worktree", "create", "main"], "conflict", 2),
        (&["prune"], "unsupported", 2),
        (&["forget"], "usage", 3),
        (&["show", "--frobnicate"], "usage", 3),
        (&["frobnicate"], "usage", 3),
        (&[], "usage", 3),
    ];
    for (args, code, exit) in cases {
        for form in ["--json", "--json=lines"] {
            let ran = world.run(&[&[form], *args].concat()).code(*exit);
            let printed: Value = serde_json::from_str(&ran.out).unwrap();
            assert_eq!(printed["error"]["code"], *code, "{args:?}: {printed}");
            assert_eq!(printed["error"]["kind"], *code);
            let message = printed["error"]["message"].as_str().unwrap();
            assert!(!message.is_empty() && !message.starts_with("error"), "{args:?}: {message}");
            assert_eq!(ran.out.lines().count() == 1, form == "--json=lines", "{args:?}");
        }
    }
    // What comes after '--' is another program's.
    assert_eq!(world.run(&["--frobnicate", "--", "--json"]).code(3).out, "");
}

#[test]
fn lines_tell_the_progress_before_the_result() {
    let world = World::empty();
    let run = |args: &[&str]| {
        let ran = world.run(&[&["--json=lines"], args].concat()).ok();
        let lines = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.collect::<Vec<_>>()
    };
    let store = world.path("other-store");
    std::fs::create_dir(&store).unwrap();
    let store = store.to_str().unwrap();
    assert_eq!(run(&["init", "--plain"]).len(), 1);
    world.write("a", "content");
    world.write("d/b", "content");
    let recorded = run(&["snapshot", "--tag", "t"]);
    world.write("a", "more content");
    let all = [
        ("snapshot", recorded),
        ("snapshot --dry-run", run(&["snapshot", "--dry-run"])),
        ("restore", run(&["restore", "t"])),
        ("verify", run(&["verify"])),
        ("gc run", run(&["gc", "run"])),
        ("hydrate", run(&["hydrate", "d"])),
        ("sync", run(&["sync", "d/", "../copy"])),
        ("remote add", run(&["remote", "add", "origin", store])),
        ("push", run(&["push", "origin"])),
        ("pull", run(&["pull", "origin"])),
        ("clone", run(&["clone", "--name", "clone", "--plain", store, "../clone"])),
    ];
    let text = include_str!("../../../../docs/json.md");
    for (command, lines) in all {
        let result = lines.last().unwrap();
        assert_eq!(
            (&result["version"], &result["progress"]),
            (&1.into(), &Value::Null),
            "{command}: {result}"
        );
        let progress = &lines[..lines.len() - 1];
        assert!(
            command == "remote add" || command == "hydrate" || progress.len() >= 2,
            "{command}: {lines:?}"
        );
        let mut found = BTreeSet::new();
        for line in progress {
            assert!(line["progress"]["items"].is_u64() && line["progress"]["task"].is_string(), "{line}");
            fields(line, &mut found);
        }
        let mentioned = |name: &String| text.contains(name.as_str());
        assert!(found.iter().all(mentioned), "{command}: {found:?}");
    }
    let quiet = world.run(&["--json=lines", "--quiet", "verify"]).ok();
    assert_eq!(quiet.out.lines().count(), 1);
}

//! `vellum sync --two-way`

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::mounting::wait_until;
use crate::other_host::describe_tree;
use crate::world::{World, noise};

/// Two directories that agree on two files.
fn agreed() -> World {
    let world = World::empty();
    world.write("a/one", "1\n");
    world.write("b/two", "2\n");
    world.run_at_home(&["sync", "--two-way", "a", "b"]).ok().says("from 'a' to 'b'").says("from 'b' to 'a'");
    assert_eq!((world.read("b/one"), world.read("a/two")), ("1\n".into(), "2\n".into()));
    world
}

/// Writes a file as if that had been so many seconds ago.
fn write_aged(world: &World, path: &str, content: &str, age: u64) {
    world.write(path, content);
    let file = fs::File::options().write(true).open(world.tree().join(path)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
}

fn json(world: &World, args: &[&str]) -> Value {
    let ran = world.run_at_home(&[&["--json", "sync", "--two-way"], args].concat());
    assert!(matches!(ran.code, 0 | 1), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn changes_and_deletions_go_both_ways() {
    let world = agreed();
    world.write("a/new", "new\n");
    world.remove("b/one");
    world.write("b/two", "second\n");
    world.run_at_home(&["sync", "--two-way", "a", "b/"]).ok();
    assert_eq!((world.read("b/new"), world.read("a/two")), ("new\n".into(), "second\n".into()));
    assert!(!world.has("a/one"));
    world.run_at_home(&["sync", "--two-way", "a", "b"]).ok().says("Nothing to do: 2 entries agree");
}

#[test]
fn a_dry_run_says_what_will_be_done_and_does_nothing() {
    let world = agreed();
    write_aged(&world, "a/one", "older\n", 100);
    write_aged(&world, "b/one", "newer\n", 10);
    world.write("a/new", "new\n");
    let dry = world.run_at_home(&["sync", "-n", "--two-way", "a", "b"]).ok();
    dry.says("Dry run: from 'a' to 'b'").says("write   new").says("rename  one -> one.conflict-");
    assert!(!world.has("b/new"));
    let dry = json(&world, &["-n", "a", "b"]);
    let done = json(&world, &["--itemize", "a", "b"]);
    for key in ["renamed", "conflicts"] {
        assert_eq!(dry[key], done[key]);
    }
    for side in ["to_first", "to_second"] {
        assert_eq!(dry[side]["steps"], done[side]["steps"]);
    }
    assert_eq!(done["conflicts"][0]["path"], "one");
    assert_eq!(done["conflicts"].as_array().unwrap().len(), 1, "one is told, and once: {done}");
    assert_eq!(done["conflicts"][0]["ending"], "both");
    assert_eq!(done["renamed"][0]["side"], "first");
    let kept = done["renamed"][0]["new"]["path"].as_str().unwrap();
    assert_eq!(world.read(&format!("b/{kept}")), "older\n");
    assert_eq!(world.read("a/one"), "newer\n");
    let again = json(&world, &["a", "b"]);
    assert_eq!(again["conflicts"], Value::Array(Vec::new()));
}

#[test]
fn a_renamed_version_is_told_with_its_whole_side() {
    let world = World::empty();
    world.write("a to b/one", "1\n");
    world.run_at_home(&["sync", "--two-way", "a to b", "c"]).ok();
    write_aged(&world, "a to b/one", "older\n", 100);
    write_aged(&world, "c/one", "newer\n", 10);
    world.run_at_home(&["sync", "-n", "--two-way", "a to b", "c"]).ok().says("(in 'a to b')");
}

#[test]
fn the_loser_of_a_rule_is_in_the_trash_of_its_side() {
    let world = agreed();
    write_aged(&world, "a/one", "older\n", 100);
    write_aged(&world, "b/one", "newer\n", 10);
    world.run_at_home(&["sync", "--two-way", "--conflict", "newer", "a", "b"]).ok();
    assert_eq!(world.read("a/one"), "newer\n");
    let dated = fs::read_dir(world.tree().join("a/.vellum-trash")).unwrap().next().unwrap().unwrap();
    assert_eq!(fs::read_to_string(dated.path().join("one")).unwrap(), "older\n");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let world = agreed();
    let refused = |args: &[&str], why: &str| {
        world.run_at_home(&[&["sync", "--two-way"], args].concat()).code(3).remarks(why);
    };
    refused(&["--conflict", "ask", "a", "b"], "asks on a terminal");
    refused(&["--timeout", "9", "a", "b"], "both ends are on this one");
    refused(&["--in-place", "a", "b"], "no meaning with --two-way");
    refused(&["--chmod", "go-w", "a", "b"], "no meaning with --two-way");
    refused(&["a", "b", "c"], "two sides");
    refused(&["a", "a/inner"], "overlap");
    fs::create_dir(world.tree().join("volume")).unwrap();
    world.run_in("volume", &["init", "--plain"]).ok();
    world.write("volume/f", "1");
    world.run_in("volume", &["snapshot", "--tag", "t"]).ok();
    refused(&["a", "volume@t:/"], "never changes");
    world.run_at_home(&["sync", "--two-way", "a", "volume:/"]).ok();
    assert_eq!(world.read("volume/one"), "1\n");
    assert!(!world.has("a/.vellum"));
}

#[test]
fn a_damaged_archive_and_an_empty_side_delete_nothing() {
    let world = agreed();
    let state = world.path("state/vellum/sync");
    let names = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    let archive = names.into_iter().find(|path| path.extension().is_some_and(|e| e == "archive")).unwrap();
    for name in ["one", "two"] {
        world.remove(&format!("a/{name}"));
    }
    let ran = world.run_at_home(&["sync", "--two-way", "a", "b"]).code(2);
    ran.remarks("would be deleted").remarks("--force-delete");
    assert!(world.has("b/one"));
    fs::write(&archive, "nothing that anybody wrote").unwrap();
    world.run_at_home(&["sync", "--two-way", "a", "b"]).ok().remarks("is ignored, since");
    assert!(world.has("a/one") && world.has("b/one"));
    fs::remove_dir_all(world.tree().join("a")).unwrap();
    world.run_at_home(&["sync", "--two-way", "a", "b"]).code(2);
    assert!(world.has("b/one") && !world.has("a"));
}

#[test]
fn the_archive_is_nobody_elses_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let world = agreed();
    for entry in fs::read_dir(world.path("state/vellum/sync")).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o077, 0);
    }
}

#[test]
fn what_is_no_deletion_goes_on_where_too_much_would_be_deleted() {
    let world = World::empty();
    for number in 0..20 {
        world.write(&format!("a/f{number}"), "content");
    }
    world.run_at_home(&["sync", "--two-way", "a", "b"]).ok();
    (1..20).for_each(|number| world.remove(&format!("b/f{number}")));
    world.write("a/ours", "1");
    world.write("b/theirs", "2");
    let sync = |options: &[&str]| world.run_at_home(&[&["sync", "--two-way", "a", "b"], options].concat());
    sync(&[]).code(1).remarks("more than half, so nothing was deleted").remarks("--force-delete");
    assert_eq!((world.read("b/ours"), world.read("a/theirs")), ("1".into(), "2".into()));
    assert!(world.has("a/f19") && !world.has("b/f19"), "nothing came back");
    // Nothing else is left to do.
    sync(&[]).code(2).remarks("nothing was done");
    sync(&["--force-delete"]).ok();
    assert!(world.has("a/f0") && !world.has("a/f19"));
}

#[test]
fn a_stopped_run_prints_one_json_object() {
    let world = World::empty();
    for n in 0..8 {
        world.write(&format!("a/f{n}"), noise(400_000));
    }
    fs::create_dir(world.tree().join("b")).unwrap();
    let words = ["sync", "--json", "-a", "--two-way", "--bwlimit=1M", "-j1", "a", "b"];
    let child = world.command_at_home(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a file is there", || world.tree().join("b/f0").exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed["error"].is_object() || printed["error"].is_string(), "{printed}");
    world.run_at_home(&["sync", "-a", "--two-way", "a", "b"]).ok();
    assert_eq!(describe_tree(&world.tree().join("a")), describe_tree(&world.tree().join("b")));
}

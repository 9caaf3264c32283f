//! What holds for all commands: exit codes, `-C`, `--json` of failures, closed pipes.

use std::process::{Command, Stdio};

use crate::world::{World, run};

#[test]
fn no_volume_here_says_what_to_do() {
    let world = World::empty();
    let ran = world.run(&["status"]).code(2).remarks("no volume here").remarks("hint: 'vellum init'");
    assert_eq!(ran.out, "");
}

#[test]
fn bad_usage_ends_with_3() {
    let world = World::empty();
    world.run(&["bogus"]).code(3);
    world.run(&["status", "--bogus"]).code(3);
    world.run(&[]).code(3);
    world.run(&["-q", "-v", "status"]).code(3);
    world.run(&["--version"]).ok().says("vellum 0.1.0");
    world.run(&["help"]).ok().says("Usage: vellum");
}

#[test]
fn words_of_other_tools_are_answered_by_what_vellum_has_for_them() {
    let world = World::empty();
    let tree = world.tree();
    for args in [&["log"][..], &["log", "--oneline", "main"], &["-C", tree.to_str().unwrap(), "log"]] {
        let ran = world.run(args).code(2);
        assert_eq!(ran.err, "error: Vellum has no 'log': 'vellum history' lists snapshots\n");
        assert_eq!(ran.out, "");
    }
    world.run(&["stash", "pop"]).code(2).remarks("'vellum restore HEAD~1'");
    // A typing error is none, nor is a word in the place of a part of a command.
    world.run(&["snapshto"]).code(3).remarks("snapshot");
    world.run(&["tag", "log"]).code(3).remarks("unrecognized subcommand 'log'");
}

#[test]
fn a_directory_can_be_named() {
    let world = World::with_snapshot();
    let tree = world.tree();
    let tree = tree.to_str().unwrap();
    run(std::path::Path::new("/"), &["-C", tree, "status"], Stdio::null()).ok();
    run(std::path::Path::new("/"), &["ls", "HEAD", "-C", tree], Stdio::null()).ok().says("a.txt");
    run(std::path::Path::new("/"), &["-C", "/nonexistent", "status"], Stdio::null())
        .code(2)
        .remarks("/nonexistent");
}

#[test]
fn failures_are_json_too() {
    let world = World::with_snapshot();
    let ran = world.run(&["show", "nothing", "--json"]).code(2);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["version"], 1);
    assert_eq!(value["error"]["kind"], "not_found");
    assert!(value["error"]["message"].as_str().unwrap().contains("nothing"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let world = World::with_snapshot();
    world.write("big", vec![b'x'; 1 << 20]);
    world.snapshot("big");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["cat", "HEAD", "big"])
        .current_dir(world.tree())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]));
}

#[test]
fn a_note_may_be_given_by_the_word_of_other_tools() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    world.run(&["snapshot", "--mesage", "typed"]).code(3).remarks("'--message'");
    world.run(&["snapshot", "--message", "as git has it"]).ok();
    world.run(&["history"]).ok().says("as git has it");
}

#[test]
fn an_option_that_does_not_exist_is_not_taken_for_a_file() {
    let world = World::with_snapshot();
    let ran = world.run(&["snapshot", "--omit", "x"]).code(3).remarks("unexpected argument '--omit'");
    assert!(!ran.err.contains("as a value"), "{}", ran.err);
    world.run(&["snapshot", "--tags", "x"]).code(3).remarks("'--tag'");
}

#[test]
fn a_misspelt_name_is_answered_by_the_nearest() {
    let world = World::with_snapshot();
    world.run(&["fork", "experiment", "--to", "../experiment"]).ok();
    let hint = |args: &[&str], code: i32, nearest: &str| {
        let ran = world.run(args).code(code);
        let expected = format!("hint: did you mean '{nearest}'?");
        assert!(ran.err.contains(&expected), "vellum {}: {}", ran.args, ran.err);
    };
    hint(&["show", "frist"], 2, "first");
    hint(&["restore", "experimnet~1"], 2, "experiment");
    hint(&["diff", "frist"], 3, "first");
    hint(&["diff", "first..frist"], 2, "first");
    hint(&["tag", "remove", "firts"], 2, "first");
    hint(&["worktree", "rename", "experiments", "other"], 2, "experiment");
    hint(&["cat", "first", "a.tx"], 2, "a.txt");
    hint(&["cat", "first", "dri/b.txt"], 2, "dir/b.txt");
    hint(&["restore", "HEAD", "dir/dep"], 2, "dir/deep");
    hint(&["diff", "a.tx"], 3, "a.txt");
    let error = world.run(&["show", "frist", "--json"]).code(2);
    let error: serde_json::Value = serde_json::from_str(&error.out).unwrap();
    assert!(error["error"]["hint"].as_str().unwrap().starts_with("did you mean 'first'?"));
    assert_eq!(error["error"]["kind"], "not_found");
    let far = world.run(&["show", "something-else"]).code(2);
    assert!(!far.err.contains("did you mean"), "{}", far.err);
    world.run(&["snapshot", "--taag", "x"]).code(3).remarks("'--tag'");
}

//! `vellum restore --plan`, `--run` and `--interactive` in a mount.

use std::fs;
use std::process::Stdio;

use crate::mounting::Mount;
use crate::terminal::Terminal;
use crate::world::{Ran, World, run};

/// What somebody does between plan and run, as a script.
const CHANGES: [(&str, &str); 8] = [
    ("'a.txt' has changed", "echo edited again > a.txt"),
    ("'new/more' has changed", "echo more > new/more"),
    ("'dir/b.txt' has changed", "echo back > dir/b.txt"),
    ("'a.txt' has changed", "chmod 600 a.txt"),
    ("'a.txt' has changed", "setfattr -n user.mark -v yes a.txt"),
    ("'dir/deep/c.bin' has changed", "rm dir/deep/c.bin"),
    ("'new/file' has changed", "mv new/file new/other"),
    ("stands on another snapshot", "BINARY snapshot -q"),
];

fn vellum(mount: &Mount<'_>, args: &[&str]) -> Ran {
    run(&mount.path, args, Stdio::null())
}

fn read(mount: &Mount<'_>, name: &str) -> String {
    fs::read_to_string(mount.at(name)).unwrap()
}

/// Edits what the snapshot has, and draws a plan that takes that back.
fn plan(mount: &Mount<'_>, args: &[&str]) -> String {
    mount.sh("echo edited > a.txt; mkdir -p new; echo new > new/file; rm -f dir/b.txt");
    let plan = mount.world.path("plan").display().to_string();
    let ran = vellum(mount, &[&["restore"], args, &["--plan", &plan]].concat()).ok();
    ran.says("replace  a.txt").remarks("--run");
    assert_eq!(read(mount, "a.txt"), "edited\n");
    plan
}

#[test]
fn a_plan_is_carried_out_as_it_was_shown() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    let file = plan(&mount, &["first"]);
    let text = vellum(&mount, &["restore", "first", "--plan", &file]).ok();
    text.says("delete   new/file")
        .says("delete   new")
        .says("create   dir/b.txt")
        .remarks("snapshotted first");
    let json = vellum(&mount, &["restore", "first", "--plan", &file, "--json"]).ok().out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["steps"][1], serde_json::json!({ "action": "create", "path": "dir/b.txt" }));
    let unsaved: Vec<_> = json["unsaved"].as_array().unwrap().iter().map(|name| &name["path"]).collect();
    assert_eq!(unsaved, ["a.txt", "new", "new/file"]);
    let ran = vellum(&mount, &["restore", "--run", &file]).ok();
    ran.says("Restored").remarks("undoes it");
    assert_eq!(read(&mount, "a.txt"), "one\ntwo\nthree\n");
    assert!(!mount.at("new").exists() && mount.at("dir/b.txt").exists());
    vellum(&mount, &["status"]).ok();
    vellum(&mount, &["diff", "first", "--name-status"]).ok();
    // It was carried out, and is a plan for another state now.
    vellum(&mount, &["restore", "--run", &file]).code(2).remarks("'a.txt' has changed");
    // What went is in a snapshot.
    vellum(&mount, &["restore", "latest"]).ok();
    assert_eq!(read(&mount, "new/file"), "new\n");
}

#[test]
fn what_has_changed_since_is_named_and_nothing_is_done() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    for (message, change) in CHANGES {
        vellum(&mount, &["restore", "first"]).ok();
        let file = plan(&mount, &["first"]);
        mount.sh(&change.replace("BINARY", env!("CARGO_BIN_EXE_vellum")));
        let before = mount.sh("ls -lR; cat a.txt");
        vellum(&mount, &["restore", "--run", &file]).code(2).remarks("is not carried out").remarks(message);
        assert_eq!(mount.sh("ls -lR; cat a.txt"), before, "{message}");
    }
}

#[test]
fn a_plan_of_paths_is_one_of_these_alone() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    let file = plan(&mount, &["first", "a.txt", "dir", "--discard"]);
    mount.sh("echo more > new/file; echo other > beside; touch dir/../new/x");
    let snapshots = || world.run(&["history", "--all"]).ok().lines().len();
    let before = snapshots();
    vellum(&mount, &["restore", "--run", &file]).ok();
    assert_eq!(read(&mount, "a.txt"), "one\ntwo\nthree\n");
    assert!(mount.at("dir/b.txt").exists());
    assert_eq!((read(&mount, "new/file"), read(&mount, "beside")), ("more\n".into(), "other\n".into()));
    assert_eq!(snapshots(), before, "--discard is a part of the plan");
    // Something in a directory that is named counts.
    let file = plan(&mount, &["first", "a.txt", "dir"]);
    mount.sh("echo x > dir/deep/made");
    vellum(&mount, &["restore", "--run", &file]).code(2).remarks("'dir/deep/made' has changed");
}

#[test]
fn a_directory_that_was_moved_is_planned_by_its_paths() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    mount.sh("mv dir moved; ln a.txt second");
    let file = world.path("plan").display().to_string();
    let steps = "create   dir\ncreate   dir/deep\ncreate   dir/deep/c.bin\n";
    let ran = vellum(&mount, &["restore", "first", "dir/deep/c.bin", "--plan", &file]).ok();
    assert_eq!(ran.out, steps);
    let ran = vellum(&mount, &["restore", "first", "dir/deep/c.bin", "--dry-run"]).code(1);
    assert_eq!(ran.out, steps);
    vellum(&mount, &["restore", "--run", &file]).ok();
    assert!(mount.at("dir/deep/c.bin").exists() && !mount.at("dir/b.txt").exists());
    vellum(&mount, &["restore", "first", "nowhere", "--plan", &file])
        .code(2)
        .remarks("neither in the worktree");
    let ran = vellum(&mount, &["restore", "first", "--plan", &file]).ok();
    ran.says("delete   moved/b.txt").says("create   dir/b.txt").says("delete   second");
    vellum(&mount, &["restore", "--run", &file]).ok();
    vellum(&mount, &["diff", "first", "--name-status"]).ok();
}

#[test]
fn plans_that_are_not_as_they_were_written_or_of_another_worktree_are_refused() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    let file = plan(&mount, &["first"]);
    let text = fs::read_to_string(&file).unwrap();
    let bad = world.path("bad").display().to_string();
    for (content, reason) in [
        (text.replace("\"discard\": false", "\"discard\": true"), "was changed after it was written"),
        (text.replace("new/file", "../file"), "which no plan can have"),
        (text[..text.len() / 2].to_owned(), "not a whole one"),
    ] {
        fs::write(&bad, content).unwrap();
        vellum(&mount, &["restore", "--run", &bad]).code(3).remarks(reason);
    }
    world.run(&["restore", "--run", &file]).code(3).remarks("it is for the worktree 'm'");
    world.run(&["restore", "first", "--plan", &bad]).ok();
    vellum(&mount, &["restore", "--run", &bad]).code(3).remarks("it is for the worktree 'main'");
    vellum(&mount, &["restore", "first", "--plan", "within"]).code(3).remarks("is in the worktree");
    vellum(&mount, &["restore", "first", "--only", "dir", "--plan", &bad]).code(3);
    assert_eq!(read(&mount, "a.txt"), "edited\n");
}

#[test]
fn a_plan_is_carried_out_beside_a_program_that_writes_to_other_files() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    let file = plan(&mount, &["first", "a.txt"]);
    // Writes until its file is taken away.
    let script = "touch go; while test -e go; do echo x >> log; done";
    let mut writer =
        std::process::Command::new("sh").args(["-c", script]).current_dir(&mount.path).spawn().unwrap();
    crate::mounting::wait_until("it writes", || mount.at("log").exists());
    let ran = vellum(&mount, &["restore", "--run", &file]);
    mount.sh("rm go");
    writer.wait().unwrap();
    ran.ok();
    assert_eq!(read(&mount, "a.txt"), "one\ntwo\nthree\n");
}

/// Forty numbered lines, of which some were edited: far enough apart to be changes of their own.
fn lines(edited: &[usize]) -> String {
    let line = |n: usize| if edited.contains(&n) { format!("edited {n}\n") } else { format!("line {n}\n") };
    (0..40).map(line).collect()
}

fn choose(mount: &Mount<'_>, args: &[&str], answers: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut terminal = Terminal::start_in(mount.world, &mount.path, &[&["restore", "-i"], args].concat());
    for (question, keys) in answers {
        terminal.wait(question, 1);
        terminal.press(&format!("{keys}\n"));
    }
    terminal.end()
}

/// A world with a text of several changes.
fn world() -> World {
    let world = World::new();
    world.write("text", lines(&[]));
    world.write("binary", [0, 1, 2]);
    world.write("gone", "gone");
    world.snapshot("first");
    world
}

const EDIT: &str = "printf '\\000\\011\\011' > binary; rm gone; echo new > new; chmod 640 text";

#[test]
fn changes_are_chosen_one_by_one() {
    let world = world();
    let mount = Mount::new(&world, "m");
    mount.sh(EDIT);
    fs::write(mount.at("text"), lines(&[3, 20, 35])).unwrap();
    let answers = [
        ("Restore 'binary'", "y"),
        ("Bring back 'gone'", "y"),
        ("Delete 'new'", "n"),
        ("(1/3) Restore this change", "n"),
        ("(2/3) Restore this change", "y"),
        ("(3/3) Restore this change", "n"),
    ];
    let (code, text) = choose(&mount, &["first"], &answers);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(read(&mount, "text"), lines(&[3, 35]));
    assert_eq!(mount.sh("stat -c %a text"), "640\n", "what was not chosen stays");
    assert_eq!(fs::read(mount.at("binary")).unwrap(), [0, 1, 2]);
    assert_eq!((read(&mount, "gone"), mount.at("new").exists()), ("gone".into(), true));
    assert_eq!(mount.sh("ls -A | wc -l"), "4\n", "nothing is left beside the files");
    // What went is in a snapshot.
    vellum(&mount, &["restore", "latest"]).ok();
    assert_eq!(read(&mount, "text"), lines(&[3, 20, 35]));
    // All of a file is the file as it was.
    let (code, text) = choose(&mount, &["first", "text"], &[("(1/3)", "a")]);
    assert_eq!(code, Some(0), "{text}");
    vellum(&mount, &["diff", "first", "--name-status", "text"]).ok();
}

#[test]
fn nothing_is_restored_if_what_was_chosen_changes_while_the_question_stands() {
    let world = world();
    let mount = Mount::new(&world, "m");
    mount.sh(EDIT);
    fs::write(mount.at("text"), lines(&[3, 20, 35])).unwrap();
    for (edit, named) in [("echo meanwhile > text", "'text'"), ("echo meanwhile > binary", "'binary'")] {
        fs::write(mount.at("text"), lines(&[3, 20, 35])).unwrap();
        let mut terminal =
            Terminal::start_in(&world, &mount.path, &["restore", "-i", "first", "text", "binary"]);
        terminal.wait("Restore 'binary'", 1);
        terminal.press("y\n");
        terminal.wait("(1/3)", 1);
        terminal.press("y\n");
        terminal.wait("(2/3)", 1);
        mount.sh(edit);
        mount.sh("echo elsewhere > beside");
        let before = mount.sh("cat text binary");
        terminal.press("q\n");
        let (code, text) = terminal.end();
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(&format!("{named} has changed since its changes were shown")), "{text}");
        assert_eq!(mount.sh("cat text binary"), before);
    }
    // What was not chosen may change.
    let mut terminal = Terminal::start_in(&world, &mount.path, &["restore", "-i", "first", "gone", "text"]);
    terminal.wait("Bring back 'gone'", 1);
    terminal.press("y\n");
    mount.sh("echo elsewhere again > beside");
    terminal.wait("Restore this change", 1);
    terminal.press("q\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(read(&mount, "gone"), "gone");
    vellum(&mount, &["restore", "-i", "first"]).code(3).remarks("asks on a terminal");
}

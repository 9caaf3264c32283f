//! Snapshots in lines of their own: of standard input, of what a command writes, of directories that are no worktrees.

use std::fs;
use std::process::{Command, Stdio};

use crate::mounting::Mount;
use crate::world::{World, noise, run};

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn standard_input_becomes_a_file_in_a_line_of_its_own() {
    let world = World::with_snapshot();
    world.write("a.txt", "unsaved");
    let large = noise(5 << 20);
    fs::write(world.path("input"), &large).unwrap();
    let input = || fs::File::open(world.path("input")).unwrap();
    let args = ["snapshot", "-q", "-m", "dump", "--tag", "dump", "--set", "of=db", "--from-stdin", "all.sql"];
    let id = run(&world.tree(), &args, input()).ok().out.trim().to_owned();
    let ran = world.run(&["cat", &id, "all.sql"]).ok();
    assert!(ran.raw == large);
    assert_eq!(world.run(&["ls", &id]).ok().lines(), ["all.sql"]);
    // The directory and its history are as they were.
    world.run(&["status"]).code(1).says("M  a.txt");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
    let line = format!("{}:all.sql", host());
    let json = world.json(&["show", "dump"]);
    assert_eq!(json["snapshot"]["worktree"], line.as_str());
    // The next one comes after it, and stores nothing of what is there.
    let json: serde_json::Value = serde_json::from_str(
        &run(&world.tree(), &["--json", "snapshot", "--from-stdin", "all.sql"], input()).ok().out,
    )
    .unwrap();
    assert_eq!(json["snapshot"]["parents"][0], id.as_str());
    assert!(json["snapshot"]["stored"].as_u64().unwrap() < 10_000, "{json}");
    // The line names its newest snapshot.
    assert_eq!(world.json(&["show", &line])["snapshot"]["id"], json["snapshot"]["id"]);
    assert_eq!(world.run(&["history", &line]).ok().lines().len(), 2);
    world.run(&["history", "--all"]).ok().says(&line);
    let exported = world.path("exported");
    world.run(&["export", &line, "--to", exported.to_str().unwrap()]).ok();
    assert!(fs::read(exported.join("all.sql")).unwrap() == large);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn small_and_empty_input_is_recorded() {
    let world = World::with_snapshot();
    for text in ["", "a line\n"] {
        world
            .run_with_input(&["snapshot", "--from-stdin", "x", "--tag", &format!("t{}", text.len())], text)
            .ok();
        assert_eq!(world.run(&["cat", &format!("t{}", text.len()), "x"]).ok().out, text);
    }
}

#[test]
fn what_a_command_writes_is_recorded_only_if_it_succeeds() {
    let world = World::with_snapshot();
    let from = ["snapshot", "-q", "--from-stdin", "out", "--stdin-from-command", "--"];
    let id = world.run(&[&from[..], &["sh", "-c", "echo one; echo two"]].concat()).ok().out;
    assert_eq!(world.run(&["cat", id.trim(), "out"]).ok().out, "one\ntwo\n");
    world
        .run(&[&from[..], &["sh", "-c", "echo half; exit 3"]].concat())
        .code(2)
        .remarks("sh failed (exit status: 3): no snapshot was made");
    world.run(&[&from[..], &["no-such-program"]].concat()).code(2).remarks("no-such-program");
    assert_eq!(world.json(&["info"])["snapshots"], 2);
}

#[test]
fn input_and_words_that_do_not_fit_are_refused() {
    let world = World::with_snapshot();
    world.run(&["snapshot", "--from-stdin", "a/b"]).code(3).remarks("'a/b' is not the name of a file");
    world
        .run(&["snapshot", "--from-stdin", "x", "a.txt"])
        .code(3)
        .remarks("records standard input, and no PATHs");
    world.run(&["snapshot", "--from-stdin", "x", "-m", "-"]).code(3).remarks("cannot be both");
    world.run(&["snapshot", "--from-stdin", "x", "--stdin-from-command"]).code(3).remarks("none was typed");
    world.run(&["snapshot", "--stdin-from-command", "--", "ls"]).code(3);
    world.run(&["snapshot", "--from-stdin", "x", "--exclude", "y"]).code(3);
    world.run(&["snapshot", "--from-stdin", "x", "--tag", "first"]).code(3).remarks("exists already");
    assert_eq!(world.json(&["info"])["snapshots"], 1);
}

#[test]
fn a_stream_that_is_stopped_leaves_no_snapshot() {
    let world = World::with_snapshot();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["snapshot", "--from-stdin", "endless"])
        .current_dir(world.tree())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Long enough that it waits for more: without this, the signal could come before its handler is there.
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, &noise(9 << 20)).unwrap();
    crate::mounting::kill(i32::try_from(child.id()).unwrap(), "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(input);
    assert_eq!(world.json(&["info"])["snapshots"], 1);
}

#[test]
fn other_directories_have_lines_of_their_own_and_share_content() {
    let world = World::with_snapshot();
    let content = noise(1 << 20);
    for dir in ["one", "two"] {
        fs::create_dir(world.path(dir)).unwrap();
        fs::write(world.path(dir).join("data"), &content).unwrap();
        fs::write(world.path(dir).join("x.log"), dir).unwrap();
    }
    let snapshot = |dir: &str, options: &[&str]| {
        let dir = world.path(dir);
        let args = [&["--json", "snapshot", "--root", dir.to_str().unwrap()], options].concat();
        let ran = world.run(&args).ok();
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["snapshot"].clone()
    };
    let one = snapshot("one", &["--exclude", "*.log", "-m", "first of one"]);
    let two = snapshot("two", &[]);
    assert!(one["stored"].as_u64().unwrap() > 1 << 20, "{one}");
    assert!(two["stored"].as_u64().unwrap() < 10_000, "{two}");
    let line = |dir: &str| format!("{}:{}", host(), world.path(dir).display());
    assert_eq!(one["worktree"], line("one").as_str());
    assert_eq!(world.run(&["ls", &line("one")]).ok().lines(), ["data"]);
    // Nothing was written there, and nothing is changed here.
    assert_eq!(fs::read_dir(world.path("one")).unwrap().count(), 2);
    world.run(&["status"]).ok();
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
    // Only what changed is read again, and the file keeps its number.
    fs::write(world.path("one").join("more"), "more").unwrap();
    let next = snapshot("one", &["--exclude", "*.log"]);
    assert_eq!(next["parents"][0], one["id"]);
    assert_eq!(next["changed"], 2, "{next}");
    world
        .run(&["diff", "--name-status", &format!("{}~1", next["id"].as_str().unwrap()), &line("one")])
        .says("more");
    // A dry run and a look for changes are of the same line.
    let dir = world.path("one");
    let root = dir.to_str().unwrap();
    world.run(&["snapshot", "--root", root, "-n"]).ok().says("x.log");
    world
        .run(&["snapshot", "--root", root, "--exclude", "*.log", "--if-changed"])
        .ok()
        .says("Nothing changed");
    world.run(&["snapshot", "--root", root, "data"]).code(3).remarks("records a whole directory");
    world.run(&["snapshot", "--root", "a.txt"]).code(3).remarks("is not a directory");
    world.run(&["snapshot", "--root", "nowhere"]).code(2);
    // Each line is judged by itself.
    world.run(&["forget", "--all", "--keep-last", "1"]).ok();
    let left = world.json(&["history", "--all"]);
    let left: Vec<_> =
        left["snapshots"].as_array().unwrap().iter().map(|it| it["worktree"].clone()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    world.run(&["forget", "--worktree", &line("one"), "--keep-last", "1", "-n"]).ok().says("newest");
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
    assert!(world.run(&["cat", &line("two"), "data"]).ok().raw == content);
}

#[test]
fn lines_are_made_from_a_mount_as_well() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    fs::create_dir(world.path("other")).unwrap();
    fs::write(world.path("other/f"), "of another directory").unwrap();
    let root = world.path("other");
    let ran = run(&mount.at(""), &["snapshot", "-q", "--root", root.to_str().unwrap()], Stdio::null()).ok();
    assert_eq!(world.run(&["cat", ran.out.trim(), "f"]).ok().out, "of another directory");
    fs::write(world.path("input"), "a stream").unwrap();
    let input = fs::File::open(world.path("input")).unwrap();
    let ran = run(&mount.at(""), &["snapshot", "-q", "--from-stdin", "s"], input).ok();
    assert_eq!(world.run(&["cat", ran.out.trim(), "s"]).ok().out, "a stream");
}

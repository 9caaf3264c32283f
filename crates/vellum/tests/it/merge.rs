//! `merge`, `conflicts` and `resolve`: in directories and in mounts, interrupted, and among devices.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::mounting::Mount;
use crate::world::{Ran, World, profile, run};

const MERGE_DOCUMENT: &str = include_str!("../../../../docs/merge.md");

pub fn run_at(dir: &Path, args: &[&str]) -> Ran {
    run(dir, args, Stdio::null())
}

/// All files of a directory with their content, the state directory left out.
pub fn files_in(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap() == ".vellum" {
                continue;
            }
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned());
            }
        }
    }
    found
}

/// A worktree and a fork of it, which both changed: with a conflict in `a.txt` if `conflicting`.
pub fn diverged(conflicting: bool) -> World {
    let world = World::with_snapshot();
    world.run(&["fork", "fork", "--to", "../fork"]).ok();
    let fork = world.path("fork");
    fs::write(fork.join("a.txt"), "one\ntwo\nTHREE\n").unwrap();
    fs::rename(fork.join("dir"), fork.join("moved")).unwrap();
    fs::write(fork.join("new.txt"), "of the fork\n").unwrap();
    run_at(&fork, &["snapshot", "-m", "fork"]).ok();
    world.write("a.txt", if conflicting { "one\ntwo\n3\n" } else { "ONE\ntwo\nthree\n" });
    world.write("dir/b.txt", "edited\n");
    world
}

fn last_snapshot(world: &World) -> serde_json::Value {
    world.json(&["history", "-n", "1"])["snapshots"][0].clone()
}

#[test]
fn what_both_sides_did_meets() {
    let world = diverged(false);
    world.snapshot("here");
    let dry = world.run(&["merge", "-n", "fork"]).ok();
    dry.remarks("would merge fork without conflicts");
    assert!(world.has("dir/b.txt"), "nothing was changed");
    world.run(&["merge", "fork", "-m", "both"]).ok().says("Merged fork").says("both");
    assert_eq!(world.read("a.txt"), "ONE\ntwo\nTHREE\n");
    assert_eq!(world.read("moved/b.txt"), "edited\n");
    assert_eq!(world.read("new.txt"), "of the fork\n");
    assert!(!world.has("dir"));
    assert_eq!(last_snapshot(&world)["parents"].as_array().unwrap().len(), 2);
    world.run(&["status"]).ok();
    world.run(&["merge", "fork"]).ok().remarks("nothing to merge");
    // The fork has nothing that the merge lacks: it moves there.
    let fork = world.path("fork");
    run_at(&fork, &["merge", "-n", "main"]).ok().remarks("would move to main");
    run_at(&fork, &["merge", "main"]).ok().says("Moved to");
    assert_eq!(files_in(&fork), files_in(&world.tree()));
    run_at(&fork, &["status"]).ok();
    run_at(&fork, &["merge", "--base", "HEAD", "first"]).ok().remarks("nothing to merge");
    world.run(&["verify", "--all"]).ok();
    let json = world.json(&["merge", "fork"]);
    assert_eq!((&json["outcome"], &json["conflicts"]), (&"up-to-date".into(), &serde_json::json!([])));
}

#[test]
fn a_conflict_waits_until_it_is_resolved() {
    let world = diverged(true);
    let ran = world.run(&["merge", "fork"]).code(1);
    ran.says("content        a.txt").remarks("1 conflict").remarks("what no snapshot held is in");
    assert!(world.read("a.txt").contains("<<<<<<< ") && world.read("a.txt").contains("THREE\n"));
    world.run(&["status"]).ok().remarks("a merge of fork is under way, with 1 conflict to resolve");
    world.run(&["conflicts"]).code(1).says("a.txt").remarks("merge of fork: 1 conflict to resolve");
    for command in [&["snapshot"][..], &["restore", "first"], &["merge", "first"], &["push"]] {
        let refused = world.run(command).code(2).remarks("a merge of fork is under way");
        refused.remarks("'vellum merge --continue' finishes it, 'vellum merge --abort' aborts it");
    }
    world.run(&["merge", "--continue"]).code(1).says("a.txt").remarks("1 file with conflict markers");
    world.run(&["resolve", "a.txt"]).code(3).remarks("still has conflict markers");
    world.run(&["resolve", "new.txt"]).code(3).remarks("'new.txt' has no conflict");
    world.write("a.txt", "one\ntwo\nboth\n");
    world.run(&["merge", "--continue"]).ok().says("Merged fork");
    assert_eq!(world.read("a.txt"), "one\ntwo\nboth\n");
    assert_eq!(last_snapshot(&world)["parents"].as_array().unwrap().len(), 2);
    assert!(!world.run(&["history"]).ok().out.contains("unfinished"));
    world.run(&["conflicts"]).ok().remarks("no merge is under way");
    world.run(&["merge", "--continue"]).code(2).remarks("no merge is under way");
    world.run(&["merge", "--abort"]).code(2).remarks("'vellum merge SNAP' begins one");
    world.run(&["status"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_side_is_chosen_for_a_file_or_for_all() {
    let world = diverged(true);
    world.snapshot("here");
    world.run(&["merge", "fork"]).code(1);
    world.run(&["resolve", "--theirs", "a.txt"]).ok().remarks("all conflicts are resolved");
    assert_eq!(world.read("a.txt"), "one\ntwo\nTHREE\n");
    world.run(&["resolve", "--ours", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\n3\n");
    let both = world.json(&["resolve", "--both", ".", "a.txt"]);
    assert_eq!(both["resolved"].as_array().unwrap().len(), 1, "{both}");
    let copies: Vec<_> =
        files_in(&world.tree()).into_keys().filter(|name| name.starts_with("a.txt.~")).collect();
    assert_eq!(copies.len(), 1, "{copies:?}");
    let listed = world.json(&["conflicts"]);
    assert_eq!(listed["conflicts"][0]["resolution"], "both");
    world.run(&["resolve", "--ours", "a.txt"]).ok();
    assert!(!world.has(&copies[0]));
    world.run(&["merge", "--continue"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\n3\n");
    assert_eq!(world.read("moved/b.txt"), "edited\n");
    let world = diverged(true);
    world.run(&["merge", "--theirs", "fork"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nTHREE\n");
    let world = diverged(true);
    world.run(&["merge", "--both", "fork"]).ok();
    assert_eq!(files_in(&world.tree()).into_keys().filter(|name| name.starts_with("a.txt")).count(), 2);
}

#[test]
fn an_abort_brings_back_what_was_there() {
    let world = diverged(true);
    world.write(".vellumignore", "*.log\n");
    world.write("build.log", "ignored\n");
    let before = files_in(&world.tree());
    let head = last_snapshot(&world)["id"].clone();
    let changes = world.json(&["status"])["changes"].clone();
    world.run(&["merge", "fork"]).code(1);
    assert!(!world.has("dir/b.txt"));
    world.run(&["merge", "--abort"]).ok().says("Aborted the merge of");
    assert_eq!(files_in(&world.tree()), before);
    assert_eq!(world.json(&["info"])["head"], head, "the changes are changes again");
    assert_eq!(world.json(&["status"])["changes"], changes);
    world.run(&["merge", "--continue"]).code(2);
}

#[test]
fn a_merge_that_was_killed_goes_on_or_is_taken_back() {
    for (number, delay) in [0, 0, 1, 1, 2, 3, 5, 8, 12].into_iter().enumerate() {
        let world = diverged(number % 3 == 2);
        for file in 0..40 {
            world.write(&format!("many/{file}"), format!("{file}\n"));
        }
        world.snapshot("many");
        let before = files_in(&world.tree());
        let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["merge", "fork"])
            .current_dir(world.tree())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From here on files change; before, nothing has happened.
        let note = world.tree().join(".vellum/merge.json");
        while !note.exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(delay));
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        let is_begun = world.json(&["status"]).get("merge").is_some();
        if is_begun && number % 2 == 0 {
            world.run(&["merge", "--abort"]).ok();
            assert_eq!(files_in(&world.tree()), before, "killed after {delay} ms");
        }
        let ran = world.run(&["merge", "--theirs", "fork"]);
        if world.json(&["status"]).get("merge").is_some() {
            // It was begun without --theirs.
            world.run(&["resolve", "--theirs", "a.txt"]).ok();
            world.run(&["merge", "--continue"]).ok();
        } else {
            assert!(ran.code <= 1, "{}", ran.err);
        }
        assert_eq!(world.read("moved/b.txt"), "edited\n");
        assert!(world.read("a.txt").ends_with("THREE\n"));
        assert!(world.has("many/39"));
        world.run(&["status"]).ok();
        world.run(&["verify", "--all"]).ok();
    }
}

#[test]
fn a_mount_is_merged_like_a_directory() {
    let world = diverged(true);
    world.run(&["snapshot"]).ok();
    let mount = Mount::new(&world, "work");
    let at = |args: &[&str]| run_at(&mount.path, args);
    fs::write(mount.at("a.txt"), "one\ntwo\nmount\n").unwrap();
    fs::write(mount.at("own.txt"), "of the mount\n").unwrap();
    let before = files_in(&mount.path);
    at(&["merge", "fork"]).code(1).says("content        a.txt");
    assert!(fs::read_to_string(mount.at("a.txt")).unwrap().contains("<<<<<<< "));
    assert_eq!(fs::read_to_string(mount.at("moved/b.txt")).unwrap(), "edited\n");
    at(&["status"]).remarks("a merge of fork is under way");
    at(&["snapshot"]).code(2).remarks("a merge of fork is under way");
    at(&["merge", "--abort"]).ok().says("Aborted the merge of");
    assert_eq!(files_in(&mount.path), before);
    at(&["merge", "fork"]).code(1);
    at(&["resolve", "--theirs", "a.txt"]).ok();
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\ntwo\nTHREE\n");
    at(&["merge", "--continue"]).ok().says("Merged fork");
    assert_eq!(fs::read_to_string(mount.at("own.txt")).unwrap(), "of the mount\n");
    assert_eq!(fs::read_to_string(mount.at("new.txt")).unwrap(), "of the fork\n");
    at(&["status"]).ok();
    let last =
        serde_json::from_str::<serde_json::Value>(&at(&["history", "-n", "1", "--json"]).ok().out).unwrap();
    assert_eq!(last["snapshots"][0]["parents"].as_array().unwrap().len(), 2);
    run_at(&world.path("fork"), &["merge", "work"]).ok().says("Moved to");
    assert_eq!(files_in(&world.path("fork")), files_in(&mount.path));
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn many_conflicts_in_a_mount_are_decided_at_once() {
    // JSON takes 4 bytes for each of a path: a request has more than 1 MiB.
    const FILES: usize = 1500;
    let name = |number: usize| format!("{}/{number}", "d".repeat(200));
    let world = World::empty();
    world.run(&["init", "--plain"]).ok();
    let write = |dir: &Path, text: &str| {
        fs::create_dir_all(dir.join("d".repeat(200))).unwrap();
        (0..FILES).for_each(|number| fs::write(dir.join(name(number)), text).unwrap());
    };
    write(&world.tree(), "base\n");
    world.snapshot("base");
    world.run(&["fork", "fork", "--to", "../fork"]).ok();
    let fork = world.path("fork");
    write(&fork, "theirs\n");
    run_at(&fork, &["snapshot"]).ok();
    let mount = Mount::new(&world, "work");
    write(&mount.path, "ours\n");
    run_at(&mount.path, &["merge", "fork"]).code(1).remarks("1,500 conflicts");
    run_at(&mount.path, &["resolve", "--theirs", "."]).ok().remarks("all conflicts are resolved");
    assert_eq!(fs::read_to_string(mount.at(&name(FILES - 1))).unwrap(), "theirs\n");
    run_at(&mount.path, &["merge", "--continue"]).ok();
}

#[test]
fn the_document_runs_as_written() {
    let world = World::empty();
    let home = world.path("home");
    let bin = world.path("bin");
    fs::create_dir(&home).unwrap();
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vellum"), bin.join("vellum")).unwrap();
    let commands: Vec<_> = MERGE_DOCUMENT.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(commands.len() > 10);
    let script: String = commands.iter().map(|line| format!("{line}\n[ $? -le 1 ] || exit 9\n")).collect();
    let ran = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&home)
        .env_clear()
        .envs(profile())
        .env("HOME", &home)
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}\n{err}", String::from_utf8_lossy(&ran.stdout));
    // As the merge tool of the document has left it.
    assert_eq!(fs::read_to_string(home.join("notes/list")).unwrap(), "bread\nhemp milk\nrice milk\n");
}

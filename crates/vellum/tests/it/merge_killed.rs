//! `merge` and `resolve` killed at each change of a name in the store, the state directory and the worktree; and two of
//! them at once.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::merge::{diverged, files_in, run_at};
use crate::mounting::Mount;
use crate::world::World;

/// Each object of the store, each file of the state directory and each file of a worktree gets or loses its name by one of
/// these.
const CALLS: [&str; 6] = ["rename", "renameat", "renameat2", "linkat", "unlink", "unlinkat"];
/// A command makes fewer of them.
const STEPS_MAX: usize = 100;

/// A moment at which a command is killed: before the N-th such call of a thread.
#[derive(Debug, Clone, Copy)]
struct KillPoint {
    call: &'static str,
    number: usize,
}

impl KillPoint {
    /// Runs a command; whether it was killed before it ended.
    fn kills(self, dir: &Path, args: &[&str]) -> bool {
        let Self { call, number } = self;
        let inject = format!("inject={call}:signal=KILL:when={number}");
        let output = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject])
            .arg(env!("CARGO_BIN_EXE_vellum"))
            .args(args)
            .current_dir(dir)
            .output()
            .unwrap();
        let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
        let has_ended = output.status.code().is_some_and(|code| code <= 1);
        assert!(killed || has_ended, "{args:?} {self:?}: {output:?}");
        killed
    }
}

/// Calls `check` for each kill point of a command until it says that the command ended before. Returns how often it was
/// killed.
fn for_each_kill_point(mut check: impl FnMut(KillPoint) -> bool) -> usize {
    let kills = |call| {
        let ended = (1..STEPS_MAX).find(|number| !check(KillPoint { call, number: *number }));
        ended.unwrap_or_else(|| panic!("more than {STEPS_MAX} calls of {call}")) - 1
    };
    CALLS.into_iter().map(kills).sum()
}

fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let ran = run_at(dir, &[args, &["--json"]].concat());
    assert!(ran.code <= 1, "{args:?}: {}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

fn is_merging(dir: &Path) -> bool {
    json(dir, &["status"]).get("merge").is_some()
}

/// The ids of all snapshots of the store but those that save changes.
fn snapshots(dir: &Path) -> Vec<String> {
    let listed = json(dir, &["history", "--all", "-n", "0"]);
    let kept = |entry: &&serde_json::Value| !entry["note"].as_str().unwrap().starts_with("before the merge");
    let mut ids: Vec<_> = listed["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .filter(kept)
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

/// Kills merges at each step. What was begun is taken back, every other time after it went on.
fn check_kills_of_a_merge(dir: &Path) {
    let before = files_in(dir);
    let known = snapshots(dir);
    let kills = for_each_kill_point(|point| {
        let is_killed = point.kills(dir, &["merge", "fork"]);
        if !is_merging(dir) {
            assert_eq!(files_in(dir), before, "{point:?}");
        } else if point.number % 2 == 0 {
            // 3: it was interrupted before it changed anything.
            let ran = run_at(dir, &["merge", "--continue"]);
            assert!(ran.code <= 1 || ran.code == 3, "{point:?}: {}", ran.err);
        }
        if is_merging(dir) {
            run_at(dir, &["merge", "--abort"]).ok();
        }
        assert_eq!(files_in(dir), before, "{point:?}");
        assert_eq!(snapshots(dir), known, "{point:?}");
        is_killed
    });
    assert!(kills >= 6, "only {kills} merges were killed");
}

/// Kills decisions at each step: the same command brings them about.
fn check_kills_of_a_decision(dir: &Path) {
    let known = snapshots(dir);
    let mut runs = 0;
    let kills = for_each_kill_point(|point| {
        runs += 1;
        let side = ["--ours", "--theirs"][runs % 2];
        let is_killed = point.kills(dir, &["resolve", side, "a.txt"]);
        run_at(dir, &["resolve", side, "a.txt"]).ok();
        let content = ["one\ntwo\n3\n", "one\ntwo\nTHREE\n"][runs % 2];
        assert_eq!(fs::read_to_string(dir.join("a.txt")).unwrap(), content, "{point:?}");
        // The result with the conflict, and the one with the decision.
        assert!(snapshots(dir).len() <= known.len() + 1, "{point:?}");
        is_killed
    });
    assert!(kills >= 3, "only {kills} decisions were killed");
}

fn check_all_kills(world: &World, dir: &Path) {
    let known = snapshots(dir);
    check_kills_of_a_merge(dir);
    run_at(dir, &["merge", "fork"]).code(1);
    check_kills_of_a_decision(dir);
    // The first run that is not killed finishes it.
    for_each_kill_point(|point| is_merging(dir) && point.kills(dir, &["merge", "--continue"]));
    if is_merging(dir) {
        run_at(dir, &["merge", "--continue"]).ok();
    }
    assert!(!is_merging(dir));
    // The merge alone is new.
    assert_eq!(snapshots(dir).len(), known.len() + 1);
    run_at(dir, &["status"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_merge_in_a_directory_killed_at_each_step_is_made_or_as_before() {
    let world = diverged(true);
    world.snapshot("here");
    check_all_kills(&world, &world.tree());
}

#[test]
fn a_merge_in_a_mount_killed_at_each_step_is_made_or_as_before() {
    let world = diverged(true);
    world.snapshot("here");
    let mount = Mount::new(&world, "work");
    check_all_kills(&world, &mount.path);
}

/// What a worktree is: its files, its last snapshot, and what it has changed since.
fn standing(dir: &Path) -> (BTreeMap<String, String>, serde_json::Value, serde_json::Value) {
    let status = json(dir, &["status"]);
    (files_in(dir), status["head"]["id"].clone(), status["changes"].clone())
}

#[test]
fn changes_are_changes_again_after_a_merge_that_was_killed_or_could_not_begin() {
    let world = diverged(true);
    let dir = world.tree();
    let before = standing(&dir);
    let known = snapshots(&dir);
    let mut has_saved = false;
    for_each_kill_point(|point| {
        let is_killed = point.kills(&dir, &["merge", "fork"]);
        if is_merging(&dir) {
            let stage = json(&dir, &["status"])["merge"]["stage"].clone();
            has_saved |= stage == "saving";
            if point.number % 2 == 1 && stage != "resolving" {
                // The same command begins anew, or goes on.
                run_at(&dir, &["merge", "fork"]).code(1);
            }
            run_at(&dir, &["merge", "--abort"]).ok();
        }
        assert!(standing(&dir) == before, "{point:?}: {:?} and not {before:?}", standing(&dir));
        assert_eq!(snapshots(&dir), known, "{point:?}");
        is_killed
    });
    assert!(has_saved, "no merge was killed while it saved the changes");
    // A file that is ignored is in the way of one that the fork has.
    world.write(".vellumignore", "new.txt\n");
    world.write("new.txt", "ignored\n");
    let before = standing(&dir);
    run_at(&dir, &["merge", "fork"]).code(2);
    assert!(!is_merging(&dir));
    assert_eq!(standing(&dir), before);
    assert_eq!(snapshots(&dir), known);
}

/// A worktree and a fork of it, which both changed `count` files: some texts, some not, in directories of 100.
pub fn diverged_in_many(count: usize) -> World {
    let world = World::new();
    let name = |number: usize| format!("d{:03}/file-{number:05}", number / 100);
    let fill = |dir: &Path, version: &str| {
        for number in 0..count {
            let mut content = format!("one\n{version} {number}\nthree\n").into_bytes();
            // Not a text: a conflict makes two files.
            content.extend((number % 4 == 0).then_some(0));
            let path = dir.join(name(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    };
    fill(&world.tree(), "base");
    world.snapshot("base");
    world.run(&["fork", "fork", "--to", "../fork"]).ok();
    fill(&world.path("fork"), "theirs");
    run_at(&world.path("fork"), &["snapshot", "-m", "fork"]).ok();
    fill(&world.tree(), "ours");
    world
}

#[test]
fn of_many_conflicts_the_first_are_printed_and_all_are_decided_together() {
    let world = diverged_in_many(300);
    let dir = world.tree();
    let merged = run_at(&dir, &["merge", "fork"]).code(1);
    assert_eq!(merged.lines().len(), 100, "{}", merged.out);
    merged.remarks("200 more: 'vellum conflicts -n 0' lists all").remarks("300 conflicts");
    assert_eq!(json(&dir, &["conflicts"])["conflicts"].as_array().unwrap().len(), 300);
    let resolve = |args: &[&str]| run_at(&dir, &[&["resolve"], args].concat());
    resolve(&["--ours", "d000"]).code(1).remarks("200 conflicts to resolve");
    // As a shell expands a pattern.
    let names: Vec<_> = (100..200).map(|number| format!("d001/file-{number:05}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    resolve(&[&["--both"], &names[..]].concat()).code(1).remarks("100 conflicts to resolve");
    let listed = run_at(&dir, &["conflicts"]).code(1).remarks("200 more: 'vellum conflicts -n 0' lists all");
    assert!(listed.lines().iter().all(|line| line.contains("d002/")), "{}", listed.out);
    assert_eq!(run_at(&dir, &["conflicts", "-n", "0"]).code(1).lines().len(), 300);
    resolve(&["--theirs", "--all", "d000"]).code(3);
    resolve(&["--theirs", "--all"]).ok().remarks("all conflicts are resolved");
    assert_eq!(fs::read_to_string(dir.join("d000/file-00001")).unwrap(), "one\nours 1\nthree\n");
    assert_eq!(fs::read_to_string(dir.join("d002/file-00201")).unwrap(), "one\ntheirs 201\nthree\n");
    assert_eq!(fs::read_dir(dir.join("d001")).unwrap().count(), 200);
    run_at(&dir, &["merge", "--continue"]).ok();
    run_at(&dir, &["status"]).ok();
}

/// Kills a merge with so many conflicts, and the decision about them, at moments from the first to the last.
fn check_kills_with_many_conflicts(conflicts: usize) {
    let world = diverged_in_many(conflicts);
    let dir = world.tree();
    let before = standing(&dir);
    let known = snapshots(&dir);
    for call in CALLS {
        for number in [1, 2, 3, 5, 10, conflicts / 100, conflicts / 5, conflicts * 9 / 10, conflicts * 6 / 5]
        {
            let point = KillPoint { call, number };
            let is_killed = point.kills(&dir, &["merge", "fork"]);
            if is_merging(&dir) && number % 2 == 0 {
                // 3: it was interrupted before it changed anything.
                let ran = run_at(&dir, &["merge", "--continue"]);
                assert!(ran.code == 1 || ran.code == 3, "{point:?}: {}", ran.err);
            }
            if is_merging(&dir) {
                run_at(&dir, &["merge", "--abort"]).ok();
            }
            assert!(standing(&dir) == before, "{point:?}");
            assert_eq!(snapshots(&dir), known, "{point:?}");
            if !is_killed {
                break;
            }
        }
    }
    run_at(&dir, &["merge", "fork"]).code(1);
    for call in CALLS {
        for number in [1, 2, 3, conflicts / 100, conflicts * 9 / 10] {
            let side = ["--ours", "--theirs"][number % 2];
            KillPoint { call, number }.kills(&dir, &["resolve", side, "."]);
            run_at(&dir, &["resolve", side, "."]).ok();
            let word = ["ours", "theirs"][number % 2];
            let last = conflicts - 1;
            let path = dir.join(format!("d{:03}/file-{last:05}", last / 100));
            assert_eq!(fs::read_to_string(path).unwrap(), format!("one\n{word} {last}\nthree\n"));
            assert!(snapshots(&dir).len() <= known.len() + 2, "{call} {number}");
        }
    }
    run_at(&dir, &["merge", "--continue"]).ok();
    assert_eq!(snapshots(&dir).len(), known.len() + 1);
    run_at(&dir, &["status"]).ok();
}

#[test]
#[ignore = "long"]
fn a_merge_with_five_hundred_conflicts_killed_anywhere_is_made_or_as_before() {
    check_kills_with_many_conflicts(500);
}

#[test]
#[ignore = "long"]
fn a_merge_with_ten_thousand_conflicts_killed_anywhere_is_made_or_as_before() {
    check_kills_with_many_conflicts(10_000);
}

fn merge_lock(world: &World) -> PathBuf {
    let is_lock = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("merge-") && name.ends_with(".lock")
    };
    let entries = fs::read_dir(world.tree().join(".vellum")).unwrap();
    entries.map(|entry| entry.unwrap().path()).find(is_lock).unwrap()
}

#[test]
fn a_merge_in_a_mount_waits_for_the_one_before() {
    let world = diverged(true);
    world.snapshot("here");
    let mount = Mount::new(&world, "work");
    // It makes the file.
    run_at(&mount.path, &["merge", "--abort"]).code(2);
    let lock = fs::File::open(merge_lock(&world)).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut second = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["merge", "fork"])
        .current_dir(&mount.path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(second.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(said.contains("waiting for another vellum command"), "{said}");
    assert!(!is_merging(&mount.path));
    drop(lock);
    assert_eq!(second.wait().unwrap().code(), Some(1));
    assert!(is_merging(&mount.path));
    run_at(&mount.path, &["merge", "fork"]).code(2).remarks("a merge of fork is under way");
}

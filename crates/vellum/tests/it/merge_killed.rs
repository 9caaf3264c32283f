//! `merge` and `resolve` killed at each change of a name in the store, the state directory and the worktree; and two of
//! them at once.

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
    let listed = json(dir, &["history", "--all"]);
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

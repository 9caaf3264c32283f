//! Restores and forks that are killed at some system call: run again they finish, or they are undone.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use vellum_checkout::{CheckoutError, CheckoutWorktree, ForkRequest};
use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;
use vellum_volume::VolumeError;

use crate::audit::recorded;
use crate::chance::Chance;
use crate::edits::Editor;
use crate::picture::Picture;
use crate::place::Place;

/// What the child process is to do: `restore DIR SNAPSHOT`, `fork DIR TO`, `only DIR SNAPSHOT PATH`, `evict DIR PATH` or
/// `hydrate DIR PATH`.
const TASK: &str = "VELLUM_TEST_TASK";

/// Groups of system calls that change something; a child is killed at the N-th of one group.
const GROUPS: [&str; 7] = [
    "unlink,unlinkat,rmdir",
    "mkdir,mkdirat",
    "link,linkat,symlink,symlinkat,mknod,mknodat",
    "rename,renameat,renameat2",
    "fchmod,fchmodat,?fchmodat2,chmod",
    "utimensat,fchown,fchownat",
    "fsync,fdatasync,ftruncate,pwrite64",
];

/// The body of the child process; nothing in an ordinary run.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let words: Vec<_> = task.split(' ').collect();
    let tree = CheckoutWorktree::open(Path::new(words[1])).unwrap();
    let _lock = tree.lock_worktree(|| {}).unwrap();
    if words[0] == "evict" {
        let paths = [words[2].as_bytes().to_vec()];
        tree.evict_paths(&paths, BTreeSet::new, &ProgressMeter::default()).unwrap();
    } else if words[0] == "hydrate" {
        let paths = [words[2].as_bytes().to_vec()];
        tree.hydrate_paths(&paths, &ProgressMeter::default()).unwrap();
    } else if words[0] == "restore" || words[0] == "only" {
        let id: SnapshotId = words[2].parse().unwrap();
        let target =
            vellum_volume::history::HistoryEntry { id, record: tree.volume.catalog.get_record(&id).unwrap() };
        let only = words.get(3).map(|path| path.as_bytes().to_vec()).into_iter().collect();
        let request = vellum_checkout::RestoreRequest { target, paths: Vec::new(), only, discard: false };
        let plan = tree.plan_restore(&request, &ProgressMeter::default()).unwrap();
        tree.execute_restore(plan, &ProgressMeter::default()).unwrap();
    } else {
        tree.fork_worktree(&fork_request(&tree, Path::new(words[2])), &ProgressMeter::default()).unwrap();
    }
}

fn fork_request(tree: &CheckoutWorktree, to: &Path) -> ForkRequest {
    ForkRequest {
        name: "fork".into(),
        to: to.into(),
        from: tree.head_snapshot().unwrap().unwrap(),
        engine: None,
    }
}

/// Runs the child and kills it at the N-th call of a group; false if it ended before.
fn kill_at(group: &str, number: usize, task: &str) -> bool {
    let inject = format!("inject={group}:signal=KILL:when={number}");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={group}"), "-e", &inject])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture", "--test-threads=1"])
        .env(TASK, task)
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
    let text = [output.stdout, output.stderr].concat();
    let ended = killed || output.status.success();
    assert!(ended, "{group} {number}: {}: {}", output.status, String::from_utf8_lossy(&text));
    killed
}

/// A worktree with two snapshots and unsaved edits: a restore of the first has everything to do.
fn prepared(seed: u64) -> (Place, SnapshotId) {
    let place = Place::new();
    let mut chance = Chance::new(seed);
    let mut edit = |count| {
        for _ in 0..count {
            Editor::new(&place.path, &mut chance).edit();
        }
    };
    edit(150);
    let first = place.snapshot();
    edit(80);
    place.snapshot();
    edit(30);
    place.write("certainly new", "unsaved");
    (place, first.id)
}

#[test]
fn a_restore_killed_anywhere_is_finished_or_undone() {
    let mut kills = 0;
    for (number, group) in GROUPS.iter().enumerate() {
        for step in [1, 4, 9, 26] {
            let (place, first) = prepared(number as u64);
            let before = place.picture();
            let wanted = recorded(&place.tree.volume, &place.state(place.entry(first).record.root));
            if !kill_at(group, step, &format!("restore {} {first}", place.path.display())) {
                break;
            }
            kills += 1;
            let place = place.reopened();
            whole_files_only(&place, &before, &wanted);
            let interrupted = place.tree.find_interrupted_restore().unwrap();
            let count = place.tree.volume.catalog.list_ids().unwrap().len();
            if step % 2 == 1 {
                place.restore(first);
                let made = place.snapshot();
                assert_eq!(made.record.root, place.entry(first).record.root, "{group} {step}");
            } else if let Some(safety) = interrupted.and_then(|interrupted| interrupted.safety) {
                place.restore(safety);
                place.picture().expect(&before, "undone");
                assert_eq!(
                    place.tree.volume.catalog.list_ids().unwrap().len(),
                    count,
                    "nothing more had to be saved"
                );
            } else if place.tree.head_snapshot().unwrap().unwrap().id != first {
                place.picture().expect(&before, "not begun");
                continue;
            }
            // Else it was killed after the last thing that it had to do.
            assert_eq!(place.status(), [""; 0]);
            assert_eq!(place.tree.find_interrupted_restore().unwrap(), None);
            let temps =
                place.picture().0.into_keys().filter(|path| path.windows(12).any(|w| w == b".vellum-tmp-"));
            assert_eq!(temps.count(), 0, "nothing is left behind");
        }
    }
    assert!(kills >= 12, "only {kills}");
}

/// Every file has the size that it had before or is to have.
fn whole_files_only(place: &Place, before: &Picture, wanted: &Picture) {
    for (path, seen) in &place.picture().0 {
        let is_temp = path.windows(12).any(|w| w == b".vellum-tmp-");
        if seen.kind == "RegularFile" && !is_temp {
            let sides = [before.0.get(path), wanted.0.get(path)];
            let known = sides.iter().flatten().any(|side| side.size == seen.size && side.mtime == seen.mtime);
            assert!(known, "{} is neither old nor new: {seen:?}", String::from_utf8_lossy(path));
        }
    }
}

#[test]
fn a_fork_killed_anywhere_is_finished() {
    let mut kills = 0;
    for (number, group) in GROUPS.iter().enumerate() {
        for step in [1, 3, 8, 25] {
            let (place, _) = prepared(20 + number as u64);
            place.snapshot();
            let to = place.beside().join("fork");
            if !kill_at(group, step, &format!("fork {} {}", place.path.display(), to.display())) {
                break;
            }
            kills += 1;
            let tree = place.again();
            let outcome = tree.fork_worktree(&fork_request(&tree, &to), &ProgressMeter::default());
            match outcome {
                Ok(outcome) => assert_eq!(outcome.problems, []),
                // It was killed after the note of what it was doing was removed: it was finished.
                Err(CheckoutError::NotEmpty(_)) => {}
                Err(error) => panic!("after {group} {step}: {error}"),
            }
            Picture::of(&to).expect(&place.picture(), &format!("after {group} {step}"));
            let fork = CheckoutWorktree::open(&to).unwrap();
            assert_eq!(
                fork.head_snapshot().unwrap().unwrap().id,
                place.tree.head_snapshot().unwrap().unwrap().id
            );
            assert_eq!(fork.compare_with_snapshot(None, &[], &ProgressMeter::default()).unwrap().changes, []);
            assert_eq!(fork.find_interrupted_restore().unwrap(), None);
        }
    }
    assert!(kills >= 12, "only {kills}");
}

/// A worktree of which some is absent, with its snapshot, all files of which are old enough to be evicted.
fn partial_checkout() -> (Place, SnapshotId, Picture) {
    let place = Place::new();
    for path in
        ["docs/a", "docs/b", "docs/deep/c", "docs/deep/d", "docs/deep/e", "docs/deep/f", "src/x", "src/y"]
    {
        place.write(path, format!("content of {path}"));
    }
    std::fs::hard_link(place.on("src/x"), place.on("docs/link")).unwrap();
    let made = place.snapshot();
    let picture = place.picture();
    (place, made.id, picture)
}

/// Whatever a command was doing when it was killed: what is missing is absent, and all of it comes back.
fn expect_sound(place: &Place, id: SnapshotId, whole: &Picture, what: &str) {
    let changes: Vec<_> = place.status().into_iter().filter(|change| change.starts_with("Deleted")).collect();
    assert_eq!(changes, [""; 0], "{what}");
    let untimed = |picture: Picture| picture.without(|seen| seen.mtime = (0, 0));
    let record = place.snapshot().record;
    let state = place.state(record.root);
    crate::audit::audit(&state);
    let before = recorded(&place.tree.volume, &place.state(place.entry(id).record.root));
    untimed(recorded(&place.tree.volume, &state)).expect(&untimed(before), what);
    let hydrate = || place.tree.hydrate_paths(&[Vec::new()], &ProgressMeter::default()).unwrap();
    assert_eq!(hydrate().problems, [], "{what}");
    assert!(place.tree.read_absent_paths().unwrap().is_empty(), "{what}");
    untimed(place.picture()).expect(&untimed(whole.clone()), what);
}

#[test]
fn evictions_and_hydrations_killed_anywhere_lose_nothing() {
    let mut kills = 0;
    for group in GROUPS {
        for step in 1..40 {
            let (place, id, whole) = partial_checkout();
            let evicting = format!("evict {} docs", place.path.display());
            if !kill_at(group, step, &evicting) {
                break;
            }
            kills += 1;
            expect_sound(&place.reopened(), id, &whole, &format!("evict killed at {group} {step}"));
        }
        for step in 1..40 {
            let (place, id, whole) = partial_checkout();
            let paths = [b"docs".to_vec(), b"src/y".to_vec()];
            std::thread::sleep(std::time::Duration::from_millis(40));
            let done = place.tree.evict_paths(&paths, BTreeSet::new, &ProgressMeter::default()).unwrap();
            assert_eq!(done.refused, []);
            if !kill_at(group, step, &format!("hydrate {} docs", place.path.display())) {
                break;
            }
            kills += 1;
            expect_sound(&place.reopened(), id, &whole, &format!("hydrate killed at {group} {step}"));
        }
    }
    assert!(kills >= 15, "only {kills}");
}

#[test]
fn a_restore_of_some_paths_killed_anywhere_is_finished() {
    let mut kills = 0;
    for group in GROUPS {
        for step in [1, 2, 3, 5, 8] {
            let (place, id, whole) = partial_checkout();
            place.write("src/y", "newer");
            place.snapshot();
            if !kill_at(group, step, &format!("only {} {id} docs/deep", place.path.display())) {
                break;
            }
            kills += 1;
            let place = place.reopened();
            let target = place.entry(id);
            let only = vec![b"docs/deep".to_vec()];
            let request = vellum_checkout::RestoreRequest { target, paths: Vec::new(), only, discard: false };
            assert_eq!(place.try_restore(&request).unwrap().problems, []);
            let paths =
                place.picture().0.into_keys().filter(|path| path != b"." && !path.starts_with(b"docs"));
            assert_eq!(paths.count(), 0, "{group} {step}");
            expect_sound(&place, id, &whole, &format!("{group} {step}"));
        }
    }
    assert!(kills >= 10, "only {kills}");
}

#[test]
fn a_restore_stopped_on_request_is_finished_by_another() {
    for stop_at in [0, 1, 5, 20] {
        let (place, first) = prepared(40);
        let meter = ProgressMeter::default();
        let lock = place.tree.lock_worktree(|| {}).unwrap();
        let plan = place.tree.plan_restore(&place.request(first, &[]), &meter).unwrap();
        let done = meter.read_progress().items;
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                let enough = || meter.read_progress().items >= done + stop_at;
                for _ in 0..100_000 {
                    if enough() {
                        break;
                    }
                    std::thread::yield_now();
                }
                meter.request_stop();
            });
            place.tree.execute_restore(plan, &meter)
        });
        drop(lock);
        match outcome {
            Ok(_) => {}
            Err(vellum_checkout::CheckoutError::Volume(VolumeError::Interrupted)) => {}
            Err(error) => panic!("{error}"),
        }
        place.restore(first);
        assert_eq!(place.snapshot().record.root, place.entry(first).record.root);
    }
}

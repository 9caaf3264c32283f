//! Snapshots of a mount that are not in the store yet: commands that do not wait for them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{Ran, World};

/// The store takes no more packs until this is dropped: nothing can be published.
struct FullStore {
    packs: PathBuf,
    aside: PathBuf,
}

impl FullStore {
    fn new(world: &World) -> Self {
        let packs = world.tree().join(".vellum/store/packs");
        let aside = packs.with_file_name("packs.aside");
        fs::write(&aside, "").unwrap();
        // In one step: where there is nothing, a writer would make the directory anew.
        renameat_with(CWD, &packs, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
        Self { packs, aside }
    }
}

impl Drop for FullStore {
    fn drop(&mut self) {
        // A test that failed has nothing to put back.
        let _ = renameat_with(CWD, &self.aside, CWD, &self.packs, RenameFlags::EXCHANGE)
            .and_then(|()| rustix::fs::unlink(&self.aside));
    }
}

/// The files below a directory.
fn walk_files(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk_files(&path) } else { BTreeSet::from([path]) }).collect()
}

/// A command in a mount.
fn run(mount: &Mount<'_>, args: &[&str]) -> Ran {
    crate::world::run(&mount.path, args, Stdio::null())
}

#[test]
fn changes_are_published_as_early_as_the_mount_was_told() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    mount.again(&["--rpo", "0s"]).code(3).remarks("at least 1s");
    mount.again(&["-o", "rpo=1s"]).ok();
    let packs = || walk_files(&world.tree().join(".vellum/store/packs"));
    let before = packs();
    let begun = Instant::now();
    // There is always a new change: by default they would be published after a minute.
    while packs() == before {
        assert!(begun.elapsed() < Duration::from_secs(40), "nothing is published");
        mount.sh("date +%N >> f");
    }
    mount.umount().ok();
    mount.again(&["--snapshot", "first", "--rpo", "1s"]).code(3).remarks("--rpo");
}

#[test]
fn a_restore_right_after_a_snapshot_does_not_wait_until_that_is_published() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.sh("cat a.txt dir/b.txt > /dev/null");
    let full = FullStore::new(&world);
    mount.sh("echo early > f");
    run(&mount, &["snapshot", "--tag", "early"]).ok();
    mount.sh("head -c 3000000 /dev/zero | tr '\\0' x > f; mkdir new; echo new > new/file");
    run(&mount, &["snapshot", "--tag", "late"]).ok();
    let late = "[ $(wc -c < f) = 3000000 ]; [ $(cat new/file) = new ]";
    let early = "[ $(cat f) = early ]; [ ! -e new ]";
    for _ in 0..3 {
        run(&mount, &["restore", "HEAD~1"]).ok();
        mount.sh(early);
        run(&mount, &["restore", "late"]).ok();
        mount.sh(late);
    }
    // What no snapshot holds is kept, and undoing works as well.
    mount.sh("echo unsaved > f");
    let undo = run(&mount, &["--json", "restore", "early"]).ok();
    let safety: serde_json::Value = serde_json::from_slice(&undo.raw).unwrap();
    mount.sh(early);
    run(&mount, &["restore", safety["safety"].as_str().unwrap()]).ok();
    mount.sh("[ $(cat f) = unsaved ]; [ $(cat new/file) = new ]");
    run(&mount, &["restore", "late", "f"]).ok();
    mount.sh(late);
    drop(full);
    run(&mount, &["flush"]).ok();
    let history = run(&mount, &["history", "--all"]).ok();
    assert!(history.lines().iter().any(|line| line.contains("late")), "{:?}", history.lines());
    run(&mount, &["restore", "late"]).ok();
    mount.sh(late);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_restore_before_anything_is_published_outlives_the_process() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let full = FullStore::new(&world);
    mount.sh("echo one > f");
    run(&mount, &["snapshot", "--tag", "one"]).ok();
    mount.sh("echo two > f");
    run(&mount, &["snapshot", "--tag", "two"]).ok();
    run(&mount, &["restore", "one"]).ok();
    mount.sh("echo three > g; sync g");
    kill(mount.pid(), "-KILL");
    wait_until("the mount is dead", || mount.is_dead());
    Command::new("umount").arg("-l").arg(&mount.path).status().unwrap();
    drop(full);
    mount.again(&["--worktree", "work"]).ok();
    mount.sh("[ $(cat f) = one ]; [ $(cat g) = three ]");
    run(&mount, &["flush"]).ok();
    let history = run(&mount, &["history", "--all"]).ok();
    for tag in ["one", "two"] {
        assert!(history.lines().iter().any(|line| line.contains(tag)), "{:?}", history.lines());
    }
    run(&mount, &["restore", "two"]).ok();
    mount.sh("[ $(cat f) = two ]; [ ! -e g ]");
    world.run(&["verify", "--all"]).ok();
}

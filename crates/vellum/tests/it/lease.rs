//! Two machines, each with a state directory of its own, and one store: who may change a mounted worktree.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use crate::mounting::{Mount, hold, wait_until};
use crate::world::{Ran, World};

/// A second machine, as far as the store can tell.
struct Other<'w> {
    mount: Mount<'w>,
    tree: PathBuf,
}

impl<'w> Other<'w> {
    fn attached(world: &'w World) -> Self {
        let tree = world.path("other");
        fs::create_dir(&tree).unwrap();
        let store = world.tree().join(".vellum/store");
        world
            .run_in("../other", &["init", "--plain", "--name", "other", "--store", store.to_str().unwrap()])
            .ok();
        Self { mount: Mount::place(world, "there"), tree }
    }

    fn mounts(&self, args: &[&str]) -> Ran {
        let path = self.mount.path.to_str().unwrap();
        let args = [&["mount", "--worktree", "work"], args, &[path]].concat();
        self.mount.world.run_in("../other", &args)
    }
}

fn signal(mount: &Mount<'_>, pid: i32, signal: Signal) {
    let _ = mount;
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The state of a process, as the kernel abbreviates it.
fn state(pid: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn a_worktree_that_was_unmounted_is_mounted_elsewhere_at_once() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = Mount::new(&world, "work");
    here.sh("echo published > new; mkdir d; head -c 200000 /dev/zero > d/big");
    other.mounts(&[]).code(2).remarks("belongs to process").remarks("--take-over");
    here.umount().ok();
    other.mounts(&[]).ok();
    other
        .mount
        .sh("[ $(cat new) = published ]; [ $(stat -c %s d/big) = 200000 ]; cat a.txt; echo more > there");
    here.again(&[]).code(2).remarks("belongs to process");
    other.mount.umount().ok();
    here.again(&[]).ok();
    here.sh("[ $(cat there) = more ]; rm there; [ $(cat new) = published ]");
    here.umount().ok();
    other.mounts(&[]).ok();
    other.mount.sh("[ ! -e there ]; [ -e new ]");
    let _ = other.tree;
}

#[test]
fn a_holder_that_was_stopped_and_taken_over_can_change_nothing_any_more() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = Mount::place(&world, "work");
    here.again(&["--lease-term=2"]).ok();
    here.sh("echo early > shared; sync -f .");
    world.run_in("../work", &["flush"]).ok();
    here.sh("echo lost > unpublished; sync unpublished");
    let pid = here.pid();
    hold(pid);
    // Its process is there, so it is the term that counts.
    wait_until("its lease has ended", || other.mounts(&["--lease-term=2"]).code == 0);
    other.mount.sh("[ $(cat shared) = early ]; echo late > shared; sync -f .; [ ! -e unpublished ]");
    world.run_in("../there", &["flush"]).ok();
    signal(&here, pid, Signal::CONT);
    let refused = crate::mounting::sh(&here.path, "(echo stale > shared; sync shared) 2>&1 || true");
    assert!(refused.contains("Read-only file system"), "{refused}");
    here.sh("[ $(cat a.txt | head -1) = one ]; [ $(cat unpublished) = lost ]");
    world
        .run_in("../work", &["status"])
        .code(2)
        .remarks("taken over by process")
        .remarks("worktree keep work NEW");
    world.run_in("../work", &["snapshot"]).code(2).remarks("taken over");
    let log = || fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    let output = || log().contains("taken over by process") && log().contains("not published stays in");
    wait_until("the log says it", output);
    here.umount().code(1).remarks("worktree keep work NEW");
    // What the second one did stands.
    other.mount.sh("[ $(cat shared) = late ]");
    // The first one's unpublished changes are not lost, nor in the way.
    here.again(&["--take-over"]).code(2).remarks("holds changes").remarks("worktree keep work NEW");
    world.run(&["worktree", "keep", "work", "rescued"]).ok();
    let rescued = Mount::place(&world, "rescued");
    rescued.again(&["--worktree=rescued"]).ok();
    rescued.sh("[ $(cat unpublished) = lost ]; [ $(cat shared) = early ]");
    world.run_in("../rescued", &["snapshot", "-m", "rescued"]).ok();
    world.run_in("../rescued", &["flush"]).ok();
    rescued.umount().ok();
    other.mount.umount().ok();
    here.again(&[]).ok();
    here.sh("[ $(cat shared) = late ]; [ ! -e unpublished ]");
    here.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_killed_holder_is_succeeded_at_once_and_what_it_left_is_named() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = Mount::new(&world, "work");
    here.sh("echo one > a; sync a");
    world.run_in("../work", &["flush"]).ok();
    here.sh("echo two > b; sync b");
    let pid = here.pid();
    signal(&here, pid, Signal::KILL);
    wait_until("it is gone", || !PathBuf::from(format!("/proc/{pid}")).exists() || state(pid) == 'Z');
    // The same place goes on without waiting, and has everything.
    here.again(&[]).ok();
    here.sh("[ $(cat b) = two ]; echo three > c; sync c");
    let pid = here.pid();
    signal(&here, pid, Signal::KILL);
    wait_until("it is gone", || !PathBuf::from(format!("/proc/{pid}")).exists() || state(pid) == 'Z');
    other.mounts(&[]).ok().remarks("taken over from process").remarks(".vellum/live/work");
    other.mount.sh("[ $(cat a) = one ]");
}

#[test]
fn status_says_who_has_the_worktree() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    assert_eq!(world.json(&["status"])["leases"].as_array().unwrap().len(), 0);
    let here = Mount::new(&world, "work");
    for dir in ["../tree", "../other", "../work"] {
        let ran = world.run_in(dir, &["status"]);
        ran.remarks(&format!("work is mounted on {} by process {}", here.path.display(), here.pid()));
        let output: serde_json::Value =
            serde_json::from_slice(&world.run_in(dir, &["--json", "status"]).raw).unwrap();
        let lease = &output["leases"][0];
        assert_eq!(
            (lease["worktree"].as_str(), lease["process"].as_i64()),
            (Some("work"), Some(here.pid().into()))
        );
        assert!(lease["expires"].as_str() > lease["since"].as_str(), "{lease}");
    }
    // Nobody renames or removes it meanwhile.
    world.run(&["worktree", "remove", "work"]).code(2).remarks("belongs to process");
    world.run_in("../other", &["worktree", "rename", "work", "play"]).code(2).remarks("belongs to process");
    here.umount().ok();
    assert_eq!(world.json(&["status"])["leases"].as_array().unwrap().len(), 0);
    let _ = other;
}

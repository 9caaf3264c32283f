//! A mounted worktree with a log: another machine continues it with everything that was synced.
//!
//! Two machines, as far as the store can tell: each has a state directory of its own. A claim that nobody gives up ends
//! after 10 seconds, by the clock of the log's engine: tests that kill a mount wait for that.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vellum_testkit::SeaweedServer;

use crate::mounting::{Mount, detach_mount, hold, kill, sh, wait_until};
use crate::remote::{init, world_with_credentials};
use crate::world::{Ran, World};

/// What a mount of this machine is given.
const SHARED: &[&str] = &["--meta=store:", "--no-io-uring"];
const USUAL: &[&str] = &["--no-io-uring"];

/// A second machine.
struct Other<'w> {
    mount: Mount<'w>,
}

impl<'w> Other<'w> {
    fn attached(world: &'w World) -> Self {
        let store = world.tree().join(".vellum/store");
        fs::create_dir(world.path("other")).unwrap();
        let words = ["init", "--plain", "--name", "other", "--store", store.to_str().unwrap()];
        world.run_in("../other", &words).ok();
        Self { mount: Mount::place(world, "there") }
    }

    fn mounts(&self, args: &[&str]) -> Ran {
        let path = self.mount.path.to_str().unwrap();
        let args = [&["mount", "--worktree", "work", "--no-io-uring"], args, &[path]].concat();
        self.mount.world.run_in("../other", &args)
    }
}

/// A new worktree with a log, mounted here.
fn mounted_with_log(world: &World) -> Mount<'_> {
    let here = Mount::place(world, "work");
    here.again(SHARED).ok();
    here
}

fn kill_mount(mount: &Mount<'_>) {
    let pid = mount.pid();
    kill(pid, "-KILL");
    wait_until("it is dead", || mount.is_dead());
}

/// A program that appends numbers to a file in a mount, and writes those down that were synced.
struct NumberWriter {
    process: Child,
    synced: PathBuf,
}

impl NumberWriter {
    fn start(mount: &Mount<'_>) -> Self {
        let synced = mount.world.path("synced");
        fs::write(&synced, "0\n").unwrap();
        let script = "n=0; while n=$((n+1)); do echo $n >> numbers && sync numbers && echo $n > ../synced || exit; done";
        let process = Command::new("sh")
            .args(["-c", script])
            .current_dir(&mount.path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, synced }
    }

    fn last_synced(&self) -> u64 {
        // It may be being written.
        fs::read_to_string(&self.synced).unwrap().trim().parse().unwrap_or(0)
    }

    /// The last number that was synced when the program could not go on.
    fn end(mut self) -> u64 {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.last_synced()
    }
}

/// All numbers up to that one are in the file, in their order, and at most one more.
#[track_caller]
fn check_numbers(mount: &Mount<'_>, synced: u64) {
    let text = fs::read_to_string(mount.at("numbers")).unwrap();
    let found: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(found.len() as u64 >= synced, "{synced} were synced, and {} are there", found.len());
    assert!(found.iter().copied().eq(1..=found.len() as u64), "{found:?}");
}

#[test]
fn what_was_synced_before_a_machine_was_lost_is_on_another_one() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    here.sh("mkdir d; head -c 300000 /dev/zero | tr '\\0' x > d/big; ln -s big d/link; sync -f .");
    world.run_in("../work", &["snapshot", "-m", "on the lost machine"]).ok();
    let writer = NumberWriter::start(&here);
    wait_until("some numbers are synced", || writer.last_synced() > 20);
    kill_mount(&here);
    let synced = writer.end();
    let begun = Instant::now();
    other.mounts(&[]).ok().says("Continued from the shared log at store:");
    // The lease would have lasted 60 seconds.
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    check_numbers(&other.mount, synced);
    other.mount.sh("[ $(stat -c %s d/big) = 300000 ]; [ $(readlink d/link) = big ]; cat a.txt; tr -d x < d/big | wc -c | grep -qx 0");
    other.mount.sh("echo here >> numbers; sync numbers");
    world.run_in("../there", &["history"]).ok().says("on the lost machine");
    other.mount.umount().ok();
    // Whoever comes next need not wait.
    let begun = Instant::now();
    detach_mount(&here.path);
    here.again(USUAL).ok();
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    here.sh("[ \"$(tail -1 numbers)\" = here ]");
    here.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_machine_that_was_stopped_and_taken_over_changes_nothing_any_more() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    here.sh("echo early > shared; echo kept > mine; sync shared mine");
    let pid = here.pid();
    hold(pid);
    other.mounts(&[]).ok();
    other.mount.sh("[ $(cat shared) = early ]; echo late > shared; sync shared");
    kill(pid, "-CONT");
    let refused = sh(&here.path, "(echo stale > shared; sync shared) 2>&1 || true");
    assert!(refused.contains("Read-only file system"), "{refused}");
    let log = || fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    wait_until("the log says it", || log().contains("has taken it over, with all that was synced here"));
    here.sh("[ $(cat a.txt | head -1) = one ]");
    world.run_in("../work", &["snapshot"]).code(2).remarks("has taken it over");
    here.umount().code(1);
    other.mount.sh("[ $(cat shared) = late ]; [ $(cat mine) = kept ]");
    world.run_in("../there", &["flush"]).ok();
    // What this machine had is kept aside, and the worktree goes on here.
    here.again(USUAL).code(2).remarks("renews its claim").remarks("--take-over");
    other.mount.umount().ok();
    here.again(USUAL).ok();
    here.sh("[ $(cat shared) = late ]");
    here.umount().ok();
    world.run(&["worktree", "keep", "work", "rescued"]).ok();
    let rescued = Mount::place(&world, "rescued");
    rescued.again(&["--worktree=rescued", "--no-io-uring"]).ok();
    rescued.sh("[ $(cat shared) = early ]; [ $(cat mine) = kept ]");
    rescued.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_worktree_that_is_in_use_is_taken_over_only_on_request() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    here.sh("echo one > file; sync file");
    let begun = Instant::now();
    other.mounts(&[]).code(2).remarks("renews its claim of the shared log").remarks("--take-over");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    other.mounts(&["--take-over"]).ok();
    other.mount.sh("[ $(cat file) = one ]; echo two > file; sync file");
    let refused = sh(&here.path, "(echo stale > file; sync file) 2>&1 || true");
    assert!(refused.contains("Read-only file system") || refused.contains("Input/output error"), "{refused}");
    here.umount().code(1);
    other.mount.sh("[ $(cat file) = two ]");
    other.mount.umount().ok();
}

#[test]
fn the_same_machine_goes_on_at_once_with_what_it_had_not_synced() {
    let world = World::with_snapshot();
    let here = mounted_with_log(&world);
    for round in 1..4 {
        here.sh(&format!("echo {round} > synced; sync synced; echo {round} > unsynced"));
        kill_mount(&here);
        detach_mount(&here.path);
        let begun = Instant::now();
        here.again(USUAL).ok();
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
        here.sh(&format!("[ $(cat synced) = {round} ]; [ $(cat unsynced) = {round} ]"));
    }
    here.umount().ok();
}

#[test]
fn a_worktree_gets_a_log_and_loses_it_again() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = Mount::new(&world, "work");
    here.sh("echo before > file");
    world.run(&["worktree", "share", "work", "--meta", "store:"]).code(2).remarks("mounted on");
    here.umount().ok();
    world.run(&["worktree", "share", "nowhere", "--meta", "store:"]).code(2).remarks("no worktree");
    world.run(&["worktree", "share", "work", "--meta", "store:"]).ok().says("in the shared log at store:");
    world.run(&["worktree", "share", "work", "--meta", "store:"]).ok();
    let heads = || fs::read_dir(world.tree().join(".vellum/store/log-heads")).map_or(0, Iterator::count);
    assert_eq!(heads(), 1);
    world.run(&["worktree", "remove", "work"]).code(3).remarks("worktree unshare work");
    world.run(&["worktree", "share", "work", "--meta", "redis://10.0.0.1"]).code(3).remarks("unshare work");
    other.mounts(&[]).ok();
    other.mount.sh("[ $(cat file) = before ]; echo shared > file; sync file");
    world.run(&["worktree", "unshare", "work"]).code(2).remarks("renews its claim");
    other.mount.umount().ok();
    world.run(&["worktree", "unshare", "work"]).ok().says("no shared log any more");
    assert_eq!(heads(), 0);
    world.run(&["worktree", "unshare", "work"]).ok();
    here.again(USUAL).ok();
    here.sh("[ $(cat file) = shared ]");
    here.umount().ok();
    other.mounts(&["--without-log"]).code(3).remarks("has no shared log");
    world.run(&["verify", "--all"]).ok();
}

/// Removes all of a log from the store.
fn lose_log(world: &World) {
    let store = world.tree().join(".vellum/store");
    sh(&store, "find live log-heads -type f -delete");
}

#[test]
fn a_log_that_is_lost_is_made_anew_by_who_serves() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    here.sh("echo one > one; sync one");
    lose_log(&world);
    here.sh("echo two > two; sync two");
    kill_mount(&here);
    other.mounts(&[]).ok();
    other.mount.sh("[ $(cat one) = one ]; [ $(cat two) = two ]");
    other.mount.umount().ok();
}

#[test]
fn a_log_that_is_lost_with_its_server_is_given_up_only_on_request() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    here.sh("echo published > file; sync file");
    world.run_in("../work", &["flush"]).ok();
    here.sh("echo only in the log > file; sync file");
    kill_mount(&here);
    detach_mount(&here.path);
    lose_log(&world);
    let lost = other.mounts(&[]).code(2);
    lost.remarks("the shared log of the worktree 'work' is gone").remarks("--without-log");
    // The machine that had it has everything.
    here.again(USUAL).ok();
    here.sh("[ \"$(cat file)\" = 'only in the log' ]; sync -f .");
    kill_mount(&here);
    detach_mount(&here.path);
    lose_log(&world);
    other.mounts(&["--without-log"]).ok();
    other.mount.sh("[ $(cat file) = published ]");
    other.mount.umount().ok();
    // Its log is no more: the machine with the rest is told, as without logs.
    here.again(USUAL).code(2).remarks("worktree keep work NEW");
    world.run(&["worktree", "keep", "work", "rescued"]).ok();
    let rescued = Mount::place(&world, "rescued");
    rescued.again(&["--worktree=rescued", "--no-io-uring"]).ok();
    rescued.sh("[ \"$(cat file)\" = 'only in the log' ]");
    rescued.umount().ok();
}

#[test]
fn addresses_that_name_no_engine_are_refused() {
    let world = World::with_snapshot();
    let here = Mount::place(&world, "work");
    here.again(&["--meta=nonsense"]).code(3).remarks("an address begins with");
    here.again(SHARED).ok();
    here.umount().ok();
    here.again(&["--meta=redis://127.0.0.1:1"])
        .code(3)
        .remarks("shared log at store:")
        .remarks("unshare work");
}

#[test]
fn a_store_in_a_service_holds_the_log_too() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("logs");
    init(&world, &url).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "-m", "start"]).ok();
    let there = world.path("there");
    let here = Mount::place(&world, "work");
    fs::create_dir(&there).unwrap();
    fs::create_dir(world.path("other")).unwrap();
    let at_other = |args: &[&str]| {
        let other = world.path("other");
        world.run_at_home(&[&["-C", other.to_str().unwrap()], args].concat())
    };
    at_other(&["init", "--plain", "--name", "other", "--store", &url, "--credentials", "test"]).ok();
    world.run_at_home(&[&["mount"], SHARED, &[here.path.to_str().unwrap()]].concat()).ok();
    let writer = NumberWriter::start(&here);
    wait_until("some numbers are synced", || writer.last_synced() > 5);
    kill_mount(&here);
    let synced = writer.end();
    let begun = Instant::now();
    at_other(&["mount", "--worktree", "work", "--no-io-uring", there.to_str().unwrap()]).ok();
    let mount = Mount { world: &world, path: there };
    // The lease would have lasted five minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    check_numbers(&mount, synced);
    at_other(&["umount", mount.path.to_str().unwrap()]).ok();
}

/// Mounts are killed at any moment, on one machine and then on the other.
#[test]
#[ignore = "long"]
fn machines_that_are_lost_one_after_the_other_lose_nothing() {
    let world = World::with_snapshot();
    let other = Other::attached(&world);
    let here = mounted_with_log(&world);
    let mut synced = 0;
    for round in 0..20_u64 {
        let is_here = round % 2 == 0;
        let mount = if is_here { &here } else { &other.mount };
        if round > 0 {
            detach_mount(&mount.path);
            if is_here {
                here.again(USUAL).ok()
            } else {
                other.mounts(&[]).ok()
            };
        }
        if round > 0 {
            check_numbers(mount, synced);
            mount.sh("rm numbers; sync .");
        }
        let writer = NumberWriter::start(mount);
        wait_until("a number is synced", || writer.last_synced() > 0);
        std::thread::sleep(Duration::from_millis(round * 137 % 900));
        kill_mount(mount);
        synced = writer.end();
        // A machine that comes back with what it had not synced: that is dealt with by its user.
        let left = world.path(if is_here { "tree" } else { "other" }).join(".vellum/live/work/left");
        if left.exists() {
            fs::remove_dir_all(left).unwrap();
        }
    }
}

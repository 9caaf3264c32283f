//! Locks of programs on a shared worktree, which hold on all machines.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;

use crate::mounting::{Mount, hold, kill, wait_until};
use crate::open_file::OpenFile;
use crate::shared::{Cluster, kill_server};
use crate::world::World;

/// Locks of `fcntl` by Python, which has all kinds of them.
const LOCK: &str = "import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[3] == 'try' else 0))
print('locked', flush=True)
sys.stdin.read()";

/// Locks a file in a process of its own; `how`: `lockf` or `flock`.
fn start_locking(mount: &Mount<'_>, how: &str, mode: &str) -> Child {
    Command::new("python3")
        .args(["-c", LOCK, mount.at("file").to_str().unwrap(), how, mode])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the lock; whether it was had.
fn has_lock(process: &mut Child) -> bool {
    let mut said = [0; 7];
    process.stdout.as_mut().unwrap().read_exact(&mut said).is_ok()
}

fn unlock(mut process: Child) {
    drop(process.stdin.take());
    process.wait().unwrap();
}

#[test]
fn locks_hold_for_programs_on_all_machines() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("file"), "0").unwrap();
    for how in ["lockf", "flock"] {
        for (holder, other) in [(&one, &two), (&two, &cluster.server), (&cluster.server, &one)] {
            let mut held = start_locking(holder, how, "wait");
            assert!(has_lock(&mut held), "{how}");
            let mut refused = start_locking(other, how, "try");
            assert!(!has_lock(&mut refused), "{how}");
            unlock(refused);
            let mut waiting = start_locking(other, how, "wait");
            unlock(held);
            assert!(has_lock(&mut waiting), "{how}");
            unlock(waiting);
        }
    }
    // Who waits can be interrupted, and who dies lets go.
    let mut held = start_locking(&one, "flock", "wait");
    assert!(has_lock(&mut held));
    let mut waiting = start_locking(&two, "flock", "wait");
    std::thread::sleep(std::time::Duration::from_millis(300));
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    held.kill().unwrap();
    held.wait().unwrap();
    let mut next = start_locking(&two, "flock", "wait");
    assert!(has_lock(&mut next));
    unlock(next);
}

#[test]
fn a_counter_under_a_lock_misses_nothing() {
    const TIMES: usize = 60;
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("counter"), "0").unwrap();
    fs::write(one.at("lock"), "").unwrap();
    let script = format!(
        "for i in $(seq {TIMES}); do ( flock 9; n=$(cat counter); echo $((n+1)) > counter ) 9<> lock; done"
    );
    std::thread::scope(|scope| {
        for mount in [&one, &two, &cluster.server] {
            let script = &script;
            scope.spawn(move || mount.sh(script));
        }
    });
    assert_eq!(two.sh("cat counter"), format!("{}\n", 3 * TIMES));
}

#[test]
fn the_locks_of_a_killed_client_are_free() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("file"), "0").unwrap();
    let mut held = start_locking(&one, "lockf", "wait");
    assert!(has_lock(&mut held));
    let mut waiting = start_locking(&two, "lockf", "wait");
    kill(one.pid(), "-KILL");
    assert!(has_lock(&mut waiting));
    unlock(waiting);
    unlock(held);
}

#[test]
fn a_lock_that_was_lost_with_the_session_is_an_error() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    fs::write(one.at("file"), "0").unwrap();
    let mut file = OpenFile::open(&one.at("file"));
    file.lock().unwrap();
    let session = cluster.sessions()[0]["session"].as_str().unwrap().to_owned();
    world.run(&["worktree", "evict", "work", &session]).ok();
    wait_until("it is back", || fs::write(one.at("other"), "x").is_ok() && cluster.sessions().len() == 1);
    assert_eq!(file.write(b"1"), Err(Errno::IO));
    drop(file);
    fs::write(one.at("file"), "2").unwrap();
}

#[test]
fn locks_outlive_a_killed_server() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("file"), "0").unwrap();
    let mut file = OpenFile::open(&one.at("file"));
    file.lock().unwrap();
    let mut range = start_locking(&one, "lockf", "wait");
    assert!(has_lock(&mut range));
    let mut waiting = start_locking(&two, "flock", "wait");
    for _ in 0..2 {
        kill_server(&cluster);
        cluster.start_server();
        for how in ["lockf", "flock"] {
            let mut refused = start_locking(&two, how, "try");
            assert!(!has_lock(&mut refused), "{how}");
            unlock(refused);
        }
        file.write(b"1").unwrap();
    }
    drop(file);
    assert!(has_lock(&mut waiting));
    unlock(waiting);
    unlock(range);
    let mut next = start_locking(&two, "lockf", "try");
    assert!(has_lock(&mut next));
    unlock(next);
}

#[test]
fn a_lock_that_is_not_taken_up_in_time_is_lost() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("file"), "0").unwrap();
    let mut file = OpenFile::open(&one.at("file"));
    file.lock().unwrap();
    let stopped = one.pid();
    hold(stopped);
    kill_server(&cluster);
    cluster.start_server();
    // Also who does not wait for a lock has to wait until it is known who has it.
    let mut other = start_locking(&two, "flock", "try");
    assert!(has_lock(&mut other));
    kill(stopped, "-CONT");
    assert_eq!(file.write(b"1"), Err(Errno::IO));
    drop(file);
    unlock(other);
    fs::write(one.at("file"), "2").unwrap();
}

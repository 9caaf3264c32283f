//! Locks of programs on a shared worktree that another machine goes on serving: programs keep them, and nobody else gets
//! what they have.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::mounting::{Mount, kill, wait_until};
use crate::shared_take_over::Machine;
use crate::world::World;

/// Locks a file; when it is told to, writes to it, and unlocks it.
const LOCK: &str = "import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
waits = sys.argv[3] == 'wait'
try:
    if sys.argv[2] == 'ofd':
        whole = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK, whole)
    else:
        getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
except OSError as error:
    print(error.errno, flush=True)
    sys.exit()
print('locked', flush=True)
sys.stdin.read()
os.pwrite(file, b'1', 0)
print('written', flush=True)";

const KINDS: [&str; 3] = ["lockf", "ofd", "flock"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// A program that locks the file that is called as the kind of its lock.
struct LockingProgram {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl LockingProgram {
    fn start(mount: &Mount<'_>, kind: &str, mode: &str) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", LOCK]).arg(mount.at(kind)).args([kind, mode]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Has it write under the lock, and end.
    fn finish(mut self) {
        drop(self.input.take());
        assert_eq!(self.next_line(), "written");
        assert!(self.process.wait().unwrap().success());
    }
}

/// Programs on `holder` lock a file each; `move_server` lets another machine serve; programs on `other` must not get what is
/// locked before it is unlocked.
fn check_locks_move(holder: &Mount<'_>, other: &Mount<'_>, move_server: impl FnOnce()) {
    for kind in KINDS {
        fs::write(holder.at(kind), "0").unwrap();
    }
    // One by one: the kernel passes no `syncfs` on.
    holder.sh(&format!("sync {} .", KINDS.join(" ")));
    let mut held = KINDS.map(|kind| LockingProgram::start(holder, kind, "wait"));
    held.iter_mut().for_each(|program| assert_eq!(program.next_line(), "locked"));
    let mut waiting = LockingProgram::start(other, "ofd", "wait");
    move_server();
    for kind in KINDS {
        let mut refused = LockingProgram::start(other, kind, "try");
        assert_eq!(refused.next_line(), "11", "{kind}");
        assert_eq!(refused.process.wait().unwrap().code(), Some(0));
    }
    held.into_iter().for_each(LockingProgram::finish);
    assert_eq!(waiting.next_line(), "locked");
    waiting.finish();
    for kind in KINDS {
        let mut next = LockingProgram::start(other, kind, "try");
        assert_eq!(next.next_line(), "locked", "{kind}");
        next.finish();
    }
}

/// A server, one that stands by, and a client.
fn mount_three(world: &World) -> [Machine<'_>; 3] {
    let all = ["one", "two", "client"].map(|name| Machine::attached(world, name));
    all[0].mounts(&[&LISTEN[..], &["--meta", "store:"]].concat()).ok();
    all[1].mounts(&LISTEN).ok().says("Stands by");
    all[2].mounts(&[]).ok();
    all
}

#[test]
fn locks_outlive_a_take_over_by_another_machine() {
    let world = World::with_snapshot();
    let [first, second, client] = mount_three(&world);
    check_locks_move(&client.mount, &second.mount, || lose(&first));
    client.mount.umount().ok();
    second.mount.umount().ok();
}

#[test]
fn locks_of_the_next_servers_own_programs_outlive_a_take_over() {
    let world = World::with_snapshot();
    let [first, second, client] = mount_three(&world);
    check_locks_move(&second.mount, &client.mount, || lose(&first));
    client.mount.umount().ok();
    second.mount.umount().ok();
}

/// The machine is lost; of its memory and its disk, the others have nothing.
fn lose(server: &Machine<'_>) {
    kill(server.mount.pid(), "-KILL");
    wait_until("the mount is dead", || server.mount.is_dead());
}

/// Lets the other process serve that can, as soon as it stands by.
fn hand_over(server: &Machine<'_>) {
    let world = server.mount.world;
    let words = ["worktree", "hand-over", "work"];
    wait_until("it is handed over", || world.run_beside(&server.dir, &words).code == 0);
}

#[test]
fn locks_outlive_a_hand_over() {
    let world = World::with_snapshot();
    let [first, second, client] = mount_three(&world);
    // Those of a client, and then those of programs where the worktree is served until then.
    check_locks_move(&client.mount, &second.mount, || hand_over(&first));
    check_locks_move(&second.mount, &client.mount, || hand_over(&second));
    for machine in [&client, &first, &second] {
        machine.mount.umount().ok();
    }
}

//! Servers of shared worktrees that end, and those that stand by: programs on all machines go on.
//!
//! Machines are processes with state directories of their own.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::mounting::wait_until;
use crate::open_file::OpenFile;
use crate::shared_take_over::Machine;
use crate::world::{World, run};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// A worktree with a log that a first machine serves, and for which a second one stands by.
fn serve_twice(world: &World) -> [Machine<'_>; 2] {
    let [first, second] = ["alpha", "beta"].map(|name| Machine::attached(world, name));
    first.mounts(&["--listen", "127.0.0.1:0", "--meta", "store:"]).ok().says("Serves clients at");
    second.mounts(&LISTEN).ok().says("Stands by");
    [first, second]
}

/// What `status --clients` says in a mount.
fn clients(machine: &Machine<'_>) -> Value {
    let ran = run(&machine.mount.path, &["--json", "status", "--clients"], Stdio::null()).ok();
    serde_json::from_str::<Value>(&ran.out).unwrap()["worktrees"][0].clone()
}

fn hand_over(machine: &Machine<'_>, more: &[&str]) -> crate::world::Ran {
    let words = ["worktree", "hand-over", "work"];
    machine.mount.world.run_beside(&machine.dir, &[&words[..], more].concat())
}

/// A program that writes numbered lines to a file until it is told to stop, then says how many.
struct LineWriter(Child);

impl LineWriter {
    fn start(machine: &Machine<'_>) -> Self {
        let program =
            "exec 3>\"$0\"; n=0; while ! read -t 0; do echo $n >&3 || exit 1; n=$((n + 1)); done; echo $n";
        let path = machine.mount.at(&machine.dir);
        let mut command = Command::new("bash");
        command.args(["-c", program]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn stop(mut self) -> usize {
        drop(self.0.stdin.take());
        let mut count = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut count).unwrap();
        assert!(self.0.wait().unwrap().success());
        count.trim().parse().unwrap()
    }
}

#[test]
fn a_worktree_is_handed_over_while_programs_write() {
    let world = World::with_snapshot();
    let [first, second] = serve_twice(&world);
    let client = Machine::attached(&world, "client");
    client.mounts(&[]).ok();
    let machines = [&first, &second, &client];
    let writers = machines.map(LineWriter::start);
    let address = clients(&second)["server"]["address"].as_str().unwrap().to_owned();
    hand_over(&first, &[]).ok().says("serves the worktree work at 127.0.0.1:");
    assert_ne!(clients(&second)["server"]["address"].as_str(), Some(&*address));
    // And back, to a machine that is named.
    wait_until("the first machine stands by", || {
        let all = clients(&client)["clients"].clone();
        all.as_array()
            .unwrap()
            .iter()
            .any(|client| client["connected"] == true && client["stands_by"].as_str() == Some(&address))
    });
    hand_over(&second, &[&address]).ok();
    assert_eq!(clients(&second)["server"]["address"].as_str(), Some(&*address));
    for (writer, machine) in writers.into_iter().zip(machines) {
        let count = writer.stop();
        assert!(count > 0);
        let expected: String = (0..count).map(|number| format!("{number}\n")).collect();
        assert_eq!(client.mount.sh(&format!("cat {}", machine.dir)), expected);
    }
    // Who serves is unmounted: the other machine goes on.
    first.mount.umount().ok();
    client.mount.sh("echo more > more; cat more");
    client.mount.umount().ok();
    second.mount.umount().ok();
}

#[test]
fn what_cannot_be_handed_over_says_why() {
    let world = World::with_snapshot();
    let first = Machine::attached(&world, "alpha");
    first.mounts(&LISTEN).ok();
    hand_over(&first, &[])
        .code(3)
        .remarks("has no shared log")
        .remarks("vellum worktree share work --meta store:");
    first.mount.umount().ok();
    let words = ["worktree", "share", "work", "--meta", "store:"];
    world.run_beside(&first.dir, &words).ok();
    hand_over(&first, &[]).code(3).remarks("is not served on this machine");
    first.mounts(&LISTEN).ok();
    hand_over(&first, &[]).code(3).remarks("no other process stands by");
    let second = Machine::attached(&world, "beta");
    second.mounts(&LISTEN).ok();
    hand_over(&first, &["elsewhere"]).code(3).remarks("no process of elsewhere stands by");
    hand_over(&second, &[]).code(3).remarks("is not served on this machine").remarks("run it on ");
    world.run(&["worktree", "hand-over", "other"]).code(2).remarks("there is no worktree 'other'");
}

/// Machines of these tests all have the name of this one.
#[test]
fn of_two_machines_with_one_name_the_address_is_asked_for() {
    let world = World::with_snapshot();
    let [first, second] = serve_twice(&world);
    let third = Machine::attached(&world, "gamma");
    third.mounts(&LISTEN).ok().says("Stands by");
    let found = clients(&first);
    let server = found["server"]["address"].as_str().unwrap();
    let standing: Vec<_> =
        found["clients"].as_array().unwrap().iter().filter(|client| client["stands_by"] != server).collect();
    let host = standing[0]["host"].as_str().unwrap();
    let address = standing.iter().find_map(|client| client["stands_by"].as_str()).unwrap();
    first.mount.sh("echo synced > file; sync file");
    hand_over(&first, &[host])
        .code(3)
        .remarks(&format!("2 processes of {host} stand by"))
        .remarks("name the address of one instead")
        .remarks(address);
    hand_over(&first, &[address]).ok().says(address);
    // Neither of them takes the worktree for its own because of the name.
    for machine in [&second, &third, &first] {
        assert_eq!(machine.mount.sh("cat file"), "synced\n");
    }
    for machine in [&first, &second, &third] {
        machine.mount.umount().ok();
    }
}

#[test]
fn a_server_that_was_stopped_goes_on_as_a_client() {
    let world = World::with_snapshot();
    let [first, second] = serve_twice(&world);
    first.mount.sh("printf before > before; printf 'one ' > open; sync open");
    let mut open = OpenFile::open(&first.mount.at("open"));
    let process = Pid::from_raw(first.mount.pid()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    // It waits until the claim has ended.
    second.mount.sh("printf after > after");
    kill_process(process, Signal::CONT).unwrap();
    assert_eq!(first.mount.sh("cat before after"), "beforeafter");
    open.append(b"two").unwrap();
    assert_eq!(second.mount.sh("cat open"), "one two");
    wait_until("it stands by", || {
        let all = clients(&second);
        all["clients"].as_array().unwrap().iter().filter(|client| client["connected"] == true).count() == 2
    });
    drop(open);
    // Handed over in order, and back again.
    hand_over(&second, &[]).ok();
    assert_eq!(second.mount.sh("cat open"), "one two");
    first.mount.umount().ok();
    second.mount.umount().ok();
}

#[test]
fn a_file_without_a_name_stays_open_when_the_worktree_is_handed_over() {
    let world = World::with_snapshot();
    let [first, second] = serve_twice(&world);
    let client = Machine::attached(&world, "client");
    client.mounts(&[]).ok();
    let [mut here, mut there] = [&first, &client].map(|machine| {
        machine.mount.sh(&format!("printf before > {}", machine.dir));
        let open = OpenFile::open(&machine.mount.at(&machine.dir));
        second.mount.sh(&format!("rm {}", machine.dir));
        open
    });
    hand_over(&first, &[]).ok();
    for open in [&mut here, &mut there] {
        open.append(b" after").unwrap();
        assert_eq!(open.read(100).unwrap(), b"before after");
    }
    drop(here);
    drop(there);
    for machine in [&client, &first, &second] {
        machine.mount.umount().ok();
    }
}

/// A process that serves without a mount.
struct Serve(Child);

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_serves_without_a_mount_stands_by_too() {
    let world = World::with_snapshot();
    let [first, second] = serve_twice(&world);
    let third = Machine::attached(&world, "third");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    command.args(["serve", "work", "--listen", "127.0.0.1:0"]);
    let serve = command.current_dir(world.path(&third.dir)).stdout(Stdio::piped()).spawn().unwrap();
    let serve = Serve(serve);
    let stands_by = |machine: &Machine<'_>| {
        let all = clients(machine)["clients"].clone();
        let mut found = all.as_array().unwrap().clone();
        found.retain(|client| client["mountpoint"] == "");
        found.first().map(|client| client["stands_by"].as_str().unwrap().to_owned())
    };
    wait_until("it stands by", || stands_by(&second).is_some());
    let address = stands_by(&second).unwrap();
    hand_over(&first, &[&address]).ok().says(&address);
    assert_eq!(clients(&first)["server"]["address"].as_str(), Some(&*address));
    first.mount.sh("echo new > new; sync new");
    drop(serve);
    // One of the two others is next.
    assert_eq!(second.mount.sh("cat new"), "new\n");
    first.mount.umount().ok();
    second.mount.umount().ok();
}

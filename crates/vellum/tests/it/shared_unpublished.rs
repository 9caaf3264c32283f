//! What clients of a shared worktree have stored by themselves and the worktree has not published: it outlives whatever is done
//! with the worktree, and is freed when nothing names it any more.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::doctor::doctor;
use crate::mounting::{Mount, detach_mount, kill, wait_until};
use crate::shared::{Cluster, kill_server};
use crate::shared_take_over::Machine;
use crate::world::{World, noise, run};

const STORED: [&str; 2] = ["--store-writes", "256K"];

fn write_durably(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

/// The sessions in the store that stand for what is not published.
pub fn unpublished_sessions(world: &World) -> Vec<String> {
    let sessions = fs::read_dir(world.tree().join(".vellum/store/sessions")).into_iter().flatten();
    let names = sessions.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("unpublished-")).collect()
}

/// Collects twice: what the first run condemns, the second one deletes.
fn collect(world: &World) {
    for _ in 0..2 {
        world.run(&["gc", "run"]).ok();
    }
}

/// Bytes of all packs of the store.
fn packed_bytes(world: &World) -> u64 {
    let listed = Command::new("find")
        .args([".vellum/store/packs", "-type", "f", "-printf", "%s\n"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(|size| size.parse::<u64>().unwrap()).sum()
}

/// A worktree `work` without a log, whose server was killed after a client had stored the file `large`, and before that was
/// published. Gives the content.
pub fn leave_unpublished(world: &World) -> Vec<u8> {
    // It is published after some seconds without a change: on a machine that is very busy, that may come first.
    for round in 0..20 {
        let name = format!("client{round}");
        let cluster = Cluster::serve(world);
        let client = cluster.client_with(&name, &STORED);
        let content = noise((1 << 20) + round);
        write_durably(&client.at("large"), &content);
        // Its own session ends by this.
        client.umount().ok();
        kill_server(&cluster);
        detach_mount(&cluster.server.path);
        fs::remove_dir(&cluster.server.path).unwrap();
        if unpublished_sessions(world).len() == 1 {
            return content;
        }
    }
    panic!("what is stored is published at once, again and again");
}

fn serve<'w>(world: &'w World, name: &str) -> Mount<'w> {
    let mount = Mount::place(world, &format!("{name}-mount"));
    let path = mount.path.to_str().unwrap();
    let words = ["mount", "--shared", name, "--listen", "127.0.0.1:0", "--allow-other", "--no-io-uring"];
    world.run(&[&words[..], &[path]].concat()).ok();
    mount
}

fn flush(mount: &Mount<'_>) {
    run(&mount.path, &["flush"], Stdio::null()).ok();
}

#[test]
fn a_fork_has_what_a_client_has_stored_and_keeps_it_for_itself() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let client = cluster.client_with("client", &STORED);
    let content = noise(3 << 20);
    write_durably(&client.at("large"), &content);
    let side = Mount::place(&world, "side");
    let words = ["fork", "side", "--mount", side.path.to_str().unwrap()];
    run(&cluster.server.path, &words, Stdio::null()).ok();
    collect(&world);
    assert!(fs::read(side.at("large")).unwrap() == content);
    // The worktree itself gives it up; nobody reads it from memory.
    client.sh("rm large");
    flush(&client);
    kill(side.pid(), "-KILL");
    wait_until("the mount is dead", || side.is_dead());
    detach_mount(&side.path);
    collect(&world);
    side.again(&["--worktree", "side", "--allow-other"]).ok();
    assert!(fs::read(side.at("large")).unwrap() == content);
    // The client's kernel may have had the removed file for a while.
    wait_until("all of it is published", || {
        flush(&client);
        flush(&side);
        unpublished_sessions(&world).is_empty()
    });
    collect(&world);
    world.run(&["verify", "--all"]).ok();
    side.umount().ok();
    side.again(&["--worktree", "side", "--allow-other"]).ok();
    assert!(fs::read(side.at("large")).unwrap() == content);
    side.umount().ok();
    client.umount().ok();
    cluster.server.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_renamed_worktree_has_what_a_client_has_stored() {
    let world = World::with_snapshot();
    let content = leave_unpublished(&world);
    let before = unpublished_sessions(&world);
    world.run(&["worktree", "rename", "work", "moved"]).ok();
    let after = unpublished_sessions(&world);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    collect(&world);
    let mount = serve(&world, "moved");
    collect(&world);
    assert!(fs::read(mount.at("large")).unwrap() == content);
    flush(&mount);
    assert_eq!(unpublished_sessions(&world).len(), 0);
    collect(&world);
    assert!(fs::read(mount.at("large")).unwrap() == content);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

/// Runs the binary in the worktree, and kills it when it makes this system call for the `number`th time; gives whether it was.
pub fn kill_at_call(world: &World, call: &str, number: u32, args: &[&str]) -> bool {
    let [trace, inject] = [format!("trace={call}"), format!("inject={call}:signal=KILL:when={number}")];
    let ran = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject])
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .args(args)
        .current_dir(world.tree())
        .output()
        .unwrap();
    !ran.status.success()
}

#[test]
fn a_rename_that_is_killed_at_any_moment_loses_nothing_of_it() {
    let world = World::with_snapshot();
    let content = leave_unpublished(&world);
    let mut names = ["work", "moved"];
    let mut kills = 0;
    for call in ["renameat2", "rename", "unlink", "unlinkat"] {
        for number in 1..10 {
            let [old, new] = names;
            let words = ["worktree", "rename", old, new];
            let was_killed = kill_at_call(&world, call, number, &words);
            // At no moment is there nothing that protects it.
            assert!(!unpublished_sessions(&world).is_empty(), "{call} {number}");
            if was_killed && world.run(&["worktree", "show", old]).code == 0 {
                world.run(&words).ok();
            }
            names = [new, old];
            if !was_killed {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 3, "{kills}");
    collect(&world);
    let mount = serve(&world, names[0]);
    collect(&world);
    assert!(fs::read(mount.at("large")).unwrap() == content);
    mount.umount().ok();
    // What the last run left, if anything, belongs to no worktree.
    let sessions = unpublished_sessions(&world);
    assert!(sessions.len() <= 1, "{sessions:?}");
    doctor(&world, &["--repair"]).ok();
    assert_eq!(unpublished_sessions(&world).len(), 0);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_worktree_with_unpublished_content_is_not_removed_and_afterwards_nothing_of_it_stays() {
    let world = World::with_snapshot();
    let content = leave_unpublished(&world);
    let refused = || {
        for more in [&[][..], &["--delete"]] {
            let words = [&["worktree", "remove", "work"], more].concat();
            world
                .run(&words)
                .code(3)
                .remarks("have stored what it has not published")
                .remarks("--end-session");
        }
    };
    refused();
    collect(&world);
    let mount = serve(&world, "work");
    assert!(fs::read(mount.at("large")).unwrap() == content);
    // What is published and in no snapshot is not given up either.
    mount.umount().ok();
    assert_eq!(unpublished_sessions(&world).len(), 0);
    world.run(&["worktree", "remove", "work"]).code(3).remarks("changes that no snapshot does");
    mount.again(&["--worktree", "work", "--allow-other"]).ok();
    let snapshot = run(&mount.path, &["snapshot", "-q", "-m", "all"], Stdio::null()).ok().out;
    mount.umount().ok();
    world.run(&["worktree", "remove", "work"]).ok();
    world.run(&["forget", snapshot.trim()]).ok();
    collect(&world);
    assert!(packed_bytes(&world) < 500_000, "{}", packed_bytes(&world));
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn unpublished_content_that_is_given_up_is_freed() {
    let world = World::with_snapshot();
    leave_unpublished(&world);
    world.run(&["gc", "run"]).ok().says("has not published");
    assert!(packed_bytes(&world) > 1_000_000);
    let refused = world.run(&["worktree", "remove", "work"]).code(3);
    // The command that the message names.
    let command = refused.err.rsplit_once("'vellum ").unwrap().1.split('\'').next().unwrap();
    world.run(&command.split(' ').collect::<Vec<_>>()).ok();
    world.run(&["worktree", "remove", "work"]).ok();
    assert_eq!(unpublished_sessions(&world).len(), 0);
    collect(&world);
    assert!(packed_bytes(&world) < 500_000, "{}", packed_bytes(&world));
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_log_is_taken_away_after_what_clients_have_stored_is_published() {
    let world = World::with_snapshot();
    let [server, client] = ["server", "client"].map(|name| Machine::attached(&world, name));
    server.mounts(&["--listen", "127.0.0.1:0", "--meta", "store:"]).ok();
    client.mounts(&STORED).ok();
    let content = noise(3 << 20);
    write_durably(&client.mount.at("large"), &content);
    kill(server.mount.pid(), "-KILL");
    wait_until("the mount is dead", || server.mount.is_dead());
    for machine in [&server, &client] {
        detach_mount(&machine.mount.path);
    }
    collect(&world);
    world.run_beside(&server.dir, &["worktree", "unshare", "work"]).ok();
    assert_eq!(unpublished_sessions(&world).len(), 0);
    collect(&world);
    server.mounts(&["--listen", "127.0.0.1:0"]).ok();
    assert!(fs::read(server.mount.at("large")).unwrap() == content);
    server.mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_clients_have_stored_is_published_when_the_worktree_is_handed_over() {
    let world = World::with_snapshot();
    let [first, next, client] = ["server", "next", "client"].map(|name| Machine::attached(&world, name));
    let listen = ["--listen", "127.0.0.1:0"];
    first.mounts(&[&listen[..], &["--meta", "store:"]].concat()).ok();
    next.mounts(&listen).ok().says("Stands by");
    client.mounts(&STORED).ok();
    let content = noise(3 << 20);
    write_durably(&client.mount.at("large"), &content);
    world.run_beside(&first.dir, &["worktree", "hand-over", "work"]).ok();
    collect(&world);
    for machine in [&first, &next, &client] {
        assert!(fs::read(machine.mount.at("large")).unwrap() == content);
    }
    write_durably(&client.mount.at("more"), &noise(2 << 20));
    world.run_beside(&next.dir, &["worktree", "hand-over", "work"]).ok();
    collect(&world);
    for machine in [&first, &next, &client] {
        assert!(fs::read(machine.mount.at("large")).unwrap() == content);
        assert!(fs::read(machine.mount.at("more")).unwrap() == noise(2 << 20));
    }
    for machine in [&client, &next, &first] {
        machine.mount.umount().ok();
    }
    assert_eq!(unpublished_sessions(&world).len(), 0);
    world.run(&["verify", "--all"]).ok();
}

/// Another machine takes over a worktree that has no log: what was synced and not published stays on the first machine, and so do
/// the chunks that it names.
#[test]
fn what_is_left_on_a_machine_keeps_what_clients_have_stored_until_it_is_a_worktree() {
    let world = World::with_snapshot();
    // One that takes clients, and one that does not.
    for (round, more) in
        [(0, &["--shared", "work", "--listen", "127.0.0.1:0"][..]), (1, &["--worktree", "work"][..])]
    {
        let [first, next, client] =
            ["first", "next", "client"].map(|name| Machine::attached(&world, &format!("{name}{round}")));
        let path = first.mount.path.to_str().unwrap();
        let words = ["--json", "mount", "--shared", "work", "--no-io-uring", "--listen", "127.0.0.1:0", path];
        let served = world.run_beside(&first.dir, &words).ok();
        let report: serde_json::Value = serde_json::from_str(&served.out).unwrap();
        let address = report["serves"].as_str().unwrap().to_owned();
        client.mounts(&[&["--server", &address], &STORED[..]].concat()).ok();
        let content = noise((3 << 20) + round);
        write_durably(&client.mount.at("left"), &content);
        kill(first.mount.pid(), "-KILL");
        wait_until("the mount is dead", || first.mount.is_dead());
        for machine in [&first, &client] {
            detach_mount(&machine.mount.path);
        }
        let path = next.mount.path.to_str().unwrap();
        world.run_beside(&next.dir, &[&["mount"], more, &["--no-io-uring", path]].concat()).ok();
        assert!(!next.mount.at("left").exists());
        next.mount.sh("echo new > new");
        flush(&next.mount);
        assert_eq!(unpublished_sessions(&world).len(), 1, "{round}");
        collect(&world);
        let kept = format!("kept{round}");
        doctor(&world, &[]).code(1).says("unpublished-content").says("vellum worktree keep work NAME");
        world.run_beside(&first.dir, &["worktree", "keep", "work", &kept]).ok();
        assert_eq!(unpublished_sessions(&world).len(), 1, "{round}");
        collect(&world);
        let path = first.mount.path.to_str().unwrap();
        world.run_beside(&first.dir, &["mount", "--worktree", &kept, path]).ok();
        assert!(fs::read(first.mount.at("left")).unwrap() == content);
        flush(&first.mount);
        assert_eq!(unpublished_sessions(&world).len(), 0, "{round}");
        collect(&world);
        assert!(fs::read(first.mount.at("left")).unwrap() == content);
        first.mount.umount().ok();
        next.mount.umount().ok();
        world.run(&["verify", "--all"]).ok();
    }
}

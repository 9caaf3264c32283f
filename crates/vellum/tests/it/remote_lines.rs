//! Several processes at one worktree or one remote in a service, and a mount that was cut off from it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use vellum_testkit::{LyingS3, TcpRelay};

use crate::mounting::{sh, wait_until};
use crate::remote::{init, world_with_credentials};
use crate::remote_faults::{attach, finish, spawn_in, world_with_remote};
use crate::world::{Ran, copy_dir, noise};

/// Processes at one worktree, and snapshots that each of them takes.
const PROCESSES: usize = 16;
const SNAPSHOTS: usize = 3;

#[test]
fn snapshots_of_many_processes_in_one_worktree_are_all_there() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    init(&world, &server.store_url("store")).ok();
    std::thread::scope(|scope| {
        for process in 0..PROCESSES {
            let world = &world;
            scope.spawn(move || {
                for round in 0..SNAPSHOTS {
                    world.write(&format!("file-{process}"), format!("{process} {round}\n"));
                    world.run_at_home(&["snapshot", "-m", &format!("{process}-{round}")]).ok();
                }
            });
        }
    });
    let listed = world.run_at_home(&["history", "--json", "-n", "1000"]).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let snapshots = listed["snapshots"].as_array().unwrap();
    let notes: BTreeSet<_> = snapshots.iter().map(|item| item["note"].as_str().unwrap()).collect();
    assert_eq!((snapshots.len(), notes.len()), (PROCESSES * SNAPSHOTS, PROCESSES * SNAPSHOTS));
    world.run_at_home(&["status"]).ok();
    for process in 0..PROCESSES {
        let last = world.run_at_home(&["cat", "HEAD", &format!("file-{process}")]).ok();
        assert_eq!(last.out, format!("{process} {}\n", SNAPSHOTS - 1));
    }
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn one_history_that_two_machines_push_at_once_is_there_once() {
    let server = LyingS3::start().unwrap();
    let world = world_with_remote(&server.store_url("unused"));
    for round in 0..3 {
        let name = format!("hub-{round}");
        let url = server.store_url(&name);
        world.run_at_home(&["remote", "add", &name, &url, "--credentials", "test"]).ok();
        let twin = format!("twin-{round}");
        copy_dir(&world.tree(), &world.path(&twin));
        // The first round makes the volume there, too; the others have something there already.
        if round > 0 {
            world.run_at_home(&["push", &name]).ok();
            world.write("new", noise(300_000 + round));
            world.run_at_home(&["snapshot", "-m", "new"]).ok();
            fs::remove_dir_all(world.path(&twin)).unwrap();
            copy_dir(&world.tree(), &world.path(&twin));
        }
        let pushes = ["tree", &twin].map(|dir| spawn_in(&world, dir, &["push", &name, "--tags"]));
        for push in pushes {
            let ran = finish(push);
            // One that lost the race to make the volume says so, and is repeated.
            if ran.code != 0 {
                assert!(round == 0 && ran.err.contains("error:"), "{}", ran.err);
            }
        }
        for dir in ["tree", &twin] {
            world.run_beside(dir, &["push", &name, "--tags"]).ok().says("lacks no snapshot");
        }
        let reader = format!("reader-{round}");
        attach(&world, &reader, &url);
        world.run_beside(&reader, &["verify", "--all"]).ok();
        world.run_beside(&reader, &["restore", "main"]).ok();
        assert_eq!(fs::read(world.path(&reader).join("dir/1")).unwrap(), noise(90_000));
        // What both sent is stored twice until it is collected.
        world.run_beside(&reader, &["gc", "run"]).ok();
        world.run_beside(&reader, &["gc", "run"]).ok().says("Nothing to free");
        world.run_beside(&reader, &["verify", "--all"]).ok();
    }
}

/// Takes mounts away when a test ends, however it ends.
struct Mountpoints(Vec<std::path::PathBuf>);

impl Drop for Mountpoints {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(path).output();
        }
    }
}

#[test]
fn a_mount_that_was_cut_off_from_its_service_and_taken_over_loses_nothing() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    let relay = TcpRelay::start(&url);
    let world = world_with_credentials();
    init(&world, relay.store_url()).ok();
    world.write("shared", "early\n");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    attach(&world, "other", &url);
    let paths = ["work", "there"].map(|name| world.path(name));
    let mountpoints = Mountpoints(paths.to_vec());
    let [here, there] = paths.each_ref().map(|path| path.display().to_string());
    paths.iter().for_each(|path| fs::create_dir(path).unwrap());
    // Names that it knows are in its cache.
    let args = ["mount", "--lease-term", "2", &here];
    let mut mount = world.command_at_home(&args);
    Ran::of(&args, mount.env("XDG_CACHE_HOME", world.path("cache")).output().unwrap()).ok();
    sh(Path::new(&here), "echo published > new; sync new");
    world.run_beside("work", &["flush"]).ok();

    relay.hold();
    // It can be worked with all the while.
    sh(Path::new(&here), "echo lost > unpublished; sync unpublished; [ $(cat new) = published ]");
    let take_over = ["mount", "--worktree", "work", "--lease-term", "2", &there];
    wait_until("its lease has ended", || {
        let ran = world.run_beside("other", &take_over);
        assert!(ran.code == 0 || ran.err.contains("belongs to process"), "{}", ran.err);
        ran.code == 0
    });
    sh(
        Path::new(&there),
        "[ $(cat new) = published ]; [ ! -e unpublished ]; echo late > shared; sync shared",
    );
    world.run_beside("there", &["flush"]).ok();

    relay.release();
    wait_until("it notices that it was taken over", || {
        world.run_beside("work", &["status"]).err.contains("taken over by process")
    });
    let refused = sh(Path::new(&here), "(echo stale > shared) 2>&1 || true");
    assert!(refused.contains("Read-only file system"), "{refused}");
    sh(Path::new(&here), "[ $(cat unpublished) = lost ]");
    world.run_beside("work", &["snapshot"]).code(2).remarks("worktree keep work NEW");
    world.run_at_home(&["umount", &here]).code(1).remarks("worktree keep work NEW");
    sh(Path::new(&there), "[ $(cat shared) = late ]");

    world.run_at_home(&["worktree", "keep", "work", "rescued"]).ok();
    world.run_at_home(&["mount", "--worktree", "rescued", &here]).ok();
    sh(
        Path::new(&here),
        "[ $(cat unpublished) = lost ]; [ $(cat shared) = early ]; [ $(cat new) = published ]",
    );
    world.run_beside("work", &["snapshot", "--wait", "-m", "rescued"]).ok();
    world.run_at_home(&["umount", &here]).ok();
    world.run_at_home(&["umount", &there]).ok();
    // Both are in the service, for everybody.
    for (worktree, path, content) in
        [("rescued", "unpublished", "lost\n"), ("rescued", "shared", "early\n"), ("work", "shared", "late\n")]
    {
        let mountpoint = world.path("look").display().to_string();
        let _ = fs::create_dir(&mountpoint);
        let looking = Mountpoints(vec![mountpoint.clone().into()]);
        world.run_beside("other", &["mount", "--worktree", worktree, &mountpoint]).ok();
        assert_eq!(fs::read_to_string(Path::new(&mountpoint).join(path)).unwrap(), content, "{worktree}");
        world.run_beside("other", &["umount", &mountpoint]).ok();
        drop(looking);
    }
    world.run_beside("other", &["verify", "--all"]).ok();
    drop(mountpoints);
}

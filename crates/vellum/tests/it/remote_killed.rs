//! Commands that are killed at each of their requests to a service: the same command, given again, finishes the work, nothing
//! is damaged, and what is left over is collected.

use std::fs;
use std::time::Duration;

use vellum_testkit::{LyingS3, S3Lie, S3Match, TcpRelay, WebServer};

use crate::remote::world_with_credentials;
use crate::remote_faults::{attach, spawn_in, world_with_remote};
use crate::world::{Ran, World, copy_dir, noise};

/// Most requests of any command here: a command that takes more does not come to an end.
const REQUESTS_MAX: u32 = 120;

/// A command that is killed.
struct KilledCommand<'a> {
    server: &'a LyingS3,
    world: &'a World,
    /// Where it runs, beside the worktree.
    dir: &'a str,
    args: &'a [&'a str],
}

impl KilledCommand<'_> {
    /// Starts it, and kills it when it waits for the reply to this request. False: it came to its end before.
    fn kill_at_request(&self, number: u32) -> bool {
        let before = self.server.count_told_lies();
        // All further ones get no reply either: reads that take long are sent twice.
        let requests = S3Match { method: "ANY", key: String::new(), skip: number, times: u32::MAX };
        self.server.add_lie(requests, S3Lie::Hang);
        let mut child = spawn_in(self.world, self.dir, self.args);
        let is_reached = || self.server.count_told_lies() > before;
        while !is_reached() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        self.server.tell_truth();
        if !is_reached() {
            Ran::of(self.args, output).ok();
        }
        is_reached()
    }

    /// Kills it at one request after the other, and calls `finish` after each time, until it is not killed any more.
    /// Returns how often it was.
    fn kill_at_each_request(&self, mut begin: impl FnMut(u32), finish: impl Fn(u32)) -> u32 {
        for number in 0..REQUESTS_MAX {
            begin(number);
            if !self.kill_at_request(number) {
                return number;
            }
            finish(number);
        }
        panic!("{:?} goes on after {REQUESTS_MAX} requests", self.args);
    }
}

/// Nothing is damaged, and what killed commands left can be collected.
fn check_store(world: &World, dir: &str) {
    world.run_beside(dir, &["verify", "--all"]).ok();
    world.run_beside(dir, &["gc", "run"]).ok();
    world.run_beside(dir, &["gc", "run"]).ok().says("Nothing to free");
    world.run_beside(dir, &["verify", "--all"]).ok();
}

#[test]
fn a_push_that_is_killed_at_any_request_is_finished_by_the_next() {
    let server = LyingS3::start().unwrap();
    let world = world_with_remote(&server.store_url("unused"));
    for number in 0..REQUESTS_MAX {
        let name = format!("origin-{number}");
        let url = server.store_url(&name);
        world.run_at_home(&["remote", "add", &name, &url, "--credentials", "test"]).ok();
        let args = ["push", &name, "--tags"];
        let push = KilledCommand { server: &server, world: &world, dir: "tree", args: &args };
        let is_killed = push.kill_at_request(number);
        if is_killed {
            world.run_at_home(&args).ok();
        }
        world.run_at_home(&args).ok().says("lacks no snapshot");
        let dir = format!("clone-{number}");
        world.run_beside("", &["clone", &url, &dir, "--plain", "--credentials", "test"]).ok();
        assert_eq!(fs::read(world.path(&dir).join("dir/1")).unwrap(), noise(90_000), "killed at {number}");
        if number.is_multiple_of(5) || !is_killed {
            check_store(&world, &dir);
        }
        fs::remove_dir_all(world.path(&dir)).unwrap();
        if !is_killed {
            assert!(number >= 10, "{number} requests");
            assert_eq!(server.count_unfinished_uploads(), 0);
            return;
        }
    }
    panic!("the push goes on after {REQUESTS_MAX} requests");
}

#[test]
fn a_pull_that_is_killed_at_any_request_is_finished_by_the_next() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("hub");
    let world = world_with_remote(&url);
    world.run_at_home(&["push"]).ok();
    attach(&world, "other", &url);
    let pull = KilledCommand { server: &server, world: &world, dir: "tree", args: &["pull"] };
    let begin = |number: u32| {
        let content = noise(200_000 + number as usize);
        fs::write(world.path("other/new"), &content[content.len() - 100_000..]).unwrap();
        world.run_beside("other", &["snapshot", "-m", &format!("round {number}")]).ok();
    };
    let finish = |number: u32| {
        world.run_at_home(&["pull"]).ok();
        world.run_at_home(&["history", "--all"]).ok().says(&format!("round {number}"));
        let differing = world.run_at_home(&["cat", "origin/other", "new"]).ok();
        assert!(differing.raw == fs::read(world.path("other/new")).unwrap(), "killed at {number}");
        world.run_at_home(&["verify", "--all"]).ok();
    };
    let count = pull.kill_at_each_request(begin, finish);
    assert!(count >= 4, "{count} requests");
    check_store(&world, "tree");
}

#[test]
fn a_clone_that_is_killed_at_any_request_is_made_by_the_next() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("hub");
    let world = world_with_remote(&url);
    world.run_at_home(&["push"]).ok();
    attach(&world, "keeper", &url);
    let args = ["clone", &url, "clone", "--plain", "--credentials", "test"];
    let clone = KilledCommand { server: &server, world: &world, dir: "", args: &args };
    let remove = |number: u32| {
        if number > 0 {
            fs::remove_dir_all(world.path("clone")).unwrap();
            world.run_beside("keeper", &["worktree", "remove", "clone"]).ok();
        }
    };
    let finish = |number: u32| {
        let again = world.run_beside("", &args);
        // Once the worktree is there, it is only its files that are missing.
        if again.code != 0 {
            let hint = again.code(3).remarks("is a worktree already").err;
            let hint = hint.split('\'').find(|part| part.starts_with("vellum -C")).unwrap();
            let hint: Vec<_> =
                hint.split(' ').skip(1).map(|word| if word == "SNAP" { "main" } else { word }).collect();
            world.run_beside("", &hint).ok();
        }
        assert_eq!(fs::read(world.path("clone/dir/1")).unwrap(), noise(90_000), "killed at {number}");
        world.run_beside("clone", &["status"]).ok();
        world.run_beside("clone", &["verify", "--all"]).ok();
        world.run_beside("clone", &["snapshot"]).ok();
        world.run_at_home(&["remote", "show"]).ok();
        let list = world.run_beside("clone", &["worktree", "list", "--json"]).ok();
        assert_eq!(list.out.matches("\"name\": \"clone\"").count(), 1, "{}", list.out);
    };
    let count = clone.kill_at_each_request(remove, finish);
    assert!(count >= 10, "{count} requests");
    check_store(&world, "clone");
}

#[test]
fn a_clone_whose_directory_was_deleted_is_made_again_under_its_name() {
    let world = World::with_snapshot();
    let store = world.path("store").display().to_string();
    world.run(&["remote", "add", "hub", &store]).ok();
    world.run(&["push", "hub"]).ok();
    let clone = |args: &[&str]| world.run_beside("", &[&["clone", &store, "--plain"], args].concat());
    let _ = fs::create_dir(world.path("elsewhere"));
    for _ in 0..2 {
        clone(&["copy"]).ok().says("is now the worktree 'copy'");
        fs::write(world.path("copy/new"), "unsaved").unwrap();
        fs::remove_dir_all(world.path("copy")).unwrap();
    }
    // In another place, it may be that the first one comes back, from a disk that is not mounted.
    let refused = clone(&["elsewhere/copy"]).code(2);
    refused.remarks(&format!(
        "the worktree 'copy' exists already, and its directory {}",
        world.path("copy").display()
    ));
    assert!(!world.path("elsewhere/copy").exists());
    clone(&["elsewhere/copy", "--name", "other"]).ok();
    world.run_beside("elsewhere/copy", &["worktree", "remove", "copy"]).ok();
    clone(&["again", "--name", "copy"]).ok();
    world.run_beside("again", &["status"]).ok();
    world.run_beside("again", &["verify", "--all"]).ok();
    // One that is there is not taken over.
    clone(&["elsewhere/again", "--name", "copy"]).code(3).remarks("has a worktree 'copy' already");
}

/// How much further each clone of a published store comes before it is killed: less than a request has.
const BYTES_MORE: u64 = 120;

#[test]
fn a_clone_of_a_published_store_that_is_killed_at_any_moment_is_made_by_the_next() {
    let world = World::empty();
    fs::create_dir(world.path("served")).unwrap();
    let store = world.path("served/photos").display().to_string();
    world.run_at_home(&["init", "--plain", "--name", "main", "--store", &store]).ok();
    world.write("file", noise(400_000));
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["publish"]).ok();
    let server = WebServer::start(&world.path("served"));
    let relay = TcpRelay::start(&server.store_url("photos"));
    let args = ["clone", relay.store_url(), "clone", "--plain"];
    for step in 0.. {
        relay.hold_after(1 + step * BYTES_MORE);
        let mut child = spawn_in(&world, "", &args);
        while !relay.is_held() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_killed = relay.is_held();
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        relay.release();
        if is_killed {
            world.run_beside("", &args).ok();
        } else {
            Ran::of(&args, output).ok();
        }
        assert!(fs::read(world.path("clone/file")).unwrap() == noise(400_000), "killed at step {step}");
        world.run_beside("clone", &["status"]).ok();
        world.run_beside("clone", &["verify", "--all"]).ok();
        world.run_beside("clone", &["pull"]).ok();
        if !is_killed {
            assert!(step >= 8, "{step} steps");
            break;
        }
        fs::remove_dir_all(world.path("clone")).unwrap();
    }
}

/// A worktree `tree` of a volume in a service, with a snapshot, and another machine's `other`.
fn world_of_two(server: &LyingS3) -> World {
    let world = world_with_credentials();
    let url = server.store_url("shared");
    world.run_at_home(&["init", "--name", "tree", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one\n");
    world.run_at_home(&["snapshot", "-m", "start"]).ok();
    let added = world.run_at_home(&["device", "add", "other", "--json"]).ok();
    let added: serde_json::Value = serde_json::from_str(&added.out).unwrap();
    fs::write(world.path("code"), added["code"].as_str().unwrap()).unwrap();
    let clone = ["clone", &url, "other", "--credentials", "test", "--passphrase-file", "code"];
    world.run_beside("", &[&clone[..], &["--name", "other.tree"]].concat()).ok();
    world
}

#[test]
fn a_merge_that_is_killed_at_any_request_is_made_by_the_next() {
    let server = LyingS3::start().unwrap();
    let world = world_of_two(&server);
    let merge = KilledCommand { server: &server, world: &world, dir: "tree", args: &["merge", "--all"] };
    let begin = |number: u32| {
        fs::write(world.path("other").join(format!("there-{number}")), "there\n").unwrap();
        world.run_beside("other", &["snapshot"]).ok();
        world.write(&format!("here-{number}"), "here\n");
    };
    let finish = |number: u32| {
        world.run_at_home(&["merge", "--all"]).ok();
        let names = (0..=number).flat_map(|number| [format!("there-{number}"), format!("here-{number}")]);
        names.into_iter().for_each(|name| assert!(world.has(&name), "killed at {number}: no {name}"));
    };
    let count = merge.kill_at_each_request(begin, finish);
    assert!(count >= 8, "{count} requests");
    world.run_at_home(&["status"]).ok();
    world.run_beside("other", &["merge", "--all"]).ok();
    assert!(world.path("other").join(format!("here-{count}")).exists());
    check_store(&world, "tree");
}

#[test]
fn a_change_of_the_key_that_is_killed_at_any_request_is_finished_by_the_next() {
    let server = LyingS3::start().unwrap();
    let world = world_of_two(&server);
    let rotate = KilledCommand { server: &server, world: &world, dir: "tree", args: &["device", "rotate"] };
    let begin = |number: u32| world.write("a", format!("round {number}\n"));
    let finish = |number: u32| {
        // The key may be that before or after: everybody reads and writes all the same.
        fs::write(world.path("other/b"), format!("round {number}\n")).unwrap();
        world.run_beside("other", &["snapshot"]).ok();
        world.run_at_home(&["device", "rotate"]).ok();
        world.run_at_home(&["snapshot", "-m", "after"]).ok();
        world.run_beside("other", &["cat", "tree", "a"]).ok().says(&format!("round {number}\n"));
        world.run_at_home(&["cat", "other.tree", "b"]).ok().says(&format!("round {number}\n"));
    };
    let count = rotate.kill_at_each_request(begin, finish);
    assert!(count >= 8, "{count} requests");
    check_store(&world, "other");
}

#[test]
fn a_collection_that_is_killed_at_any_request_is_finished_by_the_next() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    world.write("kept", noise(150_000));
    world.write("dropped", noise(300_000));
    world.run_at_home(&["snapshot"]).ok();
    world.remove("dropped");
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["forget", "HEAD~1"]).ok();
    // Each time there is the same to collect: nothing that the last one did is there any more.
    let objects = server.copy_objects();
    copy_dir(&world.tree(), &world.path("kept-tree"));
    let collect = KilledCommand { server: &server, world: &world, dir: "tree", args: &["gc", "run"] };
    let begin = |_| {
        server.restore_objects(&objects);
        fs::remove_dir_all(world.tree()).unwrap();
        copy_dir(&world.path("kept-tree"), &world.tree());
    };
    let finish = |number: u32| {
        world.run_at_home(&["verify", "--all"]).ok();
        world.run_at_home(&["gc", "run"]).ok();
        let found = world.run_at_home(&["cat", "HEAD", "kept"]).ok();
        assert!(found.raw == noise(150_000), "killed at {number}");
        if number.is_multiple_of(5) {
            check_store(&world, "tree");
        }
        let stored: usize = server.copy_objects().values().map(Vec::len).sum();
        assert!(stored < 200_000, "{stored} bytes are left");
    };
    let count = collect.kill_at_each_request(begin, finish);
    assert!(count >= 8, "{count} requests");
}

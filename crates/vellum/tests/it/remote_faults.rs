//! Services and commands that fail at the worst moment.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Stdio};

use vellum_testkit::{GeneratedObjects, LyingS3, S3Failure, S3Lie, S3Match};

use crate::mounting::wait_until;
use crate::remote::world_with_credentials;
use crate::world::{Ran, World, noise};

/// Starts the binary in a directory beside the worktree.
pub fn spawn_in(world: &World, dir: &str, args: &[&str]) -> Child {
    let mut command = world.command_at_home(args);
    command.current_dir(world.path(dir)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits for the end of what `spawn_in` started.
pub fn finish(child: Child) -> Ran {
    Ran::of(&["in the background"], child.wait_with_output().unwrap())
}

/// All requests of one kind for objects below a folder.
pub fn requests_for(method: &'static str, key: &str) -> S3Match {
    S3Match { method, key: key.to_owned(), skip: 0, times: u32::MAX }
}

/// A directory beside the worktree that is attached to the store at `url`, as on another machine.
pub fn attach(world: &World, dir: &str, url: &str) {
    fs::create_dir_all(world.path(dir)).unwrap();
    let init = ["init", "--plain", "--name", dir, "--store", url, "--credentials", "test"];
    world.run_beside(dir, &init).ok();
}

/// A worktree with two snapshots, of which the first is tagged, and with a remote at `url`.
pub fn world_with_remote(url: &str) -> World {
    let world = world_with_credentials();
    world.run_at_home(&["init", "--plain", "--name", "main"]).ok();
    for number in 0..6 {
        world.write(&format!("dir/{number}"), noise(150_000 + number));
    }
    world.run_at_home(&["snapshot", "-m", "one", "--tag", "first"]).ok();
    world.write("dir/1", noise(90_000));
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    world.run_at_home(&["remote", "add", "origin", url, "--credentials", "test"]).ok();
    world
}

#[test]
fn a_collection_waits_for_a_push_and_the_push_for_nothing() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("hub");
    let world = world_with_remote(&url);
    world.run_at_home(&["push"]).ok();
    attach(&world, "other", &url);
    world.write("dir/new", noise(200_000));
    world.run_at_home(&["snapshot", "-m", "three"]).ok();
    // Its packs are there, and nothing names them for a while.
    let busy =
        S3Failure { headers: vec![("retry-after", "4".to_owned())], ..S3Failure::new(503, "SlowDown") };
    server.add_lie(S3Match { times: 1, ..requests_for("PUT", "hub/index/") }, S3Lie::Fail(busy));
    let _ = server.take_requests();
    let push = spawn_in(&world, "tree", &["push"]);
    wait_until("the push has sent its packs", || {
        server
            .take_requests()
            .iter()
            .any(|request| request.method == "PUT" && request.key.contains("/index/"))
    });
    let collected = world.run_beside("other", &["gc", "run"]).ok();
    assert!(
        collected.out.contains("Freed nothing") || collected.err.contains("Freed nothing"),
        "{}",
        collected.out
    );
    finish(push).ok();
    world.run_beside("other", &["gc", "run"]).ok();
    world.run_beside("other", &["verify", "--all"]).ok();
    world.run_beside("other", &["restore", "main"]).ok();
    assert_eq!(fs::read(world.path("other/dir/new")).unwrap(), noise(200_000));
}

#[test]
fn two_who_create_a_volume_in_one_folder_at_once_get_one() {
    for round in 0..4 {
        let server = LyingS3::start().unwrap();
        let url = server.store_url("one");
        let world = world_with_credentials();
        let dirs = ["ann", "bob", "cat"];
        let begin = |dir: &&'static str| {
            fs::create_dir_all(world.path(dir)).unwrap();
            let init = ["init", "--plain", "--name", dir, "--store", &url, "--credentials", "test"];
            spawn_in(&world, dir, &init)
        };
        let ran: Vec<_> = dirs.iter().map(begin).collect();
        let ends: Vec<_> = ran.into_iter().map(finish).collect();
        let made: Vec<_> =
            dirs.iter().zip(&ends).filter(|(_, ran)| ran.code == 0).map(|(dir, _)| *dir).collect();
        assert!(!made.is_empty(), "round {round}: {}", ends[0].err);
        // Whoever lost says so, leaves nothing, and attaches when asked again.
        for (dir, ran) in dirs.iter().zip(&ends).filter(|(_, ran)| ran.code != 0) {
            assert!(ran.err.contains("error:"), "{}", ran.err);
            assert!(!world.path(dir).join(".vellum").exists(), "{dir}: {}", ran.err);
            attach(&world, dir, &url);
        }
        for dir in dirs {
            fs::write(world.path(dir).join("file"), dir).unwrap();
            world.run_beside(dir, &["snapshot", "-m", dir]).ok();
        }
        for dir in dirs {
            let history = world.run_beside(dir, &["history", "--all"]).ok();
            assert!(dirs.iter().all(|note| history.out.contains(note)), "{}", history.out);
        }
        world.run_beside("ann", &["verify", "--all"]).ok();
    }
}

#[test]
fn snapshots_of_many_machines_at_once_are_all_there() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("many");
    let world = world_with_credentials();
    let machines: Vec<_> = (0..5).map(|number| format!("machine-{number}")).collect();
    machines.iter().for_each(|machine| attach(&world, machine, &url));
    std::thread::scope(|scope| {
        for machine in &machines {
            let world = &world;
            scope.spawn(move || {
                for round in 0..4 {
                    fs::write(world.path(machine).join("file"), format!("{machine} {round}")).unwrap();
                    fs::write(world.path(machine).join("same"), noise(50_000 + round)).unwrap();
                    world.run_beside(machine, &["snapshot", "-m", &format!("{machine}-{round}")]).ok();
                    if round == 2 {
                        world.run_beside(machine, &["tag", "add", &format!("tag-{machine}"), "HEAD"]).ok();
                    }
                }
            });
        }
    });
    let listed = world.run_beside("machine-0", &["history", "--all", "--json", "-n", "1000"]).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let notes: BTreeSet<_> =
        listed["snapshots"].as_array().unwrap().iter().map(|item| item["note"].as_str().unwrap()).collect();
    assert_eq!(notes.len(), 20, "{notes:?}");
    let tags = world.run_beside("machine-0", &["tag", "list"]).ok();
    assert!(machines.iter().all(|machine| tags.out.contains(&format!("tag-{machine}"))), "{}", tags.out);
    world.run_beside("machine-3", &["verify", "--all"]).ok();
}

#[test]
fn a_service_that_asks_for_fewer_requests_gets_fewer_and_all_is_done() {
    let server = LyingS3::start().unwrap();
    let world = world_with_remote(&server.store_url("slow"));
    let soon =
        S3Failure { headers: vec![("retry-after", "1".to_owned())], ..S3Failure::new(503, "SlowDown") };
    server.add_lie(S3Match { times: 4, ..requests_for("PUT", "slow/") }, S3Lie::Fail(soon));
    world.run_at_home(&["push"]).ok().says("Sent 2 snapshots");
    server.tell_truth();
    attach(&world, "other", &server.store_url("slow"));
    world.run_beside("other", &["verify", "--all"]).ok();
}

#[test]
fn a_ref_that_is_older_than_seen_is_not_used() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let requests = server.take_requests();
    let key = requests.iter().rfind(|request| request.key.contains("/refs/worktree/")).unwrap().key.clone();
    let old = server.read_object(&key).unwrap();
    world.write("a", "two");
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    let new = server.read_object(&key).unwrap();
    server.overwrite_object(&key, &old);
    world.run_at_home(&["cat", "HEAD", "a"]).code(2).remarks("older");
    world.write("a", "three");
    world.run_at_home(&["snapshot", "-m", "three"]).code(2).remarks("older");
    server.overwrite_object(&key, &new);
    world.run_at_home(&["snapshot", "-m", "three"]).ok();
    assert_eq!(world.run_at_home(&["cat", "HEAD~1", "a"]).ok().out, "two");
}

#[test]
fn a_remote_that_was_rolled_back_is_not_used_until_it_is_as_before() {
    let server = LyingS3::start().unwrap();
    let world = world_with_remote(&server.store_url("hub"));
    world.run_at_home(&["push"]).ok();
    let keys = server.list_keys();
    let key = keys.iter().find(|key| key.starts_with("hub/refs/worktree/")).unwrap();
    let old = server.read_object(key).unwrap();
    world.write("a", "newer");
    world.run_at_home(&["snapshot", "-m", "three"]).ok();
    world.run_at_home(&["push"]).ok();
    let new = server.read_object(key).unwrap();
    server.overwrite_object(key, &old);
    for command in ["push", "pull"] {
        world.run_at_home(&[command]).code(2).remarks("older");
    }
    server.overwrite_object(key, &new);
    world.run_at_home(&["push"]).ok().says("lacks no snapshot");
    world.run_at_home(&["pull"]).ok();
}

#[test]
fn thousands_of_foreign_objects_are_left_out() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    // More than three pages of a listing, before, between and after what is the volume's.
    for number in 0..1_500 {
        for folder in ["index/0", "packs/zz", "refs/tag/../..", "REFS/worktree", "sessions/foreign"] {
            server.overwrite_object(&format!("store/{folder}/{number}"), b"of somebody else");
        }
    }
    world.run_at_home(&["history", "--all"]).ok().says("one");
    assert_eq!(world.run_at_home(&["cat", "HEAD", "a"]).ok().out, "one");
    world.write("a", "two");
    world.run_at_home(&["snapshot", "-m", "two", "--tag", "t"]).ok();
    let tags = world.run_at_home(&["tag", "list"]).ok();
    assert_eq!(tags.lines().len(), 1, "{}", tags.out);
    attach(&world, "other", &url);
    world.run_beside("other", &["restore", "t"]).ok();
    assert_eq!(fs::read_to_string(world.path("other/a")).unwrap(), "two");
}

/// Runs the binary in the worktree; gives the most memory that it had, KiB.
fn measure_peak_memory(world: &World, args: &[&str]) -> (Ran, u64) {
    let child = spawn_in(world, "tree", args);
    let status = format!("/proc/{}/status", child.id());
    // The peak never falls: the last look before the end is near enough.
    let read_peak = || {
        let text = fs::read_to_string(&status).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let mut peak = 0;
    while let Some(now) = read_peak() {
        peak = now;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    (finish(child), peak)
}

/// A volume in a bucket in which others have this many objects, in and beside its folders.
fn check_bucket_with_foreign_objects(count: u64) {
    let server = LyingS3::start().unwrap();
    server.set_page_size(1000);
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one");
    world.run_at_home(&["snapshot", "-m", "one", "--tag", "first"]).ok();
    let long = "x".repeat(1025 - "store/refs/tag/0123456789".len());
    let folders = ["packs/00/", "snapshots/", "index/f", "refs/tag/", "REFS/tag/", "zz/../"];
    for (folder, suffix) in folders.into_iter().zip(["", "/..", ".PACK", &long, "", "."]) {
        server.add_generated_objects(GeneratedObjects {
            prefix: format!("store/{folder}"),
            suffix: suffix.to_owned(),
            count: count / folders.len() as u64,
        });
    }
    for args in [&["history"][..], &["tag", "list"], &["cat", "HEAD", "a"], &["gc", "plan"]] {
        let (ran, peak) = measure_peak_memory(&world, args);
        ran.code(0);
        assert!(peak < 256 << 10, "{args:?}: {peak} KiB");
    }
    let (verified, peak) = measure_peak_memory(&world, &["verify", "--all"]);
    let told = format!("{}", count / folders.len() as u64 * folders.len() as u64);
    let verified = verified.code(0);
    let digits: String = verified.err.chars().filter(char::is_ascii_digit).collect();
    assert!(digits.contains(&told), "{}", verified.err);
    assert!(peak < 256 << 10, "{peak} KiB");
}

#[test]
fn very_many_foreign_objects_take_no_memory_and_are_reported() {
    check_bucket_with_foreign_objects(30_000);
}

#[test]
#[ignore = "long"]
fn ten_million_foreign_objects_take_no_memory_and_are_reported() {
    check_bucket_with_foreign_objects(10_000_000);
}

#[test]
fn objects_of_others_beside_those_of_a_volume_are_left_out_and_reported() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    world.write("a", "one");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let long = "x".repeat(900);
    for key in ["packs/ab/not-a-pack", "snapshots/nonsense", "index/README", "refs/tag/..name", &long] {
        server.overwrite_object(&format!("store/{key}"), b"of somebody else");
    }
    world.run_at_home(&["history"]).ok().says("one");
    world.run_at_home(&["gc", "run"]).ok();
    assert_eq!(world.run_at_home(&["cat", "HEAD", "a"]).ok().out, "one");
    server.overwrite_object("store/refs/tag/../../etc", b"of somebody else");
    server.overwrite_object(&format!("store/snapshots/{}", "x/".repeat(500) + "x"), b"of somebody else");
    server.overwrite_object("store/SNAPSHOTS/one", b"of somebody else");
    let verified = world.run_at_home(&["verify", "--all"]).ok();
    verified.remarks("8 other objects in the store").remarks("'snapshots/nonsense'");
    let told = world.run_at_home(&["verify", "--all", "--json"]).ok();
    let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&told["foreign"]["count"], &told["sound"]), (&8.into(), &true.into()), "{told}");
    assert_eq!(server.read_object("store/packs/ab/not-a-pack").unwrap(), b"of somebody else");
}

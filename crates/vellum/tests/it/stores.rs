//! Stores that keep less than a directory, or are reached in another way.

use std::fs;
use std::path::{Path, PathBuf};

use vellum_testkit::{LyingS3, S3Failure, S3Lie, SshServer};

use crate::remote::{every, init, world_with_credentials};
use crate::world::{Ran, World, noise};

/// A world with another machine, which is this one.
struct FarWorld {
    world: World,
    server: SshServer,
}

impl FarWorld {
    fn new() -> Self {
        let world = World::empty();
        let server = SshServer::new(&world.path("ssh"));
        Self { world, server }
    }

    fn url(&self, folder: &str) -> String {
        format!("sftp://far{}", self.far_dir(folder).display())
    }

    fn far_dir(&self, folder: &str) -> PathBuf {
        self.world.path("far").join(folder)
    }

    fn run_in(&self, dir: &Path, args: &[&str]) -> Ran {
        let mut command = self.world.command_at_home(args);
        command.env("VELLUM_SSH", self.server.program()).current_dir(dir);
        let ran = Ran::of(args, command.output().unwrap());
        if ran.code > 1 {
            eprintln!("sshd: {}", self.server.read_log());
        }
        ran
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_in(&self.world.tree(), args)
    }
}

#[test]
fn a_service_without_conditional_replacement_holds_a_volume_for_several_writers() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    server.add_lie(every("PUT"), S3Lie::IgnoreIfMatch);
    let url = server.store_url("store");
    init(&world, &url).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "-m", "one", "--tag", "first"]).ok();
    world.write("a.txt", "two\n");
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    let run = |args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.current_dir(&other).output().unwrap())
    };
    run(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    run(&["restore", "first"]).ok();
    assert_eq!(fs::read_to_string(other.join("a.txt")).unwrap(), "one\n");
    run(&["tag", "remove", "first"]).ok();
    run(&["tag", "add", "first"]).ok();
    world.run_at_home(&["tag", "list"]).ok().says("first");
    for number in 0..12 {
        world.write("a.txt", format!("{number}\n"));
        world.run_at_home(&["snapshot"]).ok();
    }
    world.run_at_home(&["gc", "run"]).ok();
    world.run_at_home(&["verify", "--all"]).ok();
    let puts = server.take_requests().into_iter().filter(|request| request.method == "PUT");
    let refs: Vec<_> = puts.map(|put| put.key).filter(|key| key.starts_with("store/refs/")).collect();
    assert!(!refs.is_empty() && refs.iter().all(|key| key.matches('/').count() == 4), "{refs:?}");
    // Another machine keeps to the mode although the service can do more by now.
    server.tell_truth();
    fs::remove_file(other.join(".vellum/store-check.json")).unwrap();
    server.overwrite_object("store/store-check/00000000000000ff", b"not sealed by anybody");
    run(&["tag", "add", "second"]).ok();
    world.run_at_home(&["tag", "list"]).ok().says("second");
    server.overwrite_object("store/store", b"not sealed by anybody");
    world.run_at_home(&["verify", "--all"]).code(1).says("store");
    let bench = ["objbench", &url, "--credentials", "test", "--small-objects", "0", "--big-object-size", "0"];
    server.add_lie(every("PUT"), S3Lie::RefuseIfMatch);
    world.run_at_home(&bench).code(1).says("works without what is missing");
}

#[test]
fn a_volume_over_sftp_is_used_like_any_other() {
    let far = FarWorld::new();
    let world = &far.world;
    let url = far.url("photos");
    far.run(&["init", "--plain", "--name", "main", "--store", &url]).ok();
    world.write("a.txt", "one\n");
    world.write("dir/b.bin", noise(300_000));
    far.run(&["snapshot", "-m", "one"]).ok();
    world.write("a.txt", "two\n");
    far.run(&["snapshot", "-m", "two", "--tag", "second"]).ok();
    far.run(&["restore", "HEAD~1"]).ok();
    assert_eq!(world.read("a.txt"), "one\n");
    far.run(&["restore", "second"]).ok();
    far.run(&["verify", "--all"]).ok();
    far.run(&["gc", "run"]).ok();

    let clone = world.path("clone");
    far.run(&["clone", &url, &clone.display().to_string(), "--plain"]).ok();
    assert_eq!(fs::read_to_string(clone.join("a.txt")).unwrap(), "two\n");
    fs::write(clone.join("c.txt"), "three\n").unwrap();
    far.run_in(&clone, &["snapshot", "-m", "three"]).ok();
    far.run(&["history", "--all"]).ok().says("three");

    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    far.run(&["mount", &shown]).ok();
    assert_eq!(fs::read_to_string(mountpoint.join("a.txt")).unwrap(), "two\n");
    fs::write(mountpoint.join("d.txt"), "d\n").unwrap();
    far.run(&["umount", &shown]).ok();
    far.run(&["verify", "--all"]).ok();

    // On the other machine itself, the store is a directory.
    let there = far.far_dir("photos").display().to_string();
    let local = world.path("local").display().to_string();
    far.run(&["clone", &there, &local, "--plain", "--from", "second"]).ok();
    far.run_in(&world.path("local"), &["tag", "add", "there"]).ok();
    far.run(&["tag", "list"]).ok().says("there");
}

#[test]
fn a_volume_that_was_made_by_a_path_is_pushed_to_a_store_over_sftp() {
    let far = FarWorld::new();
    let world = &far.world;
    let there = far.far_dir("photos").display().to_string();
    far.run(&["init", "--plain", "--name", "main", "--store", &there]).ok();
    world.write("a.txt", "one\n");
    far.run(&["snapshot", "-m", "one"]).ok();
    let clone = world.path("clone").display().to_string();
    let refused = far.run(&["clone", "--plain", &far.url("photos"), &clone]);
    refused.code(2).remarks("cannot hold a volume").remarks("made by a path").remarks("'vellum push NAME'");
    assert!(!Path::new(&clone).exists());
    far.run(&["remote", "add", "nas", &far.url("pushed")]).ok();
    far.run(&["push", "nas"]).ok();
    far.run(&["clone", "--plain", "--from", "main", &far.url("pushed"), &clone]).ok();
    assert_eq!(fs::read_to_string(world.path("clone/a.txt")).unwrap(), "one\n");
}

#[test]
fn snapshots_are_pushed_and_pulled_over_sftp() {
    let far = FarWorld::new();
    let world = &far.world;
    far.run(&["init", "--plain", "--name", "main"]).ok();
    world.write("a.txt", "one\n");
    far.run(&["snapshot", "-m", "one"]).ok();
    let url = far.url("hub");
    far.run(&["remote", "add", "origin", &url]).ok();
    far.run(&["push"]).ok().says("Sent 1 snapshot");
    let clone = world.path("clone");
    far.run(&["clone", &url, &clone.display().to_string(), "--plain"]).ok();
    fs::write(clone.join("a.txt"), "two\n").unwrap();
    far.run_in(&clone, &["snapshot", "-m", "two"]).ok();
    far.run(&["pull"]).ok();
    far.run(&["history", "--all"]).ok().says("two");
}

#[test]
fn mistakes_in_addresses_of_other_machines_are_told_without_secrets() {
    let world = World::empty();
    let init = |url: &str| world.run_at_home(&["init", "--plain", "--store", url]);
    for (url, words) in [
        ("sftp://ann:hunter2@far/x", "an address holds no secrets"),
        ("sftp://far", "it names no directory"),
        ("sftp://-oProxyCommand=hunter2/x", "it names no host"),
        ("sftp://far/x?password=hunter2", "not allowed in it"),
    ] {
        let ran = init(url).code(3).remarks(words);
        assert!(!ran.err.contains("hunter2") || url.contains("-oProxy"), "{}", ran.err);
    }
    let named = ["init", "--plain", "--store", "sftp://far/x", "--credentials", "test"];
    world.run_at_home(&named).code(3).remarks("leave out --credentials");
    let missing = ["init", "--plain", "--store", "s3://bucket/x", "--credentials", "nosuch"];
    world
        .run_at_home(&missing)
        .code(2)
        .remarks("credentials/nosuch does not exist")
        .remarks("'access-key-id'");
    assert!(!world.has(".vellum"));
}

#[test]
fn a_command_repeats_requests_for_as_long_as_it_is_told() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    for method in ["GET", "LIST"] {
        server.add_lie(every(method), S3Lie::Fail(S3Failure::new(503, "SlowDown")));
    }
    drop(server.take_requests());
    world.run_at_home(&["tag", "list", "--retry-for", "0s"]).code(2);
    let asked = server.take_requests();
    let distinct: std::collections::BTreeSet<_> = asked.iter().map(|request| &request.key).collect();
    assert_eq!(asked.len(), distinct.len(), "{asked:?}");
    world.run_at_home(&["tag", "list", "--retry-for", "1s"]).code(2);
    assert!(server.take_requests().len() > asked.len());
    world.run_at_home(&["tag", "list", "--retry-for", "soon"]).code(3).remarks("typed like 30d");
}

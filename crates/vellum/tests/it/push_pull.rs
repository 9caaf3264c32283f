//! Remotes: `clone`, `remote`, `push` and `pull`.

use std::fs;
use std::path::Path;

use vellum_testkit::{LyingS3, SeaweedServer};

use crate::remote::add_credentials;
use crate::world::{Ran, World, copy_dir, run};

fn init_in(world: &World, dir: &str, args: &[&str]) -> Ran {
    fs::create_dir_all(world.path(dir)).unwrap();
    world.run_beside(dir, &[&["init"], args].concat()).ok()
}

fn short_head(world: &World, dir: &str) -> String {
    let shown = world.run_beside(dir, &["worktree", "list", "--json"]).ok();
    let value: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    value["worktrees"][0]["snapshot"].as_str().unwrap()[..8].to_owned()
}

#[test]
fn two_machines_work_through_one_remote() {
    let world = World::with_snapshot();
    world.run(&["push"]).code(2).remarks("no remote").remarks("'vellum remote add origin URL' adds one");
    world.run(&["remote", "list"]).ok().remarks("no remotes yet");
    world
        .run(&["remote", "add", "origin", "../hub"])
        .ok()
        .says("which is empty")
        .remarks("vellum push origin");
    assert!(!world.path("hub").exists(), "nothing is written before the first push");
    world.run(&["pull"]).code(2).remarks("holds no volume yet");
    world.run(&["push", "-n"]).ok().says("Would send 1 snapshot to origin").says("worktree main: new");
    assert!(!world.path("hub").exists());
    world.run(&["status", "--remote"]).ok().remarks("origin: nothing was pushed there; 1 snapshot to push");
    world.run(&["push", "--tags"]).ok().says("Sent 1 snapshot to origin").says("tag first: new");
    world.run(&["push"]).ok().says("lacks no snapshot").says("as before");
    world.run(&["status", "--remote"]).ok().remarks("origin: up to date");

    // Another machine has the hub as its store.
    let hub = world.path("hub").display().to_string();
    let cloned = world.run_beside("", &["clone", &hub, "bob", "--plain"]).ok();
    cloned.says("is now the worktree 'bob'").says("3 written");
    assert_eq!(fs::read_to_string(world.path("bob/dir/b.txt")).unwrap(), "b\n");
    world.run_beside("bob", &["status"]).ok();
    world.run_beside("bob", &["worktree", "list"]).ok().says("(pushed)");
    fs::write(world.path("bob/new.txt"), "by bob\n").unwrap();
    world.run_beside("bob", &["snapshot", "-m", "bob's"]).ok();

    world.run(&["pull", "-n"]).ok().says("Would fetch 1 snapshot");
    world.run(&["show", "origin/bob"]).code(2).remarks("no worktree or tag of this name");
    world.run(&["pull"]).ok().says("Fetched 1 snapshot from origin").says("worktree origin/bob: new");
    world.run(&["pull"]).ok().says("has no snapshot that is not here");
    world.run(&["diff", "HEAD", "origin/bob"]).code(1).says("new.txt");
    world.run(&["remote", "show"]).ok().says("origin/bob").says("origin/first").says("Last seen");
    assert!(!world.has("new.txt"), "a pull changes no file");
    world.run(&["restore", "origin/bob"]).ok();
    assert_eq!(world.read("new.txt"), "by bob\n");
    world.write("a.txt", "by ann\n");
    world.snapshot("second");
    world.run(&["status", "--remote"]).ok().remarks("origin: 2 snapshots to push");
    world.run(&["push", "origin", "second"]).ok().says("Sent 1 snapshot").says("tag second: new");
    world.run(&["push", "--json"]).ok().says("\"outcome\": \"moved\"");
    world.run_beside("bob", &["restore", "main"]).ok();
    assert_eq!(fs::read_to_string(world.path("bob/a.txt")).unwrap(), "by ann\n");
    for dir in ["tree", "bob"] {
        world.run_beside(dir, &["verify", "--all"]).ok();
        world.run_beside(dir, &["gc", "run"]).ok();
        world.run_beside(dir, &["verify", "--all"]).ok();
    }
}

#[test]
fn heads_that_diverged_are_told_and_left_alone() {
    let world = World::with_snapshot();
    world.run(&["remote", "add", "origin", "../hub"]).ok();
    world.run(&["push"]).ok();
    // A copy of the directory has a store of its own, and so is another machine's.
    copy_dir(&world.tree(), &world.path("copy"));
    world.write("a.txt", "here\n");
    world.snapshot("here");
    fs::write(world.path("copy/a.txt"), "there\n").unwrap();
    world.run_beside("copy", &["snapshot"]).ok();
    world.run_beside("copy", &["push"]).ok();
    world.run(&["status", "--remote"]).ok().remarks("origin: diverged, 1 snapshot here and 1 snapshot there");
    let json = world.json(&["status", "--remote"]);
    assert_eq!((&json["remotes"][0]["ahead"], &json["remotes"][0]["behind"]), (&1.into(), &1.into()));
    let here = short_head(&world, "tree");
    let there = short_head(&world, "copy");
    let ran = world.run(&["push"]).code(1);
    let ran = ran.remarks(&format!("worktree main has diverged: it is at {there} there and at {here} here"));
    ran.remarks("'vellum pull origin' fetches what is there, as 'origin/main'");
    world.run(&["push", "-n"]).code(1).remarks("diverged");
    world.run(&["push", "--json"]).code(1).says("\"outcome\": \"diverged\"").says(&there);
    world.run(&["pull", "origin"]).ok().says("worktree origin/main");
    world.run(&["diff", "origin/main", "HEAD"]).code(1).says("a.txt");
    // The hint for a name that is taken works.
    fs::create_dir(world.path("desk")).unwrap();
    let hub = world.path("hub").display().to_string();
    world.run_beside("desk", &["clone", &hub, "desk", "--plain", "--name", "desk"]).ok();
    world.run(&["worktree", "rename", "main", "desk"]).ok();
    world.run(&["push"]).code(1).remarks("which alone moves it").remarks("'vellum worktree rename desk NEW'");
    world.run(&["worktree", "rename", "desk", "new"]).ok();
    world.run(&["push"]).ok().says("worktree new: new");
    world.run_beside("desk/desk", &["show", "new"]).ok();
}

#[test]
fn remotes_are_renamed_and_removed_and_others_refused() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("photos")).unwrap();
    fs::write(world.path("photos/a.jpg"), "x").unwrap();
    world.run(&["remote", "add", "origin", "../photos"]).code(3).remarks("not those of a volume");
    init_in(&world, "other", &["--plain"]);
    let other = "../other/.vellum/store";
    world
        .run(&["remote", "add", "origin", other])
        .code(3)
        .remarks("another volume")
        .remarks("a folder that is empty");
    world.run(&["remote", "add", "a/b", "../hub"]).code(3).remarks("cannot be used as a name");
    let ran = world.run(&["remote", "add", "x", "s3://key:hunter2@bucket/x"]).code(3);
    assert!(!ran.err.contains("hunter2"), "{}", ran.err);
    world.run(&["remote", "list"]).ok().remarks("no remotes yet");
    world.run(&["remote", "add", "x", "../hub"]).ok();
    world.run(&["remote", "add", "x", "../hub2"]).code(2).remarks("exists already");
    world.run(&["remote", "rename", "x", "y"]).ok();
    world.run(&["remote", "show", "x"]).code(2).remarks("'vellum remote list' shows all remotes");
    world.run(&["remote", "list"]).ok().says("y");
    world.run(&["push", "y"]).ok();
    world.run(&["remote", "remove", "y"]).ok().says("its store is as it was");
    world.run(&["remote", "list"]).ok().remarks("no remotes yet");
    assert!(world.path("hub/config").exists());
    let json = world.run(&["remote", "add", "z", "../hub", "--json"]).ok();
    json.says("\"empty\": false");
    world.run(&["push", "z", "nothing"]).code(2).remarks("'nothing'");
    let empty = World::new();
    empty.run(&["remote", "add", "origin", "../hub"]).ok();
    empty.run(&["push"]).code(3).remarks("no snapshot yet");
}

#[test]
fn a_clone_that_fails_leaves_nothing() {
    let world = World::with_snapshot();
    let store = world.tree().join(".vellum/store").display().to_string();
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let before = names(&world.path(""));
    let clone = |args: &[&str]| world.run_beside("", &[&["clone"], args].concat());
    clone(&["nowhere", "new", "--plain"]).code(3).remarks("holds no volume");
    clone(&[&store, "new"]).code(3).remarks("not encrypted");
    clone(&[&store, "new", "--plain", "--from", "v9"]).code(2).remarks("'v9'");
    clone(&[&store, "tree", "--plain"]).code(3).remarks("is a worktree already");
    clone(&[&store, "tree/dir", "--plain"]).code(3).remarks("not empty");
    clone(&[&store, "new", "--plain", "--name", "main"]).code(3).remarks("has a worktree 'main' already");
    assert_eq!(names(&world.path("")), before);
    world.run(&["worktree", "list"]).ok();
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
    // The directory is named after the store.
    world.run(&["remote", "add", "origin", "../hub"]).ok();
    world.run(&["push"]).ok();
    fs::create_dir(world.path("sub")).unwrap();
    world.run_beside("sub", &["clone", "../hub", "--plain", "--json"]).ok().says("\"worktree\": \"hub\"");
    assert_eq!(fs::read_to_string(world.path("sub/hub/dir/b.txt")).unwrap(), "b\n");
}

#[test]
fn an_encrypted_volume_is_pushed_to_s3_and_cloned_with_its_recovery_code() {
    let world = World::empty();
    add_credentials(&world);
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("backup/photos");
    let made = world.run_at_home(&["init"]).ok();
    let code = made.out.lines().find_map(|line| line.strip_prefix("Recovery code: ")).unwrap().to_owned();
    world.write("a.txt", "one\n");
    world.write("dir/b.bin", crate::world::noise(3_000_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    world.run_at_home(&["remote", "add", "origin", &url, "--credentials", "test"]).ok().says("empty");
    world.run_at_home(&["push"]).ok().says("Sent 1 snapshot");
    world.write("a.txt", "two\n");
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    world.run_at_home(&["push"]).ok();
    // A key slot that is added later goes along with the next push.
    fs::write(world.path("phrase"), "correct horse\n").unwrap();
    let phrase = world.path("phrase").display().to_string();
    world.run_at_home(&["key", "add", "--passphrase-file", &phrase]).ok();
    world.write("a.txt", "three\n");
    world.run_at_home(&["snapshot", "-m", "three"]).ok();
    world.run_at_home(&["push"]).ok();

    fs::write(world.path("code"), &code).unwrap();
    for (secret, dir) in [("code", "one"), ("phrase", "two")] {
        let secret = world.path(secret).display().to_string();
        let args = ["clone", &url, dir, "--credentials", "test", "--passphrase-file", &secret];
        world.run_beside("", &args).ok().says("2 written");
        assert_eq!(fs::read_to_string(world.path(dir).join("a.txt")).unwrap(), "three\n");
        world.run_beside(dir, &["history"]).ok().says("two");
        world.run_beside(dir, &["verify", "--all"]).ok();
    }
}

#[test]
fn a_push_takes_few_requests() {
    let world = World::new();
    add_credentials(&world);
    let server = LyingS3::start().unwrap();
    for number in 0..300 {
        world.write(&format!("dir-{}/file-{number}", number % 7), crate::world::noise(3_000 + number));
    }
    world.run_at_home(&["snapshot"]).ok();
    let url = server.store_url("hub");
    world.run_at_home(&["remote", "add", "origin", &url, "--credentials", "test"]).ok();
    world.run_at_home(&["push"]).ok();
    let _ = server.take_requests();
    let count = |args: &[&str]| {
        world.run_at_home(args).ok();
        server.take_requests().len()
    };
    let idle = count(&["push"]);
    world.write("dir-1/file-1", "changed\n");
    world.run_at_home(&["snapshot"]).ok();
    let small = count(&["push"]);
    let pull = count(&["pull"]);
    let clone = count(&["clone", &url, "../clone", "--plain", "--credentials", "test"]);
    let counts = format!("{idle}, {small}, {pull} and {clone} requests");
    assert!(idle <= 7 && small <= 20 && pull <= 5 && clone <= 29, "{counts}");
}

#[test]
fn a_mounted_worktree_is_pushed() {
    let world = World::with_snapshot();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.run_at_home(&["remote", "add", "origin", "../hub"]).ok();
    world.run_at_home(&["mount", &shown]).ok();
    fs::write(mountpoint.join("new.txt"), "new\n").unwrap();
    run(&mountpoint, &["snapshot", "-m", "mounted"], std::process::Stdio::null()).ok();
    let pushed = run(&mountpoint, &["push"], std::process::Stdio::null());
    let unmounted = world.run_at_home(&["umount", &shown]);
    pushed.ok().says("Sent 2 snapshots").says("worktree mnt: new");
    unmounted.ok();
    let hub = world.path("hub").display().to_string();
    world.run_beside("", &["clone", &hub, "clone", "--plain", "--from", "mnt"]).ok();
    assert_eq!(fs::read_to_string(world.path("clone/new.txt")).unwrap(), "new\n");
}

//! `vellum mounts`

use crate::mounting::{Mount, hold, kill, wait_until};
use crate::world::World;

#[test]
fn a_mountpoint_with_a_space_in_its_name_is_listed() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "some where");
    mount.again(&[]).ok();
    world.run(&["mounts"]).ok().says("some where");
    world.run(&["worktree", "list"]).ok().says("some-where");
    mount.umount().ok();
    mount.again(&["--snapshot", "first"]).ok();
    world.run(&["mounts"]).ok().says("some where");
}

#[test]
fn a_mountpoint_whose_name_has_nothing_for_a_worktree_is_refused_with_another_way() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "::");
    mount.again(&[]).code(3).remarks("'vellum fork NAME --mount DIR'");
    let shown = mount.path.display().to_string();
    world.run(&["fork", "stars", "--mount", &shown]).ok();
    world.run(&["mounts"]).ok().says("stars");
}

#[test]
fn worktrees_and_snapshots_are_told_apart() {
    let world = World::with_snapshot();
    let work = Mount::new(&world, "work");
    let old = Mount::place(&world, "old");
    old.again(&["--snapshot", "first"]).ok();
    let listed = world.json(&["mounts"]);
    let find = |mount: &Mount<'_>| {
        let path = mount.path.to_str().unwrap().to_owned();
        let items = listed["mounts"].as_array().unwrap();
        items.iter().find(|item| item["mountpoint"] == path.as_str()).unwrap().clone()
    };
    let item = find(&work);
    assert_eq!(item["worktree"], "work");
    assert_eq!(item["read_only"], false);
    assert_eq!(item["dead"], false);
    assert_eq!(item["pid"].as_i64().unwrap(), i64::from(work.pid()));
    assert_eq!(item["state"], world.tree().join(".vellum").to_str().unwrap());
    let item = find(&old);
    assert!(item["worktree"].is_null());
    assert_eq!(item["snapshot"].as_str().unwrap().len(), 64);
    assert_eq!(item["read_only"], true);
    let text = world.run(&["mounts"]).ok();
    let line =
        text.lines().into_iter().find(|line| line.contains(work.path.to_str().unwrap())).unwrap().to_owned();
    assert!(line.contains("work"), "{line}");
}

#[test]
fn a_worktree_whose_name_is_as_long_as_an_id_is_one_in_a_dead_mount_too() {
    let world = World::with_snapshot();
    let name = "w".repeat(64);
    let mount = Mount::place(&world, "place");
    world.run(&["fork", &name, "--mount", mount.path.to_str().unwrap()]).ok();
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    let listed = world.json(&["mounts"]);
    let items = listed["mounts"].as_array().unwrap();
    let item = items.iter().find(|item| item["mountpoint"] == mount.path.to_str().unwrap()).unwrap();
    assert_eq!((&item["worktree"], &item["snapshot"]), (&name.into(), &serde_json::Value::Null));
}

#[test]
fn a_mount_whose_process_is_stopped_does_not_hold_up_the_others() {
    let world = World::with_snapshot();
    // A request that a ring delivered to a stopped process keeps whoever made it from ending.
    let stopped = Mount::place(&world, "stopped");
    stopped.again(&["--allow-other", "--no-io-uring"]).ok();
    let other = Mount::new(&world, "other");
    let pid = stopped.pid();
    hold(pid);
    let listed = world.json(&["mounts"]);
    let find = |mount: &Mount<'_>| {
        let items = listed["mounts"].as_array().unwrap();
        items.iter().find(|item| item["mountpoint"] == mount.path.to_str().unwrap()).unwrap().clone()
    };
    let item = find(&stopped);
    assert_eq!(
        (&item["silent"], &item["dead"], &item["worktree"]),
        (&true.into(), &false.into(), &"stopped".into())
    );
    assert_eq!(find(&other)["pid"], other.pid());
    assert!(find(&other)["silent"] == false);
    world.run(&["mounts"]).ok().says("does not answer");
    kill(pid, "-CONT");
    wait_until("it answers", || {
        world.json(&["mounts"])["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|item| item["mountpoint"] != stopped.path.to_str().unwrap() || item["silent"] == false)
    });
}

#[test]
fn mounts_of_a_test_that_fails_are_taken_away_also_if_their_process_is_stopped() {
    let failed = std::thread::spawn(|| {
        let world = World::with_snapshot();
        let path = world.path("work");
        std::fs::create_dir(&path).unwrap();
        world.run(&["mount", path.to_str().unwrap()]).ok();
        let description = std::fs::read(path.join(".vellum/mount.json")).unwrap();
        let description: serde_json::Value = serde_json::from_slice(&description).unwrap();
        hold(description["pid"].as_i64().unwrap() as i32);
        std::panic::panic_any((path, description["pid"].as_i64().unwrap()));
    });
    let failure = failed.join().unwrap_err();
    let (path, pid) = failure.downcast::<(std::path::PathBuf, i64)>().map(|failure| *failure).unwrap();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(path.to_str().unwrap()), "{table}");
    // Its process goes on, and ends.
    wait_until("the process has ended", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

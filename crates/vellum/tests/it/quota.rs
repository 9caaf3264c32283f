//! `vellum worktree quota`, and what programs see of it.

use std::fs;
use std::io::Write;

use crate::mounting::{Mount, sh};
use crate::world::World;

#[test]
fn a_quota_holds_on_a_live_mount_and_after_it() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    world.run(&["worktree", "quota", "work"]).ok().says("no limit");
    world
        .run(&["worktree", "quota", "work", "--bytes", "1M", "--inodes", "8"])
        .ok()
        .says("of 1.0 MiB")
        .says("of 8");
    let fails = |script: &str, with: &str| {
        let said = sh(&mount.path, &format!("({script}) 2>&1 || true"));
        assert!(said.contains(with), "{script}: {said}");
    };
    let refused = |script: &str| fails(script, "Disk quota exceeded");
    // The kernel takes it, and finds that there is no room when it writes back.
    fails("head -c 2000000 /dev/zero > big && sync big", "No space left on device");
    mount.sh("rm -f big; touch one two");
    refused("touch three");
    assert!(mount.sh("df --output=itotal,iavail . | tail -1").split_whitespace().eq(["8", "0"]));
    let sizes = mount.sh("df -B1 --output=size . | tail -1");
    assert_eq!(sizes.trim(), "1048576");
    mount.sh("rm two");
    let output = world.json(&["worktree", "quota", "work"]);
    assert_eq!((output["inodes"]["used"].as_u64(), output["inodes"]["limit"].as_u64()), (Some(7), Some(8)));
    // Whoever flushes everything is told once more of what could not be written.
    fails("sync -f .", "No space left on device");
    mount.umount().ok();
    mount.again(&[]).ok();
    mount.sh("touch two");
    refused("touch three");
    mount.umount().ok();
    world.run(&["worktree", "quota", "work", "--none"]).ok().says("no limit");
    mount.again(&[]).ok();
    mount.sh("touch three four; head -c 2000000 /dev/zero > big; sync big");
    world
        .run(&["worktree", "quota", "main", "--bytes", "1M"])
        .code(3)
        .remarks("only mounted worktrees have a quota");
    world.run(&["worktree", "quota", "other"]).code(2).remarks("no worktree 'other'");
}

/// hostile.md 60.
#[test]
fn what_cannot_be_written_back_is_told_once_to_each_descriptor() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    world.run(&["worktree", "quota", "work", "--bytes", "1M"]).ok();
    let one = fs::File::create(mount.at("big")).unwrap();
    let other = fs::File::open(mount.at("big")).unwrap();
    // The kernel takes more than there is room for.
    (&one).write_all(&vec![7; 2_000_000]).unwrap();
    for file in [&one, &other] {
        let error = file.sync_all().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
        file.sync_all().unwrap();
    }
    // Who opens it later was not promised anything.
    fs::File::open(mount.at("big")).unwrap().sync_all().unwrap();
    drop((one, other));
    mount.sh("rm big; echo small > big; sync big");
    // Nor was it, so far, whoever flushes everything.
    assert!(mount.sh("sync -f . 2>&1 || true").contains("No space left on device"));
    mount.umount().ok();
}

#[test]
fn reading_is_seen_and_changes_nothing() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let times = |path: &str| {
        let text = sh(&mount.path, &format!("stat -c '%.9X %.9Y' {path}"));
        let mut fields = text.split_whitespace().map(String::from);
        (fields.next().unwrap(), fields.next().unwrap())
    };
    assert_eq!(times("a.txt").0, times("a.txt").1);
    fs::read(mount.at("a.txt")).unwrap();
    let (read, modified) = times("a.txt");
    assert!(read > modified, "{read} {modified}");
    sh(&mount.path, "cat dir/b.txt; ls dir");
    assert!(times("dir").0 > times("dir").1);
    world.run_in("../work", &["status"]).ok();
}

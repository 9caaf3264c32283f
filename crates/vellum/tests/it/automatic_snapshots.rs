//! `vellum mount --snapshot-every`

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::mounting::{Mount, wait_until};
use crate::world::{World, run};

/// The snapshots of a mounted worktree, the newest first.
fn history(mount: &Mount<'_>) -> Vec<Value> {
    let ran = run(&mount.path, &["history", "--json"], std::process::Stdio::null()).ok();
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    json["snapshots"].as_array().unwrap().clone()
}

fn automatic(mount: &Mount<'_>) -> usize {
    history(mount).iter().filter(|snapshot| snapshot["note"] == "automatic").count()
}

#[test]
fn a_snapshot_is_made_of_each_change_and_of_nothing_else() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    mount.again(&["--snapshot-every", "1s"]).ok();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(automatic(&mount), 0, "nothing was changed");
    fs::write(mount.at("a.txt"), "first").unwrap();
    wait_until("the first is made", || automatic(&mount) == 1);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(automatic(&mount), 1, "nothing was changed since");
    let newest = history(&mount).remove(0);
    assert_eq!(newest["origin"], "user");
    let id = newest["id"].as_str().unwrap();
    let read = run(&mount.path, &["cat", id, "a.txt"], std::process::Stdio::null()).ok();
    assert_eq!(read.out, "first");
    // A snapshot of the user's holds the change, so that none is made.
    run(&mount.path, &["snapshot"], std::process::Stdio::null()).ok();
    fs::write(mount.at("b.txt"), "second").unwrap();
    wait_until("the second is made", || automatic(&mount) == 2);
    let before = history(&mount).len();
    mount.umount().ok();
    // Without the option there are none.
    mount.again(&[]).ok();
    fs::write(mount.at("a.txt"), "third").unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(history(&mount).len(), before);
}

#[test]
fn what_the_users_last_snapshot_left_out_is_left_out() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    mount.again(&["--snapshot-every", "1s"]).ok();
    fs::create_dir(mount.at("modules")).unwrap();
    fs::write(mount.at("modules/index"), "left out").unwrap();
    let in_mount = |args: &[&str]| run(&mount.path, args, std::process::Stdio::null()).ok();
    in_mount(&["snapshot", "-q", "--exclude", "modules"]);
    let before = automatic(&mount);
    fs::write(mount.at("a.txt"), "changed").unwrap();
    wait_until("one is made", || automatic(&mount) > before);
    let newest = history(&mount).remove(0);
    let listed = in_mount(&["ls", "-R", newest["id"].as_str().unwrap()]);
    assert!(!listed.out.contains("modules"), "{}", listed.out);
    assert!(mount.at("modules/index").exists());
}

#[test]
fn only_what_can_be_written_has_automatic_snapshots() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("m")).unwrap();
    for more in [&["--read-only"][..], &["--snapshot", "HEAD"], &["-o", "ro"]] {
        world.run(&[&["mount", "--snapshot-every", "10m"], more, &["../m"]].concat()).code(3);
    }
    world.run(&["mount", "--snapshot-every", "0s", "../m"]).code(3).remarks("at least 1s");
    world.run(&["mount", "--snapshot-every", "often", "../m"]).code(3).remarks("30d");
}

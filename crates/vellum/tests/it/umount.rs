//! `vellum umount`

use std::fs;

use crate::mounting::Mount;
use crate::world::World;

#[test]
fn what_is_not_a_mount_is_refused() {
    let world = World::with_snapshot();
    world.run(&["umount", "dir"]).code(3).remarks("no Vellum volume is mounted on").remarks("vellum mounts");
    world.run(&["umount", "/proc"]).code(3).remarks("no Vellum volume is mounted on /proc");
    world.run(&["umount", "../nowhere"]).code(3).remarks("no Vellum volume");
}

#[test]
fn a_mount_in_use_stays() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let file = fs::File::open(mount.at("a.txt")).unwrap();
    mount.umount().code(2).remarks("is in use").remarks("fuser -vm");
    assert!(mount.at("a.txt").exists());
    drop(file);
    mount.umount().ok();
}

#[test]
fn what_was_written_is_there_at_once_for_the_next_mount() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    for round in 0..5 {
        fs::write(mount.at("counter"), format!("{round}")).unwrap();
        mount.umount().ok();
        mount.again(&[]).ok();
        assert_eq!(fs::read_to_string(mount.at("counter")).unwrap(), format!("{round}"));
    }
}

#[test]
fn a_dead_mount_is_taken_away() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid().to_string();
    std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    while fs::read_dir(&mount.path).is_ok() {
        std::thread::yield_now();
    }
    mount.umount().ok().says("its process had died");
    assert!(fs::read_dir(&mount.path).is_ok());
}

#[test]
fn the_report_is_json() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let value = world.json(&["umount", mount.path.to_str().unwrap()]);
    assert_eq!(value["mountpoint"], mount.path.to_str().unwrap());
    assert_eq!(value["was_dead"], false);
}

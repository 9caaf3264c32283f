//! Requests that come by rings (FUSE over io_uring), where the kernel offers them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{World, run};

/// Where an administrator lets the kernel offer rings.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Lets it offer them or not, and puts back what was there.
struct Offer(String);

impl Offer {
    fn make(offered: bool) -> Self {
        let before = fs::read_to_string(OFFER).expect("this test needs Linux 6.14, with FUSE over io_uring");
        fs::write(OFFER, if offered { "Y" } else { "N" }).unwrap();
        Self(before)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        fs::write(OFFER, &self.0).unwrap();
    }
}

fn threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

/// Content that says whose it is.
fn content(writer: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((writer * 31 + number * 7 + at / 3) % 251).unwrap()).collect()
}

/// Several programs at once: small files, synced files, and one larger than a request.
fn work(root: &Path, writer: usize) {
    let dir = root.join(format!("writer-{writer}"));
    fs::create_dir(&dir).unwrap();
    for number in 0..40 {
        let name = dir.join(format!("{number}.new"));
        let mut file = File::create(&name).unwrap();
        file.write_all(&content(writer, number, 5000)).unwrap();
        if number % 5 == 0 {
            file.sync_all().unwrap();
        }
        fs::rename(&name, dir.join(number.to_string())).unwrap();
    }
    fs::write(dir.join("large"), content(writer, 99, 3 << 20)).unwrap();
}

fn check(root: &Path, writer: usize) {
    let dir = root.join(format!("writer-{writer}"));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 41);
    for number in 0..40 {
        assert!(fs::read(dir.join(number.to_string())).unwrap() == content(writer, number, 5000));
    }
    assert!(fs::read(dir.join("large")).unwrap() == content(writer, 99, 3 << 20));
}

fn all(root: &Path, each: fn(&Path, usize)) {
    std::thread::scope(|scope| {
        for writer in 0..6 {
            scope.spawn(move || each(root, writer));
        }
    });
}

/// Answers that several threads give at once, on both sides of a queue, are all told: none of these waits for ever.
fn sync_often(root: &Path, writer: usize) {
    let dir = root.join(format!("synced-{writer}"));
    fs::create_dir(&dir).unwrap();
    for number in 0..1000 {
        let mut file = File::create(dir.join(number.to_string())).unwrap();
        file.write_all(&content(writer, number, 4096)).unwrap();
        file.sync_all().unwrap();
    }
}

#[test]
fn by_rings_everything_is_as_through_the_device() {
    let world = World::new();
    let offer = Offer::make(true);
    let mount = Mount::new(&world, "work");
    drop(offer);
    assert!(threads(mount.pid()).iter().any(|name| name.trim() == "vellum-ring"), "requests come by rings");
    all(&mount.path, sync_often);
    all(&mount.path, work);
    all(&mount.path, check);
    run(&mount.path, &["snapshot", "--tag", "whole"], Stdio::null()).ok();
    fs::remove_dir_all(mount.path.join("writer-0")).unwrap();
    run(&mount.path, &["restore", "whole"], Stdio::null()).ok();
    all(&mount.path, check);
    // What was recorded outlives the process; this time requests come through the device.
    kill(mount.pid(), "-KILL");
    let offer = Offer::make(false);
    mount.again(&[]).ok();
    drop(offer);
    assert!(!threads(mount.pid()).iter().any(|name| name.trim() == "vellum-ring"));
    all(&mount.path, check);
}

/// Programs that move and list the same directories, each of which has the kernel forget what moved meanwhile.
const STORM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/posix/storm.c");

#[test]
fn programs_that_move_and_list_the_same_directories_end() {
    let world = World::new();
    let storm = world.path("storm");
    sh(&world.path(""), &format!("cc -O1 -o {} {STORM}", storm.display()));
    for offered in [true, false] {
        let offer = Offer::make(offered);
        let mount = Mount::new(&world, if offered { "ringed" } else { "plain" });
        drop(offer);
        assert_eq!(threads(mount.pid()).iter().any(|name| name.trim() == "vellum-ring"), offered);
        fs::create_dir(mount.at("storm")).unwrap();
        let pid = mount.pid();
        let mut bounded = Command::new("timeout");
        bounded.args(["-k", "5", "60"]).arg(&storm).arg(mount.at("storm")).arg("10");
        if !bounded.status().unwrap().success() {
            // So that nobody waits on.
            kill(pid, "-KILL");
            panic!("a request was not answered, rings: {offered}");
        }
    }
}

#[test]
fn rings_are_not_used_if_they_are_not_wanted() {
    let world = World::new();
    let offer = Offer::make(true);
    let mount = Mount::place(&world, "work");
    mount.again(&["--no-io-uring"]).ok();
    drop(offer);
    assert!(!threads(mount.pid()).iter().any(|name| name.trim() == "vellum-ring"));
}

#[test]
fn a_mount_whose_connection_was_aborted_ends_and_the_worktree_can_be_mounted_again() {
    let world = World::new();
    let control = world.path("connections");
    fs::create_dir(&control).unwrap();
    sh(&world.path(""), &format!("mount -t fusectl none {}", control.display()));
    for offered in [true, false] {
        let offer = Offer::make(offered);
        let mount = Mount::new(&world, if offered { "ringed" } else { "plain" });
        drop(offer);
        fs::write(mount.at("file"), "kept").unwrap();
        let pid = mount.pid();
        let number = rustix::fs::minor(fs::metadata(&mount.path).unwrap().dev());
        fs::write(control.join(number.to_string()).join("abort"), "1").unwrap();
        wait_until("the process ended", || !Path::new(&format!("/proc/{pid}")).exists());
        mount.again(&[]).ok();
        // What the kernel had handed over is there; what it had not went with the connection.
        assert!(mount.at("file").exists());
    }
    sh(&world.path(""), &format!("umount {}", control.display()));
}

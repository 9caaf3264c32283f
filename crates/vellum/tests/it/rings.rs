//! Requests that come by rings (FUSE over io_uring), where the kernel offers them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::mounting::{Mount, kill};
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

//! Mounts on small disks: filled until nothing goes any more, emptied, filled again. What was synced is there.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::disk::Disk;
use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{Ran, World, run};

/// Bytes of one file: several go into a segment of the write log.
const LARGE: usize = 700_000;
/// Bytes of a file that is kept beside its attributes.
const SMALL: usize = 3000;
/// More files than any disk here takes.
const MANY: usize = 100_000;

fn inside(mount: &Mount<'_>, args: &[&str]) -> Ran {
    run(&mount.path, args, Stdio::null())
}

/// The content of a file: does not compress, and is like no other (xorshift64, as Marsaglia gave it).
fn content(number: usize, len: usize) -> Vec<u8> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes and syncs a file.
fn write(mount: &Mount<'_>, number: usize, len: usize) -> std::io::Result<()> {
    let mut file = File::create(mount.at(&format!("{number}")))?;
    file.write_all(&content(number, len))?;
    file.sync_all()
}

/// Writes and syncs files from `first` on until there is no room; gives the number of the one that failed.
#[track_caller]
fn fill(mount: &Mount<'_>, first: usize, len: usize) -> usize {
    let failed =
        (first..first + MANY).find_map(|number| write(mount, number, len).err().map(|error| (number, error)));
    let (number, error) = failed.expect("it never gets full");
    assert_eq!(error.raw_os_error(), Some(28), "file {number}: {error}");
    // The kernel tells whoever asks first that something was not written.
    let _ = rustix::fs::syncfs(File::open(&mount.path).unwrap());
    number
}

#[track_caller]
fn check(mount: &Mount<'_>, files: std::ops::Range<usize>, len: usize) {
    for number in files {
        let read = fs::read(mount.at(&format!("{number}"))).unwrap();
        assert!(read == content(number, len), "file {number}, {} bytes", read.len());
    }
}

fn remove(mount: &Mount<'_>, files: std::ops::Range<usize>) {
    for number in files {
        fs::remove_file(mount.at(&format!("{number}"))).unwrap();
    }
}

/// What was removed leaves the store with a collection: the worktree's ref must not name the tree before any more.
fn collect(world: &World, mount: &Mount<'_>) {
    for number in 0..2 {
        sh(&mount.path, &format!("touch -d @{number} ."));
        inside(mount, &["flush"]).ok();
    }
    world.run(&["gc", "run"]).ok();
}

#[test]
fn a_disk_that_has_the_store_too_is_filled_and_emptied_and_filled_again() {
    let disk = Disk::new("ext4", 96);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    let mount = Mount::new(&world, "work");
    let status: Value = serde_json::from_str(&inside(&mount, &["status", "--json"]).out).unwrap();
    let limit = status["mount"]["log_limit"].as_u64().unwrap();
    assert!((20 << 20..48 << 20).contains(&limit), "half of what is free: {limit}");
    let done = fill(&mount, 0, LARGE);
    assert!(done * LARGE > 40 << 20, "{done} files are most of the disk");
    check(&mount, 0..done, LARGE);
    remove(&mount, 0..done * 3 / 4);
    collect(&world, &mount);
    check(&mount, done * 3 / 4..done, LARGE);
    let again = fill(&mount, done, LARGE);
    assert!(again > done + done / 4, "{again} after {done}");
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    mount.again(&[]).ok();
    check(&mount, done * 3 / 4..again, LARGE);
    mount.umount().ok();
    mount.again(&[]).ok();
    check(&mount, done * 3 / 4..again, LARGE);
    remove(&mount, done..again);
    collect(&world, &mount);
    inside(&mount, &["snapshot", "-q"]).ok();
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_disk_full_of_small_files_leaves_room_to_remove_them() {
    let disk = Disk::new("ext4", 32);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    let mount = Mount::new(&world, "work");
    let done = fill(&mount, 0, SMALL);
    assert!(done > 1000, "{done} files");
    check(&mount, 0..done, SMALL);
    // Half first: the room that is left suffices for a tree without those.
    let half = done / 2;
    remove(&mount, 0..half);
    collect(&world, &mount);
    check(&mount, half..done, SMALL);
    remove(&mount, half..done);
    collect(&world, &mount);
    let again = fill(&mount, done, SMALL);
    assert!(again > done + done / 2, "{again} after {done}");
    check(&mount, done..again, SMALL);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn with_the_store_away_a_full_disk_is_told_and_nothing_is_lost() {
    let disk = Disk::new("ext4", 64);
    let elsewhere = Disk::in_memory(200);
    let world = World::on(&disk.path());
    let store = elsewhere.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    let mount = Mount::place(&world, "work");
    mount.again(&["--log-limit", "1G"]).ok();
    sh(&elsewhere.path(), "mount -o remount,ro .");
    let done = fill(&mount, 0, LARGE);
    assert!(done * LARGE > 30 << 20, "{done} files are most of the disk");
    check(&mount, 0..done, LARGE);
    remove(&mount, 0..done / 2);
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    sh(&elsewhere.path(), "mount -o remount,rw .");
    mount.again(&[]).ok();
    check(&mount, done / 2..done, LARGE);
    inside(&mount, &["flush"]).ok();
    write(&mount, done, LARGE).unwrap();
    inside(&mount, &["snapshot", "-q"]).ok();
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_store_on_a_full_disk_is_told_and_takes_what_there_is_when_it_has_room() {
    let full = Disk::in_memory(40);
    let world = World::empty();
    let store = full.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    let mount = Mount::place(&world, "work");
    mount.again(&["--log-limit", "30M"]).ok();
    let done = fill(&mount, 0, LARGE);
    check(&mount, 0..done, LARGE);
    inside(&mount, &["flush"]).code(2).remarks("free space");
    full.grow(200);
    inside(&mount, &["flush"]).ok();
    write(&mount, done, LARGE).unwrap();
    inside(&mount, &["snapshot", "-q"]).ok();
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    mount.again(&[]).ok();
    check(&mount, 0..done + 1, LARGE);
}

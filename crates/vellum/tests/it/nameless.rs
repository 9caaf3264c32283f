//! Requests that only newer kernels and programs make: files without a name, and times of creation.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, statvfs};

use crate::mounting::{Mount, wait_until};
use crate::world::{World, run};

fn nameless(dir: &Path) -> OwnedFd {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    open(dir, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP).unwrap()
}

#[test]
fn a_file_made_without_a_name_gets_one_with_what_was_written() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let file = File::from(nameless(&mount.path));
    (&file).write_all(b"written before it had a name").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), 0);
    // The way that needs no privilege: by what the process sees of its own descriptor.
    let seen = format!("/proc/self/fd/{}", file.as_raw_fd());
    let here = CWD;
    let there = mount.path.join("named");
    linkat(here, seen, here, &there, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    drop(file);
    assert_eq!(fs::read(&there).unwrap(), b"written before it had a name");
    mount.umount().ok();
    mount.again(&[]).ok();
    assert_eq!(fs::read(mount.path.join("named")).unwrap(), b"written before it had a name");
}

#[test]
fn a_file_that_never_gets_a_name_leaves_nothing_behind() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let inodes = || statvfs(&mount.path).map(|fs| fs.f_files - fs.f_ffree).unwrap();
    mount.sh("echo kept > kept");
    let before = inodes();
    let file = File::from(nameless(&mount.path));
    (&file).write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    // A snapshot does not have what has no name.
    run(&mount.path, &["snapshot"], Stdio::null()).ok();
    let mut bytes = Vec::new();
    let mut reader = &file;
    reader.rewind().unwrap();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [7; 100_000]);
    drop(file);
    wait_until("the nameless file is gone", || inodes() == before);
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), 1);
}

#[test]
fn the_time_of_creation_is_told_and_stays() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let born = |name: &str| fs::metadata(mount.path.join(name)).unwrap().created().unwrap();
    let before = SystemTime::now() - Duration::from_secs(5);
    mount.sh("echo one > file; mkdir dir; ln -s file link");
    let file = born("file");
    assert!(before < file && file < SystemTime::now() + Duration::from_secs(5));
    mount.sh("echo two >> file; chmod 600 file; touch -d 2001-01-01 file; mv file dir/moved");
    assert_eq!(born("dir/moved"), file);
    let stat = fs::metadata(mount.path.join("dir/moved")).unwrap();
    assert_eq!((stat.size(), stat.mtime(), stat.mode() & 0o777), (8, 978_307_200, 0o600));
    assert!(born("dir") <= SystemTime::now() + Duration::from_secs(5));
    // A device's numbers come the same way.
    mount.sh("mknod null c 1 3 && [ \"$(stat -c %t:%T:%W null)\" = 1:3:$(stat -c %W null) ]");
}

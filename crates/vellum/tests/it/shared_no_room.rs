//! A server of a shared worktree whose disk is full: its clients are told so, and nothing that was acknowledged is lost.

use std::fs::{self, File};
use std::io::Write;

use vellum_testkit::RedisServer;

use crate::disk::Disk;
use crate::mounting::{Mount, kill, wait_until};
use crate::shared_take_over::Machine;
use crate::world::World;

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];
/// Bytes of a file.
const LEN: usize = 300_000;
/// More files than the disk takes.
const MANY: usize = 1000;

/// What a file has: like no other.
fn content(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut bytes = Vec::with_capacity(LEN + 8);
    while bytes.len() < LEN {
        // A generator of Knuth's (MMIX): what it makes does not compress.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(LEN);
    bytes
}

fn write(mount: &Mount<'_>, number: usize) -> std::io::Result<()> {
    let mut file = File::create(mount.at(&format!("file{number}")))?;
    file.write_all(&content(number))?;
    file.sync_all()
}

#[track_caller]
fn check(mount: &Mount<'_>, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let read = fs::read(mount.at(&format!("file{number}"))).unwrap();
        assert!(read == content(number), "file {number} has {} bytes", read.len());
    }
}

#[test]
fn a_server_without_room_says_so_and_loses_nothing() {
    let disk = Disk::new("ext4", 48);
    let world = World::with_snapshot();
    let folder = tempfile::tempdir().unwrap();
    let engine = RedisServer::start(folder.path(), &[]);
    let state = disk.path().join("state").to_str().unwrap().to_owned();
    let server = Machine::attached_in(&world, state, "server");
    let [client, next] = ["client", "next"].map(|name| Machine::attached(&world, name));
    server.mounts(&[&LISTEN[..], &["--meta", &engine.url()]].concat()).ok();
    client.mounts(&[]).ok();
    (0..3).for_each(|number| write(&client.mount, number).unwrap());
    // Another program takes what is left.
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[7; 1 << 16]).is_ok() {}
    let _ = file.sync_all();
    let failed = (3..MANY).find_map(|number| write(&client.mount, number).err().map(|error| (number, error)));
    let (full, error) = failed.expect("it never gets full");
    assert_eq!(error.raw_os_error(), Some(28), "file {full}: {error}");
    // It still serves, and what was synced is whole.
    check(&client.mount, 0..full);
    client.mount.sh("test -d .; ls > /dev/null");
    drop(file);
    fs::remove_file(&filler).unwrap();
    wait_until("it goes on", || write(&client.mount, full).is_ok());
    // Also on the next server.
    kill(server.mount.pid(), "-KILL");
    wait_until("the mount is dead", || server.mount.is_dead());
    next.mounts(&LISTEN).ok();
    check(&client.mount, 0..full + 1);
    write(&client.mount, full + 1).unwrap();
    client.mount.umount().ok();
    next.mount.umount().ok();
}

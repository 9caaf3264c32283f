//! Checked-out worktrees on a disk that somebody else has filled: the way out of it works.

use std::fs::{self, File};
use std::io::Write;

use crate::disk::Disk;
use crate::world::{World, noise};

/// Takes every byte of a disk.
pub fn fill(disk: &Disk) {
    let mut file = File::create(disk.path().join("filler")).unwrap();
    for len in [1 << 20, 4096, 1] {
        while file.write_all(&noise(len)).is_ok() {}
    }
    // Names and small files take what is left between the blocks.
    for number in 0.. {
        if fs::write(disk.path().join(format!("filler-{number}")), [1; 4096]).is_err() {
            break;
        }
    }
}

/// Three tagged snapshots with 2 MiB each that the others do not have.
fn with_snapshots(disk: &Disk) -> World {
    let world = World::on(&disk.path());
    world.run(&["init", "-q", "--plain"]).ok();
    let content = noise(6 << 20);
    for (tag, part) in ["one", "two", "three"].into_iter().zip(content.chunks(2 << 20)) {
        world.write("large", part);
        world.snapshot(tag);
    }
    world
}

#[test]
fn a_disk_that_others_filled_is_freed_by_removing_tags_and_collecting() {
    for disk in [Disk::in_memory(32), Disk::new("ext4", 64), Disk::new("btrfs", 160)] {
        let world = with_snapshots(&disk);
        fill(&disk);
        world.run(&["tag", "remove", "one"]).ok();
        world.run(&["tag", "remove", "two"]).ok();
        world.run(&["forget", "HEAD~1", "HEAD~2"]).ok();
        world.run(&["gc", "run"]).ok().says("Freed 4.0 MiB");
        world.run(&["verify", "--all"]).ok();
        // There is room again for what goes on.
        world.write("more", "more");
        world.run(&["snapshot", "-q", "-m", "four"]).ok();
    }
}

#[test]
fn a_quota_that_is_used_up_is_a_full_disk_and_freed_in_the_same_way() {
    let disk = Disk::with_quota(40);
    let world = with_snapshots(&disk);
    fill(&disk);
    let refused = fs::write(disk.path().join("more"), noise(1 << 20)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::QuotaExceeded);
    world.run(&["tag", "remove", "one"]).ok();
    world.run(&["tag", "remove", "two"]).ok();
    world.run(&["forget", "HEAD~1", "HEAD~2"]).ok();
    world.run(&["gc", "run"]).ok().says("Freed 4.0 MiB");
    world.run(&["verify", "--all"]).ok();
    world.run(&["snapshot", "-q", "-m", "four"]).ok();
}

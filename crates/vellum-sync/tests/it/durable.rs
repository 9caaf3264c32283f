//! Moved entries whose copies are on other filesystems than the destination's root.

use std::fs;

use vellum_sync::model::options::SyncOptions;

use crate::disk::Disk;
use crate::run::{everything, sync};

/// More than the filesystem that holds the disk's file can take.
const CONTENT_LEN: usize = 8 << 20;

#[test]
fn a_filesystem_below_the_destination_that_cannot_be_synced_makes_nothing_durable() {
    let backing = Disk::in_memory(4);
    let disk = Disk::losing_writes(&backing);
    let temp = tempfile::tempdir().unwrap();
    let from = temp.path().join("from");
    let to = temp.path().join("to");
    for dir in [from.join("mounted"), to.join("mounted")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(from.join("mounted/file"), vec![b'x'; CONTENT_LEN]).unwrap();
    disk.also_at(&to.join("mounted"));
    let options = SyncOptions { moves: true, stamps: true, ..everything() };
    let report = sync(&from, &to, &options);
    disk.gone_from(&to.join("mounted"));
    assert!(!report.durable && !report.stopped, "{report:?}");
    assert!(report.problems.iter().any(|problem| problem.path == b"mounted"), "{report:?}");
}

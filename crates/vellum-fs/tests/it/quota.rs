//! How much a worktree holds, and may hold.

use rustix::io::Errno;
use vellum_fs::AttributeChanges;
use vellum_fs::publish::PublishProgress;
use vellum_types::{Ino, SnapshotId};
use vellum_volume::refs::WorktreeQuota;

use crate::check::check_usage;
use crate::stand::{CALLER, MOVE, ROOT, Stand, errno, request};
use vellum_fs::StateReader;
use vellum_testkit::random::{TestRandom, choose_seed};

const STEPS: usize = 1500;
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Random changes among everything that moves state about.
struct Run {
    stand: Stand,
    random: TestRandom,
    snapshots: Vec<SnapshotId>,
    open: Vec<Ino>,
}

impl Run {
    fn change(&mut self) {
        let name = self.random.pick_item(&NAMES);
        let size = self.random.next_below(200_000);
        let fs = &self.stand;
        // Most of it fails, as what is asked for is there, or is not: that must count for nothing.
        match self.random.next_below(9) {
            0 | 1 => drop(fs.create(name)),
            2 => drop(fs.mkdir(name)),
            3 => drop(fs.names().symlink(ROOT, name.as_bytes(), &[b'x'; 100], CALLER)),
            4 => drop(fs.unlink(name).or_else(|_| fs.rmdir(name))),
            5 => drop(fs.rename(name, self.random.pick_item(&NAMES), MOVE)),
            6 => {
                let Ok(node) = fs.names().resolve_path(name.as_bytes()) else { return };
                drop(fs.attributes().setattr(
                    node.ino,
                    &AttributeChanges { size: Some(size), ..AttributeChanges::default() },
                    CALLER,
                ));
            }
            7 => {
                let Ok(node) = fs.names().resolve_path(name.as_bytes()) else { return };
                let data = vec![7; self.random.next_below(5000) as usize];
                drop(fs.content().write(node.ino, size, &data, false));
            }
            _ => {
                let Ok(node) = fs.names().resolve_path(name.as_bytes()) else { return };
                self.open.extend(fs.hold(node.ino));
            }
        }
    }

    fn close_all(&mut self) {
        for held in self.open.drain(..) {
            self.stand.release(held).unwrap();
        }
    }
}

#[test]
fn what_is_counted_is_what_there_is() {
    let random = TestRandom::new(choose_seed());
    let mut run = Run { stand: Stand::new(), random, snapshots: Vec::new(), open: Vec::new() };
    for _ in 0..STEPS {
        run.change();
        match run.random.next_below(60) {
            0 => run.snapshots.push(run.stand.create_snapshot(&request()).unwrap()),
            1 => run.stand.publisher().publish_all().unwrap(),
            2 => drop(run.stand.publisher().publish_oldest().unwrap()),
            3 if !run.snapshots.is_empty() => {
                run.close_all();
                let target = run.random.pick_item(&run.snapshots);
                run.stand.restore_snapshot(target, true).unwrap();
            }
            4 => {
                run.open.clear();
                run.stand = run.stand.again();
            }
            5 => run.close_all(),
            _ => continue,
        }
        check_usage(&run.stand.fs);
    }
}

#[test]
fn publishing_ends_though_an_open_file_has_no_name() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.content().write(file, 0, &[1; 100_000], false).unwrap();
    let held = fs.hold(file).unwrap();
    fs.unlink("f").unwrap();
    fs.publisher().publish_all().unwrap();
    fs.create("g").unwrap();
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.read(file, 99_999, 10).unwrap(), [1]);
    check_usage(&fs.fs);
    fs.release(held).unwrap();
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.unpublished_changes().unwrap().sealed_layers, 0);
}

#[test]
fn publishing_ends_though_a_file_that_it_cut_is_written_meanwhile() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.content().write(file, 0, &[1; 100_000], false).unwrap();
    fs.create_snapshot(&request()).unwrap();
    fs.content().write(file, 50_000, &[2; 10], false).unwrap();
    while fs.publisher().publish_oldest().unwrap() == PublishProgress::Some {}
    assert_eq!(fs.read(file, 49_999, 3).unwrap(), [1, 2, 2]);
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.read(file, 49_999, 3).unwrap(), [1, 2, 2]);
    assert_eq!(fs.unpublished_changes().unwrap().sealed_layers, 0);
}

fn quota(bytes: Option<u64>, inodes: Option<u64>) -> WorktreeQuota {
    WorktreeQuota { bytes, inodes }
}

#[test]
fn nothing_grows_above_the_quota() {
    let fs = Stand::new();
    fs.attributes().set_worktree_quota(quota(Some(10_000), Some(3))).unwrap();
    let file = fs.create("f").unwrap().ino;
    let other = fs.create("g").unwrap().ino;
    assert_eq!(errno(fs.create("h")), Errno::DQUOT);
    assert_eq!(errno(fs.mkdir("h")), Errno::DQUOT);
    assert_eq!(errno(fs.names().symlink(ROOT, b"h", b"f", CALLER)), Errno::DQUOT);
    fs.content().write(file, 0, &[1; 9_000], false).unwrap();
    assert_eq!(errno(fs.content().write(other, 0, &[1; 1_001], false)), Errno::DQUOT);
    assert_eq!(errno(fs.content().write(file, 9_000, &[1; 1_001], false)), Errno::DQUOT);
    fs.content().write(other, 0, &[1; 1_000], false).unwrap();
    // What makes nothing larger goes on, and so does what makes it smaller.
    fs.content().write(file, 0, &[2; 9_000], false).unwrap();
    fs.link("f", "hard").unwrap();
    fs.rename("g", "moved", MOVE).unwrap();
    let size = |size| AttributeChanges { size: Some(size), ..AttributeChanges::default() };
    assert_eq!(errno(fs.attributes().setattr(file, &size(9_001), CALLER)), Errno::DQUOT);
    fs.attributes().setattr(file, &size(8_000), CALLER).unwrap();
    fs.attributes().setattr(file, &size(9_000), CALLER).unwrap();
    check_usage(&fs.fs);
    // Below what there is: everything stays, and may become less.
    fs.attributes().set_worktree_quota(quota(Some(5_000), Some(1))).unwrap();
    assert_eq!(errno(fs.content().append_to_file(file, b"x", false)), Errno::DQUOT);
    fs.unlink("moved").unwrap();
    fs.attributes().setattr(file, &size(6_000), CALLER).unwrap();
    assert_eq!(errno(fs.create("h")), Errno::DQUOT);
    fs.attributes().set_worktree_quota(WorktreeQuota::default()).unwrap();
    fs.create("h").unwrap();
    fs.content().append_to_file(file, &[0; 100_000], false).unwrap();
    check_usage(&fs.fs);
}

#[test]
fn what_has_no_name_counts_for_nothing() {
    let fs = Stand::new();
    fs.attributes().set_worktree_quota(quota(Some(1_000), None)).unwrap();
    let file = fs.create("f").unwrap().ino;
    fs.content().write(file, 0, &[1; 1_000], false).unwrap();
    let held = fs.hold(file).unwrap();
    let next = fs.create("g").unwrap().ino;
    assert_eq!(errno(fs.content().append_to_file(next, b"x", false)), Errno::DQUOT);
    fs.unlink("f").unwrap();
    fs.content().append_to_file(next, b"x", false).unwrap();
    check_usage(&fs.fs);
    fs.release(held).unwrap();
    check_usage(&fs.fs);
}

#[test]
fn the_room_is_that_of_the_quota() {
    let fs = Stand::new();
    fs.attributes().set_worktree_quota(quota(Some(1 << 20), Some(10))).unwrap();
    let file = fs.create("f").unwrap().ino;
    fs.content().write(file, 0, &[1; 300_000], false).unwrap();
    let room = fs.attributes().statfs().unwrap();
    let size = u64::from(room.block_size);
    assert_eq!((room.blocks, room.files, room.files_free), ((1 << 20) / size, 10, 8));
    assert_eq!(room.blocks_free, ((1 << 20) - 300_000) / size);
    assert!(room.blocks_available <= room.blocks_free);
    fs.attributes().set_worktree_quota(quota(Some(100_000), Some(1))).unwrap();
    let full = fs.attributes().statfs().unwrap();
    assert_eq!((full.blocks_free, full.blocks_available, full.files_free), (0, 0, 0));
    // It is part of what the worktree's ref says.
    let volume = fs.volume();
    let head = volume.read_worktree_head(&volume.worktree.worktree).unwrap().unwrap();
    assert_eq!(head.quota, quota(Some(100_000), Some(1)));
}

#[test]
fn many_at_once_stay_below_the_quota() {
    let fs = Stand::new();
    fs.attributes().set_worktree_quota(quota(None, Some(101))).unwrap();
    let made: usize = std::thread::scope(|scope| {
        let make = |thread: usize| {
            let fs = &fs.fs;
            let one = move |number| {
                fs.names().create(ROOT, format!("{thread}-{number}").as_bytes(), 0o644, CALLER).is_ok()
            };
            scope.spawn(move || (0..40).filter(|number| one(*number)).count())
        };
        let threads: Vec<_> = (0..4).map(make).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 100);
    check_usage(&fs.fs);
}

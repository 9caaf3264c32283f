//! Files that the kernel holds when their last name goes, and forgets soon after: removed together.

use vellum_fs::StateReader;
use vellum_fs::lease::has_unpublished_state;
use vellum_fs::{AttributeChanges, LiveFilesystem};
use vellum_live::sim::{LOSSES, SimRandom};
use vellum_types::Ino;

use crate::check::check;
use crate::machine::Machine;
use crate::stand::{CALLER, ROOT, Stand};

const FILES: usize = 300;

/// Files that are held, as the kernel does: inline ones and ones in the log.
fn make(stand: &Stand, count: usize) -> Vec<Ino> {
    let make = |number: usize| {
        let ino = stand.create(&format!("f{number}")).unwrap().ino;
        let len = if number.is_multiple_of(3) { 5000 } else { 1000 };
        stand.content().write(ino, 0, &vec![7; len], false).unwrap();
        stand.epochs().hold_inode(stand.epochs().current_epoch(), ino).unwrap();
        ino
    };
    (0..count).map(make).collect()
}

fn unlink_all(fs: &LiveFilesystem, count: usize) {
    (0..count).for_each(|number| fs.names().unlink(ROOT, format!("f{number}").as_bytes(), 0).unwrap());
}

fn forget_all(fs: &LiveFilesystem, inodes: &[Ino]) {
    inodes.iter().for_each(|ino| {
        assert!(fs.epochs().defer_inode_release(fs.epochs().current_epoch(), *ino, 1).unwrap())
    });
}

fn exists(fs: &LiveFilesystem, ino: Ino) -> bool {
    fs.live_map().read_head_state(|view| view.inode_attr(ino)).unwrap().is_some()
}

#[test]
fn removing_many_files_takes_few_transactions_more() {
    let (machine, stand) = Machine::new();
    let inodes = make(&stand, FILES);
    unlink_all(&stand, FILES);
    let before = machine.live.statistics().transactions;
    forget_all(&stand, &inodes);
    stand.epochs().remove_released_orphans().unwrap();
    let took = machine.live.statistics().transactions - before;
    assert!(took <= 4, "{took} transactions for {FILES} files");
    assert!(inodes.iter().all(|ino| !exists(&stand, *ino)));
    check(&stand.fs);
}

#[test]
fn one_that_is_held_or_named_again_stays() {
    let stand = Stand::new();
    let inodes = make(&stand, 3);
    unlink_all(&stand, 3);
    forget_all(&stand, &inodes);
    stand.epochs().hold_inode(stand.epochs().current_epoch(), inodes[0]).unwrap();
    stand.fs.names().link(inodes[1], ROOT, b"again").unwrap();
    stand.epochs().remove_released_orphans().unwrap();
    assert_eq!([0, 1, 2].map(|at| exists(&stand, inodes[at])), [true, true, false]);
    assert!(stand.epochs().defer_inode_release(stand.epochs().current_epoch(), inodes[0], 1).unwrap());
    stand.epochs().remove_released_orphans().unwrap();
    assert!(!exists(&stand, inodes[0]) && exists(&stand, inodes[1]));
    check(&stand.fs);
}

#[test]
fn what_publishing_leaves_of_them_is_not_unpublished_work() {
    let stand = Stand::new();
    make(&stand, 6);
    let is_unpublished = || has_unpublished_state(&**stand.live_map().live_store()).unwrap();
    stand.publisher().publish_all().unwrap();
    // They are written to before they lose their names, and after the tree was published that has them.
    (0..6).for_each(|number| {
        stand.content().write(stand.at(&format!("f{number}")).ino, 0, &[8; 6000], false).unwrap();
    });
    unlink_all(&stand, 6);
    assert!(is_unpublished());
    stand.publisher().publish_all().unwrap();
    assert_eq!(stand.unpublished_changes().unwrap().sealed_layers, 1);
    assert!(!is_unpublished());
    stand.create("named").unwrap();
    assert!(is_unpublished());
    stand.publisher().publish_all().unwrap();
    assert!(!is_unpublished());
}

#[test]
fn a_restore_meets_none_of_them() {
    let stand = Stand::new();
    let inodes = make(&stand, 3);
    let snapshot = stand.create_snapshot(&crate::stand::request()).unwrap();
    unlink_all(&stand, 3);
    forget_all(&stand, &inodes);
    stand.restore_snapshot(snapshot, true).unwrap();
    stand.epochs().remove_released_orphans().unwrap();
    assert!(stand.exists("f0") && stand.exists("f2"));
    let mode = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    stand.attributes().setattr(stand.at("f1").ino, &mode, CALLER).unwrap();
    check(&stand.fs);
}

/// After a crash at any moment all that has no name is gone, and nothing else.
#[test]
fn a_crash_while_they_are_removed_leaves_none_behind() {
    const COUNT: usize = 12;
    let (machine, stand) = Machine::new();
    let kept = stand.create("kept").unwrap().ino;
    stand.content().write(kept, 0, &[1; 2000], false).unwrap();
    let inodes = make(&stand, COUNT);
    unlink_all(&stand, COUNT);
    stand.content().sync_all().unwrap();
    let first = machine.disk.operation_count();
    forget_all(&stand, &inodes);
    stand.epochs().remove_released_orphans().unwrap();
    stand.content().sync_all().unwrap();
    let mut random = SimRandom(7);
    for ops in first..=machine.disk.operation_count() {
        for loss in LOSSES {
            let (_machine, found) = machine.boot(machine.crash(ops, loss, &mut random));
            for ino in &inodes {
                assert!(!exists(&found, *ino), "{loss:?} after {ops} operations: inode {ino}");
            }
            assert_eq!(found.read(found.at("kept").ino, 0, 9000).unwrap(), [1; 2000], "{loss:?} after {ops}");
            check(&found.fs);
        }
    }
}

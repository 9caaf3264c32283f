//! Files that lost their last name while they were open.

use crate::StateReader;
use rustix::io::Errno;
use vellum_types::Ino;

use super::world::{CHUNKED, World, chunked, content, extents};
use crate::{Epoch, LiveFilesystem};

/// What taking the last name away does to the inode.
fn unlink(fs: &LiveFilesystem, ino: Ino) {
    fs.live_map()
        .apply_change(|txn| {
            let mut attr = crate::tree::MapReader::expect_inode_attr(txn, ino)?;
            (attr.nlink, attr.parent, attr.name) = (0, Ino::SUPER, Vec::new());
            txn.set_inode_attr(ino, &attr);
            txn.add_orphan(ino);
            Ok(())
        })
        .unwrap();
}

fn is_gone(fs: &LiveFilesystem, ino: Ino) -> bool {
    let gone = fs.read(ino, 0, 1).is_err_and(|error| error.errno() == Errno::STALE);
    assert_eq!(gone, extents(fs, ino).is_empty());
    gone
}

fn hold(fs: &LiveFilesystem) {
    fs.epochs().hold_inode(Epoch::default(), CHUNKED).unwrap();
}

fn release(fs: &LiveFilesystem) {
    fs.epochs().release_inode(Epoch::default(), CHUNKED, 1).unwrap();
}

#[test]
fn a_file_without_a_name_goes_at_the_last_close() {
    let world = World::new();
    let fs = world.open();
    hold(&fs);
    hold(&fs);
    unlink(&fs, CHUNKED);
    fs.content().remove_if_unused(CHUNKED).unwrap();
    release(&fs);
    fs.content().append_to_file(CHUNKED, b"more", false).unwrap();
    assert_eq!(content(&fs, CHUNKED), [&chunked(), b"more".as_slice()].concat());
    release(&fs);
    assert!(is_gone(&fs, CHUNKED));
}

#[test]
fn a_file_with_a_name_stays_at_the_last_close() {
    let world = World::new();
    let fs = world.open();
    hold(&fs);
    release(&fs);
    assert_eq!(content(&fs, CHUNKED), chunked());
}

#[test]
fn what_was_left_open_goes_when_the_worktree_is_opened_again() {
    let world = World::new();
    let fs = world.open();
    hold(&fs);
    unlink(&fs, CHUNKED);
    drop(fs);
    let fs = world.open();
    assert!(is_gone(&fs, CHUNKED));
    drop(fs);
    assert!(is_gone(&world.open(), CHUNKED));
}

//! Files that lost their last name while they were open.

use crate::StateReader;
use rustix::io::Errno;
use vellum_types::Ino;

use super::world::{CHUNKED, World, attr, chunked, content, extents};
use crate::attributes::clock::wait_for_tick;
use crate::{LiveFilesystem, OpenFlags};

/// What taking the last name away does to the inode.
fn unlink(fs: &LiveFilesystem, ino: Ino) {
    fs.apply_change(|txn| {
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

#[test]
fn a_file_without_a_name_goes_at_the_last_close() {
    let world = World::new();
    let fs = world.open();
    let first = fs.open_file(CHUNKED, OpenFlags::default()).unwrap();
    let second = fs.open_file(CHUNKED, OpenFlags { write: true, ..OpenFlags::default() }).unwrap();
    unlink(&fs, CHUNKED);
    fs.remove_if_unused(CHUNKED).unwrap();
    fs.close_handle(first).unwrap();
    fs.append_to_file(CHUNKED, b"more").unwrap();
    assert_eq!(content(&fs, CHUNKED), [&chunked(), b"more".as_slice()].concat());
    fs.close_handle(second).unwrap();
    assert!(is_gone(&fs, CHUNKED));
    assert!(fs.open_file(CHUNKED, OpenFlags::default()).is_err());
}

#[test]
fn a_file_with_a_name_stays_at_the_last_close() {
    let world = World::new();
    let fs = world.open();
    let handle = fs.open_file(CHUNKED, OpenFlags::default()).unwrap();
    fs.close_handle(handle).unwrap();
    assert_eq!(content(&fs, CHUNKED), chunked());
}

#[test]
fn what_was_left_open_goes_when_the_worktree_is_opened_again() {
    let world = World::new();
    let fs = world.open();
    fs.open_file(CHUNKED, OpenFlags::default()).unwrap();
    unlink(&fs, CHUNKED);
    drop(fs);
    let fs = world.open();
    assert!(is_gone(&fs, CHUNKED));
    drop(fs);
    assert!(is_gone(&world.open(), CHUNKED));
}

#[test]
fn opening_with_truncation_empties() {
    let world = World::new();
    let fs = world.open();
    let before = attr(&fs, CHUNKED).mtime;
    wait_for_tick();
    fs.open_file(CHUNKED, OpenFlags { write: true, truncate: true, ..OpenFlags::default() }).unwrap();
    assert!(content(&fs, CHUNKED).is_empty() && extents(&fs, CHUNKED).is_empty());
    assert!(attr(&fs, CHUNKED).mtime > before);
}

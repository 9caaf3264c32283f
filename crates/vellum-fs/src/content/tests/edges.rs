//! Bounds: the largest size, the longest extent, what stays inline, damage beneath.

use std::collections::BTreeSet;

use rustix::io::Errno;
use vellum_types::limits::{EXTENT_MAX, FILE_SIZE_MAX, INLINE_MAX};
use vellum_volume::VolumeError;

use crate::StateReader;
use vellum_types::{ExtentSource, Ino, MapKey};

use super::world::{
    CHUNK, CHUNKED, NEW, SMALL, World, attr, check, chunked, content, extents, make, pattern, small,
};
use crate::attributes::clock::wait_for_tick;
use crate::{AllocateMode, FsError, LiveFilesystem, Result, SeekTarget};

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn set_mode(fs: &LiveFilesystem, ino: Ino, mode: u32) {
    let mut attr = attr(fs, ino);
    attr.mode = mode;
    fs.live_map()
        .apply_change(|txn| {
            txn.set_inode_attr(ino, &attr);
            txn.set_key(MapKey::for_xattr(ino, b"security.capability"), b"all");
            Ok(())
        })
        .unwrap();
}

#[test]
fn small_content_never_goes_to_the_log() {
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    fs.content().write(NEW, 0, &[1; 1000], false).unwrap();
    fs.content().append_to_file(NEW, &vec![2; INLINE_MAX - 1000], false).unwrap();
    fs.content().write(NEW, 0, &vec![3; INLINE_MAX], false).unwrap();
    assert_eq!((fs.write_log().used_bytes(), attr(&fs, NEW).inline), (0, Some(vec![3; INLINE_MAX])));
    fs.content().append_to_file(NEW, &[4], false).unwrap();
    assert!(fs.write_log().used_bytes() > 0);
    assert_eq!(attr(&fs, NEW).inline, None);
    check(&fs, NEW);
}

#[test]
fn a_file_grows_to_the_largest_size_and_no_further() {
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    assert_eq!(errno(fs.content().write(NEW, FILE_SIZE_MAX, b"x", false)), Some(Errno::FBIG));
    assert_eq!(errno(fs.content().truncate(NEW, FILE_SIZE_MAX + 1)), Some(Errno::FBIG));
    assert_eq!(
        errno(fs.content().fallocate(NEW, AllocateMode::default(), FILE_SIZE_MAX, 1)),
        Some(Errno::FBIG)
    );
    assert_eq!(errno(fs.content().fallocate(NEW, AllocateMode::default(), u64::MAX, 2)), Some(Errno::FBIG));
    assert_eq!(fs.content().write(NEW, FILE_SIZE_MAX - 3, b"12345", false).unwrap(), 3);
    assert_eq!(attr(&fs, NEW).size, FILE_SIZE_MAX);
    assert_eq!(errno(fs.content().append_to_file(NEW, b"x", false)), Some(Errno::FBIG));
    assert_eq!(fs.read(NEW, FILE_SIZE_MAX - 4, 100).unwrap(), b"\x00123");
    assert_eq!(fs.seek_data_or_hole(NEW, 5, SeekTarget::Data).unwrap(), FILE_SIZE_MAX - 3);
    assert_eq!(fs.seek_data_or_hole(NEW, FILE_SIZE_MAX - 1, SeekTarget::Hole).unwrap(), FILE_SIZE_MAX);
    assert_eq!(errno(fs.content().copy_range(SMALL, 0, NEW, FILE_SIZE_MAX, 1)), Some(Errno::FBIG));
    check(&fs, NEW);
}

#[test]
fn a_write_longer_than_an_extent_is_cut_and_whole() {
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    let data = pattern(2 * EXTENT_MAX as usize + 5, 3);
    assert_eq!(fs.content().write(NEW, 10, &data, false).unwrap(), data.len());
    assert_eq!(extents(&fs, NEW).len(), 3);
    // What covers a byte near the end of a longest extent is found.
    fs.content().write(NEW, EXTENT_MAX + 8, b"ab", false).unwrap();
    let mut model = [vec![0; 10], data].concat();
    model[EXTENT_MAX as usize + 8..][..2].copy_from_slice(b"ab");
    assert!(content(&fs, NEW) == model);
    check(&fs, NEW);
}

#[test]
fn an_overwritten_chunk_keeps_what_is_around() {
    let world = World::new();
    let fs = world.open();
    fs.content().write(CHUNKED, 10, b"abc", false).unwrap();
    let sources: Vec<_> =
        extents(&fs, CHUNKED).into_iter().take(3).map(|(at, e)| (at, e.len, e.source)).collect();
    let [(0, 10, ExtentSource::Chunk { id, skip: 0 }), (10, 3, ExtentSource::WriteLog { .. }), after] =
        sources[..]
    else {
        panic!("{sources:?}")
    };
    assert_eq!(after, (13, CHUNK as u64 - 13, ExtentSource::Chunk { id, skip: 13 }));
}

#[test]
fn copies_share_extents() {
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    let len = chunked().len() as u64;
    assert_eq!(fs.content().copy_range(CHUNKED, 0, NEW, 0, u64::MAX).unwrap(), len);
    assert_eq!(extents(&fs, NEW), extents(&fs, CHUNKED));
    assert_eq!((content(&fs, NEW), fs.write_log().used_bytes()), (chunked(), 0));
}

#[test]
fn what_is_shared_keeps_its_segment() {
    let world = World::new();
    let fs = world.open();
    [NEW, Ino(101)].iter().for_each(|ino| make(&fs, *ino));
    fs.content().write(NEW, 0, &[1; 5000], false).unwrap();
    fs.write_log().rotate_segment();
    let sealed = fs.write_log().sealed_segments();
    // After the question, before the answer: what it is named by now, a look at the map may have passed already.
    fs.content().copy_range(NEW, 0, Ino(101), 0, 5000).unwrap();
    fs.content().truncate(NEW, 0).unwrap();
    fs.write_log().remove_unnamed(&sealed, &BTreeSet::new()).unwrap();
    assert_eq!(content(&fs, Ino(101)), [1; 5000]);
    fs.content().truncate(Ino(101), 0).unwrap();
    fs.write_log().remove_unnamed(&fs.write_log().sealed_segments(), &BTreeSet::new()).unwrap();
    assert_eq!(fs.write_log().used_bytes(), 0);
}

#[test]
fn modes_of_fallocate_that_are_not_there_are_refused() {
    let world = World::new();
    let fs = world.open();
    let none = AllocateMode::default();
    for mode in [
        AllocateMode { collapse_range: true, ..none },
        AllocateMode { insert_range: true, ..none },
        AllocateMode { punch_hole: true, ..none },
        AllocateMode { punch_hole: true, zero_range: true, keep_size: true, ..none },
    ] {
        assert_eq!(errno(fs.content().fallocate(CHUNKED, mode, 0, 10)), Some(Errno::OPNOTSUPP));
    }
    assert_eq!(errno(fs.content().fallocate(CHUNKED, none, 0, 0)), Some(Errno::INVAL));
    let before = attr(&fs, CHUNKED);
    fs.content().fallocate(CHUNKED, AllocateMode { keep_size: true, ..none }, 0, 1 << 20).unwrap();
    assert_eq!(attr(&fs, CHUNKED), before);
    let all = AllocateMode { keep_size: true, ..none };
    assert_eq!(errno(fs.content().fallocate(CHUNKED, all, 0, 1 << 60)), Some(Errno::NOSPC));
    assert_eq!(errno(fs.content().fallocate(CHUNKED, none, 0, 1 << 60)), Some(Errno::NOSPC));
    assert_eq!(attr(&fs, CHUNKED), before);
}

#[test]
fn only_files_have_content() {
    let world = World::new();
    let fs = world.open();
    assert_eq!(errno(fs.read(Ino::ROOT, 0, 1)), Some(Errno::ISDIR));
    assert_eq!(errno(fs.content().write(Ino::ROOT, 0, b"", false)), Some(Errno::ISDIR));
    assert_eq!(errno(fs.content().truncate(Ino(77), 0)), Some(Errno::STALE));
}

#[test]
fn an_unprivileged_write_takes_privileges_away() {
    let world = World::new();
    let fs = world.open();
    for (mode, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o644, 0o644)] {
        for (ino, len) in [(SMALL, 1), (CHUNKED, 5000)] {
            set_mode(&fs, ino, mode);
            fs.content().write(ino, 0, &vec![1; len], false).unwrap();
            assert_eq!(attr(&fs, ino).mode, mode);
            fs.content().write(ino, 0, &vec![1; len], true).unwrap();
            assert_eq!(attr(&fs, ino).mode, after);
            let key = MapKey::for_xattr(ino, b"security.capability");
            assert_eq!(fs.live_map().read_head_state(|view| view.get_value(&key)).unwrap(), None);
        }
    }
}

#[test]
fn times_follow_content() {
    let world = World::new();
    let fs = world.open();
    let change = |what: &dyn Fn()| {
        let before = attr(&fs, SMALL);
        wait_for_tick();
        what();
        let after = attr(&fs, SMALL);
        assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    };
    change(&|| assert!(fs.content().write(SMALL, 0, b"x", false).is_ok()));
    change(&|| fs.content().truncate(SMALL, small().len() as u64).unwrap());
    change(&|| fs.content().fallocate(SMALL, AllocateMode::default(), 0, 10_000).unwrap());
    change(&|| assert!(fs.content().copy_range(CHUNKED, 0, SMALL, 0, 9000).is_ok()));
}

#[test]
fn a_damaged_chunk_fails_the_reads_that_need_it() {
    let world = World::new();
    let fs = world.open();
    let [.., (last, _)] = extents(&fs, CHUNKED)[..] else { panic!("no extents") };
    let other = vellum_types::BlobId([7; 32]);
    fs.live_map()
        .apply_change(|txn| {
            let extent = vellum_types::Extent { len: 17, source: ExtentSource::Chunk { id: other, skip: 0 } };
            txn.set_key(MapKey::for_extent(CHUNKED, last), &extent.encode());
            Ok(())
        })
        .unwrap();
    let failed = fs.read(CHUNKED, 0, usize::MAX);
    assert!(matches!(failed, Err(FsError::Volume(VolumeError::Content { ino: CHUNKED, .. }))));
    assert_eq!(errno(failed), Some(Errno::IO));
    assert_eq!(fs.read(CHUNKED, 0, last as usize).unwrap(), chunked()[..last as usize]);
}

#[test]
fn a_read_in_sequence_fetches_ahead() {
    let world = World::new();
    let fs = world.open();
    let mut read = Vec::new();
    while read.len() < chunked().len() {
        read.extend(fs.read(CHUNKED, read.len() as u64, 1000).unwrap());
    }
    assert_eq!(read, chunked());
}

/// The kernel asks for it after each write to a file that it has cached, so it is not counted each time.
#[test]
fn what_a_file_of_many_pieces_takes_follows_each_change() {
    const PIECE: u64 = 4096;
    const PIECES: u64 = 600;
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    // Every second page is a hole.
    for piece in 0..PIECES {
        fs.content().write(NEW, 2 * piece * PIECE, &[1; PIECE as usize], false).unwrap();
    }
    let stored = || fs.stored_bytes(NEW, &fs.inode_attr(NEW).unwrap()).unwrap();
    assert_eq!(stored(), PIECES * PIECE);
    fs.content().append_to_file(NEW, &[2; 100], false).unwrap();
    assert_eq!(stored(), PIECES * PIECE + 100);
    let punch = AllocateMode { punch_hole: true, keep_size: true, ..AllocateMode::default() };
    fs.content().fallocate(NEW, punch, 0, 10 * PIECE).unwrap();
    assert_eq!(stored(), (PIECES - 5) * PIECE + 100);
    fs.content().truncate(NEW, 1).unwrap();
    fs.content().truncate(NEW, 2 * PIECES * PIECE).unwrap();
    assert_eq!(stored(), 0);
    // A hole that was filled is counted before long.
    for piece in 0..PIECES {
        fs.content().write(NEW, 2 * piece * PIECE, &[1; PIECE as usize], false).unwrap();
    }
    stored();
    fs.content().write(NEW, PIECE, &[1; PIECE as usize], false).unwrap();
    while stored() != (PIECES + 1) * PIECE {
        std::thread::yield_now();
    }
    // Another state, another count.
    fs.forget_cached_state();
    assert_eq!(stored(), (PIECES + 1) * PIECE);
}

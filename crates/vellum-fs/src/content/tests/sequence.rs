//! Files that are read whole, one after the other, bring those after them into memory.

use std::time::{Duration, Instant};

use vellum_types::Ino;

use super::world::{World, content, make, pattern};
use crate::LiveFilesystem;
use crate::StateReader;

/// The first of the files, and how many there are.
const FIRST: u64 = 300;
const COUNT: u64 = 40;
/// Bytes of each: more than stands inline.
const SIZE: usize = 9000;

/// Files that are published, in a filesystem that has decoded none of their chunks.
fn publish_files(world: &World) -> LiveFilesystem {
    let fs = world.open();
    for number in FIRST..FIRST + COUNT {
        make(&fs, Ino(number));
        fs.content().write(Ino(number), 0, &pattern(SIZE, number), false).unwrap();
    }
    fs.publisher().publish_all().unwrap();
    drop(fs);
    world.open()
}

fn is_cached(fs: &LiveFilesystem, number: u64) -> bool {
    fs.content().is_content_cached(Ino(number), 0, SIZE)
}

#[test]
fn files_read_in_order_bring_the_next_ones() {
    let world = World::new();
    let fs = publish_files(&world);
    for number in FIRST..FIRST + 3 {
        assert!(!is_cached(&fs, FIRST + COUNT - 1), "the last file is in memory before anybody came near");
        assert!(content(&fs, Ino(number)) == pattern(SIZE, number));
    }
    let start = Instant::now();
    while !(FIRST..FIRST + COUNT).all(|number| is_cached(&fs, number)) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was fetched ahead");
        std::thread::yield_now();
    }
    for number in FIRST..FIRST + COUNT {
        assert!(content(&fs, Ino(number)) == pattern(SIZE, number));
    }
}

#[test]
fn the_beginnings_of_files_bring_nothing() {
    let world = World::new();
    let fs = publish_files(&world);
    for number in FIRST..FIRST + 10 {
        assert_eq!(fs.read(Ino(number), 0, 100).unwrap(), pattern(SIZE, number)[..100]);
    }
    // Whole, but alone.
    let last = Ino(FIRST + COUNT - 1);
    assert!(content(&fs, last) == pattern(SIZE, last.0));
    assert!((FIRST + 10..last.0).all(|number| !is_cached(&fs, number)));
}

//! Files that are overwritten in place: what snapshots of a database cost.

use std::os::unix::fs::FileExt;

use vellum_types::ChunkingMode;

use crate::chance::Chance;
use crate::place::Place;

/// Pages of the file, of 4 KiB each.
const PAGES: usize = 4096;

/// Takes snapshots of a file of which some pages are overwritten each time; gives what each added to the store.
fn grow(head: &[u8]) -> (Vec<u64>, ChunkingMode) {
    let place = Place::new();
    let mut chance = Chance::new(9);
    let mut content = chance.bytes(PAGES * 4096);
    content[..head.len()].copy_from_slice(head);
    place.write("data.db", content);
    let file = std::fs::File::options().write(true).open(place.on("data.db")).unwrap();
    let mut stored = vec![place.snapshot().record.statistics.stored];
    for _ in 0..8 {
        for _ in 0..PAGES / 200 {
            let page = 1 + chance.below(PAGES - 1);
            file.write_all_at(&chance.bytes(300), page as u64 * 4096 + 100).unwrap();
        }
        stored.push(place.snapshot().record.statistics.stored);
    }
    let head = place.tree.head_snapshot().unwrap().unwrap();
    let (_, attr) = place.state(head.record.root).find_path(b"data.db", "").unwrap();
    (stored, attr.chunking)
}

#[test]
fn a_database_is_stored_in_fixed_blocks_from_the_beginning() {
    let (stored, chunking) = grow(b"SQLite format 3\0");
    assert_eq!(chunking, ChunkingMode::Fixed);
    // Twenty pages touch at most twenty blocks of 16 KiB; four fifths of the file stay.
    for added in &stored[1..] {
        assert!(*added < stored[0] / 20, "{stored:?}");
    }
}

#[test]
fn another_file_that_is_overwritten_in_place_is_noticed() {
    let (stored, chunking) = grow(b"no magic number");
    assert_eq!(chunking, ChunkingMode::Fixed);
    for added in &stored[2..] {
        assert!(*added < stored[0] / 20, "{stored:?}");
    }
}

#[test]
fn a_disk_image_is_recognised_although_its_magic_number_is_not_at_its_start() {
    let place = Place::new();
    let mut content = Chance::new(9).bytes(1 << 20);
    content[1080..1082].copy_from_slice(b"\x53\xef");
    place.write("disk.img", content);
    place.snapshot();
    let head = place.tree.head_snapshot().unwrap().unwrap();
    let (_, attr) = place.state(head.record.root).find_path(b"disk.img", "").unwrap();
    assert_eq!(attr.chunking, ChunkingMode::Fixed);
}

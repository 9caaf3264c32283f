#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

const KIB: u64 = 1 << 10;

fn pack_key(number: u64) -> ObjectKey {
    ObjectKey::new(format!("packs/{:02x}/pack-{number}", number % 256)).unwrap()
}

fn content(pack: u64, number: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ pack ^ (number << 3)) as u8).collect()
}

fn cache() -> (TempDir, PackCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = PackCache::new(dir.path().join("cache"));
    (dir, cache)
}

fn blocks_below(path: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(path).into_iter().flatten() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        bytes += if metadata.is_dir() { blocks_below(&entry.path()) } else { metadata.blocks() * 512 };
    }
    bytes
}

#[test]
fn what_was_stored_is_read_by_any_handle() {
    let (_dir, cache) = cache();
    let key = pack_key(1);
    assert_eq!(cache.read_piece(&key, 0), None);
    let pieces = [content(1, 0, PIECE), content(1, 1, PIECE), content(1, 2, 77)].concat();
    cache.store_pieces(&key, 3, &pieces);
    let other = PackCache::new(cache.folder().into());
    assert_eq!(other.read_piece(&key, 2), None);
    assert_eq!(other.read_piece(&key, 3), Some(content(1, 0, PIECE)));
    assert_eq!(other.read_piece(&key, 5), Some(content(1, 2, 77)));
    assert!(other.contains_piece(&key, 4) && !other.contains_piece(&key, 6));
    assert_eq!(other.read_piece(&ObjectKey::new("index/ab").unwrap(), 3), None);
    assert_eq!(fs::metadata(cache.folder()).unwrap().permissions().mode() & 0o777, 0o700);
    other.forget_pack(&key);
    assert_eq!(cache.read_piece(&key, 3), None);
}

#[test]
fn damage_is_a_piece_that_is_not_there() {
    let damages: [fn(&Path, &Path); 7] = [
        |data, _| {
            let mut bytes = fs::read(data).unwrap();
            bytes[1000] ^= 1;
            fs::write(data, bytes).unwrap();
        },
        |data, _| fs::write(data, b"short").unwrap(),
        |data, _| fs::remove_file(data).unwrap(),
        |_, map| fs::remove_file(map).unwrap(),
        |_, map| fs::write(map, b"VLMMAP\x01").unwrap(),
        |_, map| {
            let len = fs::read(map).unwrap().len();
            fs::write(map, vec![0xff; len]).unwrap();
        },
        |_, map| fs::write(map, vec![b'V'; 5_000_000]).unwrap(),
    ];
    for damage in damages {
        let (_dir, cache) = cache();
        let key = pack_key(1);
        cache.store_pieces(&key, 0, &content(1, 0, 3000));
        let data = cache.pack_path(&key).unwrap();
        let map = PathBuf::from(format!("{}.map", data.display()));
        damage(&data, &map);
        assert_eq!(cache.read_piece(&key, 0), None);
        // Fetched again, it is kept again.
        cache.store_pieces(&key, 0, &content(1, 0, 3000));
        assert_eq!(cache.read_piece(&key, 0), Some(content(1, 0, 3000)));
    }
}

#[test]
fn another_pack_in_the_place_of_one_is_not_believed() {
    let (_dir, cache) = cache();
    for pack in [1, 2] {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, 3000));
    }
    let path = |pack| cache.pack_path(&pack_key(pack)).unwrap();
    for suffix in ["", ".map"] {
        let named = |pack| format!("{}{suffix}", path(pack).display());
        fs::rename(named(1), named(2)).unwrap();
    }
    assert_eq!(cache.read_piece(&pack_key(2), 0), None);
}

#[test]
fn the_limit_is_kept_and_what_is_used_stays_longest() {
    let (_dir, cache) = cache();
    cache.set_limit(4 << 20).unwrap();
    let hot = pack_key(0);
    cache.store_pieces(&hot, 0, &content(0, 0, PIECE));
    for pack in 1..60 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
        assert!(blocks_below(&cache.folder().join(PACKS_FOLDER)) <= 4 << 20);
        assert!(cache.read_piece(&hot, 0).is_some(), "it was read {pack} times and is gone");
    }
    assert!(cache.read_piece(&pack_key(59), 0).is_some(), "the last one is there");
    assert_eq!(cache.read_piece(&pack_key(1), 0), None);
    let summary = cache.summarize().unwrap();
    assert_eq!(summary.limit, 4 << 20);
    assert!(summary.packs > 8 && summary.bytes <= 4 << 20, "{summary:?}");

    // Another process sets it, and it counts at once.
    PackCache::new(cache.folder().into()).set_limit(1 << 20).unwrap();
    assert!(blocks_below(&cache.folder().join(PACKS_FOLDER)) <= 1 << 20);
    cache.store_pieces(&pack_key(61), 0, &content(61, 0, PIECE));
    assert!(blocks_below(&cache.folder().join(PACKS_FOLDER)) <= 1 << 20);
    // More than the limit is never kept.
    cache.store_pieces(&pack_key(62), 0, &vec![1; 2 << 20]);
    assert_eq!(cache.read_piece(&pack_key(62), 0), None);
    cache.set_limit(0).unwrap();
    cache.store_pieces(&pack_key(63), 0, &content(63, 0, KIB));
    assert_eq!(cache.summarize().unwrap().packs, 0);
}

#[test]
fn what_nobody_counted_is_counted() {
    let (_dir, cache) = cache();
    cache.set_limit(2 << 20).unwrap();
    for pack in 0..5 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
    }
    for damaged in [&b""[..], &b"nonsense, and more of it than there is"[..]] {
        fs::write(cache.folder().join("usage"), damaged).unwrap();
        // The limit that was set is lost with the file.
        PackCache::new(cache.folder().into()).set_limit(2 << 20).unwrap();
        for pack in 5..20 {
            cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
            assert!(blocks_below(&cache.folder().join(PACKS_FOLDER)) <= 2 << 20);
        }
    }
}

#[test]
fn the_folder_may_go_at_any_moment() {
    let (_dir, cache) = cache();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = fs::remove_dir_all(cache.folder());
            }
        });
        for round in 0..300 {
            let pack = round % 7;
            cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, 40 * KIB));
            if let Some(found) = cache.read_piece(&pack_key(pack), 0) {
                assert!(found == content(pack, 0, 40 * KIB));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // A file in the place of the folder: nothing is kept, and nothing fails.
    let _ = fs::remove_dir_all(cache.folder());
    fs::write(cache.folder(), b"").unwrap();
    cache.store_pieces(&pack_key(1), 0, &content(1, 0, 10));
    assert_eq!(cache.read_piece(&pack_key(1), 0), None);
}

#[test]
fn a_cache_is_checked_and_cleared() {
    let (_dir, cache) = cache();
    cache.clear().unwrap();
    for pack in 0..3 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, 2 * PIECE));
    }
    let data = cache.pack_path(&pack_key(1)).unwrap();
    let mut bytes = fs::read(&data).unwrap();
    bytes[usize::try_from(PIECE).unwrap() + 5] ^= 1;
    fs::write(&data, bytes).unwrap();
    assert_eq!(cache.verify().unwrap(), CacheCheck { sound: 5, removed: 1 });
    assert_eq!(cache.verify().unwrap(), CacheCheck { sound: 5, removed: 0 });
    cache.set_limit(1 << 30).unwrap();
    cache.clear().unwrap();
    let CacheSummary { bytes, limit, packs, oldest } = cache.summarize().unwrap();
    assert_eq!((bytes, limit, packs, oldest), (0, 1 << 30, 0, None));
}

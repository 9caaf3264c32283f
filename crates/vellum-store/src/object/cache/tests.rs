#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;

mod parts;

const KIB: u64 = 1 << 10;

fn pack_key(number: u64) -> ObjectKey {
    ObjectKey::new(format!("packs/{:02x}/pack-{number}", number % 256)).unwrap()
}

fn content(pack: u64, number: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ pack ^ (number << 3)) as u8).collect()
}

fn cache() -> (TempDir, PackCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = PackCache::new(&dir.path().join("cache"));
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
    let other = PackCache::new(cache.folder());
    assert_eq!(other.read_piece(&key, 2), None);
    assert_eq!(other.read_piece(&key, 3), Some(content(1, 0, PIECE)));
    assert_eq!(other.read_piece(&key, 5), Some(content(1, 2, 77)));
    assert_eq!(other.find_pieces(&key, 2..9), HashSet::from([3, 4, 5]));
    assert_eq!(other.read_piece(&ObjectKey::new("index/ab").unwrap(), 3), None);
    assert_eq!(fs::metadata(cache.folder()).unwrap().permissions().mode() & 0o777, 0o700);
    other.forget_pack(&key);
    assert_eq!(cache.read_piece(&key, 3), None);
}

#[test]
fn damage_is_a_piece_that_is_not_there() {
    let damages: [fn(&Path, &Path); 8] = [
        |data, _| {
            let mut bytes = fs::read(data).unwrap();
            bytes[1000] ^= 1;
            fs::write(data, bytes).unwrap();
        },
        |data, _| fs::write(data, b"short").unwrap(),
        |data, _| fs::remove_file(data).unwrap(),
        |_, map| fs::remove_file(map).unwrap(),
        |_, map| fs::write(map, b"VLMMAP\x02").unwrap(),
        |_, map| {
            let len = fs::read(map).unwrap().len();
            fs::write(map, vec![0xff; len]).unwrap();
        },
        |_, map| fs::write(map, vec![b'V'; 5_000_000]).unwrap(),
        // Of an earlier version, with records.
        |_, map| {
            let mut bytes = fs::read(map).unwrap();
            bytes[6] = 1;
            fs::write(map, bytes).unwrap();
        },
    ];
    for damage in damages {
        let (_dir, cache) = cache();
        let key = pack_key(1);
        cache.store_pieces(&key, 0, &content(1, 0, 3000));
        let data = cache.files.pack_path(CachePart::Content, &key);
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
    let path = |pack| cache.files.pack_path(CachePart::Content, &pack_key(pack));
    for suffix in ["", ".map"] {
        let named = |pack| format!("{}{suffix}", path(pack).display());
        fs::rename(named(1), named(2)).unwrap();
    }
    assert_eq!(cache.read_piece(&pack_key(2), 0), None);
}

#[test]
fn the_limit_is_kept_and_what_is_used_stays_longest() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 4 << 20).unwrap();
    let hot = pack_key(0);
    cache.store_pieces(&hot, 0, &content(0, 0, PIECE));
    for pack in 1..60 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
        assert!(blocks_below(&cache.folder().join("packs")) <= 4 << 20);
        assert!(cache.read_piece(&hot, 0).is_some(), "it was read {pack} times and is gone");
    }
    assert!(cache.read_piece(&pack_key(59), 0).is_some(), "the last one is there");
    assert_eq!(cache.read_piece(&pack_key(1), 0), None);
    let summary = cache.summarize().unwrap().content;
    assert_eq!(summary.limit, 4 << 20);
    assert!(summary.packs > 8 && summary.bytes <= 4 << 20, "{summary:?}");

    // Another process sets it, and it counts at once.
    PackCache::new(cache.folder()).set_limit(CachePart::Content, 1 << 20).unwrap();
    assert!(blocks_below(&cache.folder().join("packs")) <= 1 << 20);
    cache.store_pieces(&pack_key(61), 0, &content(61, 0, PIECE));
    assert!(blocks_below(&cache.folder().join("packs")) <= 1 << 20);
    // More than the limit is never kept.
    cache.store_pieces(&pack_key(62), 0, &vec![1; 2 << 20]);
    assert_eq!(cache.read_piece(&pack_key(62), 0), None);
    cache.set_limit(CachePart::Content, 0).unwrap();
    cache.store_pieces(&pack_key(63), 0, &content(63, 0, KIB));
    assert_eq!(cache.summarize().unwrap().content.packs, 0);
}

#[test]
fn of_the_limits_of_all_processes_the_smallest_counts_until_its_process_ends() {
    let (_dir, cache) = cache();
    let limit = |cache: &PackCache| cache.summarize().unwrap().content.limit;
    let is_kept = |limit: u64| {
        for pack in 0..20 {
            cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
            assert!(blocks_below(&cache.folder().join("packs")) <= limit);
        }
    };
    cache.set_limit(CachePart::Content, 4 << 20).unwrap();
    is_kept(4 << 20);
    let other = PackCache::new(cache.folder());
    other.limit_while_open(2 << 20).unwrap();
    assert!(blocks_below(&cache.folder().join("packs")) <= 2 << 20, "at once");
    assert_eq!((limit(&cache), limit(&other)), (2 << 20, 2 << 20));
    cache.limit_while_open(3 << 20).unwrap();
    is_kept(2 << 20);
    // It is set anew, and the folder removed: the next piece brings the limit back.
    other.limit_while_open(1 << 20).unwrap();
    assert_eq!(limit(&cache), 1 << 20);
    fs::remove_dir_all(cache.folder()).unwrap();
    other.store_pieces(&pack_key(1), 0, &content(1, 0, PIECE));
    is_kept(1 << 20);
    // What a process left that was killed counts for nothing, and neither does what is no limit.
    let left = cache.folder().join("process-limits/0000000000000001");
    fs::write(&left, 5_u64.to_le_bytes()).unwrap();
    fs::write(cache.folder().join("process-limits/other"), "x").unwrap();
    assert_eq!(limit(&cache), 1 << 20);
    drop(other);
    cache.limit_while_open(3 << 20).unwrap();
    assert_eq!(limit(&cache), 3 << 20);
    assert!(!left.exists());
    let nodes = cache.summarize().unwrap().nodes.limit;
    assert!(nodes > 3 << 20, "nodes have a limit of their own: {nodes}");
}

#[test]
fn a_pack_that_makes_room_for_its_own_pieces_keeps_the_limit() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    for round in 0..20 {
        let pieces = 8 - round % 2;
        cache.store_pieces(&pack_key(1), round * 8, &vec![1; (pieces * PIECE) as usize]);
        assert!(blocks_below(&cache.folder().join("packs")) <= 2 << 20, "round {round}");
    }
    assert!(cache.read_piece(&pack_key(1), 19 * 8).is_some());
}

/// Reads a pack as a store does: what is not here is fetched, and kept. True if it was here.
fn access_pack(cache: &PackCache, pack: u64) -> bool {
    let is_here = cache.read_piece(&pack_key(pack), 0).is_some();
    if !is_here {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
    }
    is_here
}

/// The same in a queue without any knowledge of uses.
fn access_plain_queue(queue: &mut VecDeque<u64>, most: usize, pack: u64) -> bool {
    let is_here = queue.contains(&pack);
    if !is_here {
        if queue.len() == most {
            queue.pop_front();
        }
        queue.push_back(pack);
    }
    is_here
}

#[test]
fn a_scan_larger_than_the_cache_leaves_what_is_read_often() {
    const LIMIT: u64 = 8 << 20;
    const OFTEN: u64 = 12;
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, LIMIT).unwrap();
    let mut plain = VecDeque::new();
    let most = usize::try_from(LIMIT / PIECE).unwrap();
    // Twelve packs four times, then ten times as many as there is room for once each, then the twelve again.
    let scan = 1000..1000 + 10 * LIMIT / PIECE;
    let before: Vec<u64> = (0..4).flat_map(|_| 0..OFTEN).chain(scan).collect();
    for pack in before {
        access_pack(&cache, pack);
        access_plain_queue(&mut plain, most, pack);
    }
    let hits = (0..OFTEN).filter(|pack| access_pack(&cache, *pack)).count();
    let plain_hits = (0..OFTEN).filter(|pack| access_plain_queue(&mut plain, most, *pack)).count();
    assert_eq!((hits, plain_hits), (12, 0), "of {OFTEN}");
    assert!(cache.summarize().unwrap().content.bytes <= LIMIT);
    // What was read often once does not stay for ever: others are read now, all of them, again and again.
    for _ in 0..6 {
        (2000..2024).for_each(|pack| _ = access_pack(&cache, pack));
    }
    let later = (2000..2024).filter(|pack| access_pack(&cache, *pack)).count();
    assert!(later >= 20, "{later} of 24");
}

#[test]
fn what_a_scan_reads_again_and_again_goes_before_the_rest() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 8 << 20).unwrap();
    let scan = || FetchPolicy::Scan.enter();
    for _ in 0..4 {
        (0..8).for_each(|pack| _ = access_pack(&cache, pack));
        let _scan = scan();
        (10..18).for_each(|pack| _ = access_pack(&cache, pack));
    }
    (100..300).for_each(|pack| _ = access_pack(&cache, pack));
    assert!((0..8).all(|pack| cache.read_piece(&pack_key(pack), 0).is_some()));
    assert!((10..18).all(|pack| cache.read_piece(&pack_key(pack), 0).is_none()));
    // What went a moment ago and comes back for a scan is one of many again.
    {
        let _scan = scan();
        access_pack(&cache, 250);
    }
    let path = cache.files.pack_path(CachePart::Content, &pack_key(250));
    assert!(!pack_file::CachedPack::open(&path).unwrap().is_in_main());
}

#[test]
fn what_nobody_counted_is_counted() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    for pack in 0..5 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
    }
    for damaged in [&b""[..], &b"nonsense, and more of it than there is"[..]] {
        fs::write(cache.folder().join("usage"), damaged).unwrap();
        // The limit that was set is lost with the file.
        PackCache::new(cache.folder()).set_limit(CachePart::Content, 2 << 20).unwrap();
        for pack in 5..20 {
            cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
            assert!(blocks_below(&cache.folder().join("packs")) <= 2 << 20);
        }
    }
}

#[test]
fn data_without_a_map_counts_and_goes() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    cache.store_pieces(&pack_key(1), 0, &content(1, 0, 2 * PIECE));
    let data = cache.files.pack_path(CachePart::Content, &pack_key(1));
    fs::remove_file(format!("{}.map", data.display())).unwrap();
    assert_eq!(cache.summarize().unwrap().content.bytes, 2 * PIECE);
    for pack in 2..12 {
        cache.store_pieces(&pack_key(pack), 0, &content(pack, 0, PIECE));
    }
    assert!(!data.exists(), "it was there first");
}

#[test]
fn a_recount_keeps_the_room_that_others_have_reserved() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    let other = PackCache::new(cache.folder());
    let reserved = other.files.reserve_room(CachePart::Content, 1 << 20).unwrap().unwrap();
    // Nothing of it is on the disk yet when this one counts.
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    assert!(
        cache.files.reserve_room(CachePart::Content, (1 << 20) + 4096).unwrap().is_none(),
        "more than is left"
    );
    drop(reserved);
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    assert!(cache.files.reserve_room(CachePart::Content, (1 << 20) + 4096).unwrap().is_some());
}

#[test]
fn room_that_a_killed_process_reserved_is_free_again() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    let other = PackCache::new(cache.folder());
    // As a kill leaves it: what the file says stays, and nobody holds its lock.
    let reserved = other.files.reserve_room(CachePart::Content, 1 << 20).unwrap();
    let file = fs::read_dir(cache.folder().join("reserved")).unwrap().next().unwrap().unwrap().path();
    let left = fs::read(&file).unwrap();
    drop(reserved);
    drop(other);
    assert!(!file.exists());
    fs::write(&file, left).unwrap();
    cache.set_limit(CachePart::Content, 2 << 20).unwrap();
    assert!(cache.files.reserve_room(CachePart::Content, (1 << 20) + 4096).unwrap().is_some());
    assert!(!file.exists());
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
    let data = cache.files.pack_path(CachePart::Content, &pack_key(1));
    let mut bytes = fs::read(&data).unwrap();
    bytes[usize::try_from(PIECE).unwrap() + 5] ^= 1;
    fs::write(&data, bytes).unwrap();
    assert_eq!(cache.verify().unwrap(), CacheCheck { sound: 5, removed: 1 });
    assert_eq!(cache.verify().unwrap(), CacheCheck { sound: 5, removed: 0 });
    cache.set_limit(CachePart::Content, 1 << 30).unwrap();
    cache.clear().unwrap();
    let CacheSummary { content, oldest, .. } = cache.summarize().unwrap();
    assert_eq!(content, CachePartSummary { bytes: 0, limit: 1 << 30, packs: 0 });
    assert_eq!(oldest, None);
}

fn real_pack(number: u8) -> (vellum_types::PackId, ObjectKey) {
    let id = vellum_types::PackId([number; 32]);
    (id, crate::pack::pack_key(&id))
}

fn pieces_of(packs: &[(u8, u64)]) -> PieceSet {
    let mut pieces = PieceSet::default();
    packs.iter().for_each(|(pack, number)| pieces.add_piece(&real_pack(*pack).0, *number, PIECE));
    pieces
}

fn pin(name: &str, pieces: PieceSet) -> CachePin {
    CachePin {
        name: name.into(),
        worktree: "main".into(),
        content: "dir".into(),
        created: 1_700_000_000,
        pieces,
    }
}

#[test]
fn what_is_pinned_stays_whatever_comes() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 8 << 20).unwrap();
    for pack in 1..=3 {
        let pieces: Vec<u8> = (0..4).flat_map(|number| content(pack.into(), number, PIECE)).collect();
        cache.store_pieces(&real_pack(pack).1, 0, &pieces);
    }
    let room = cache.add_pin(&pin("mine", pieces_of(&[(2, 1), (2, 3)]))).unwrap();
    assert!(room.is_enough() && room.wanted > 2 * PIECE, "{room:?}");
    assert!(cache.missing_pieces(&pieces_of(&[(2, 1), (2, 3), (1, 3)])).is_empty());
    for pack in 10..60 {
        let other = PackCache::new(cache.folder());
        other.store_pieces(&real_pack(pack).1, 0, &vec![pack; 4 * PIECE as usize]);
        assert!(blocks_below(cache.folder()) <= 8 << 20);
    }
    let key = real_pack(2).1;
    assert_eq!(cache.read_piece(&key, 1), Some(content(2, 1, PIECE)));
    assert_eq!(cache.read_piece(&key, 3), Some(content(2, 3, PIECE)));
    assert_eq!(cache.read_piece(&key, 0), None, "only what is pinned of a pack stays");
    assert_eq!(cache.read_piece(&real_pack(1).1, 0), None);
    // By hand, too.
    cache.evict_down_to(0).unwrap();
    cache.evict_older(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
    cache.evict_pieces(&pieces_of(&[(2, 1)])).unwrap();
    cache.clear().unwrap();
    assert!(cache.missing_pieces(&pieces_of(&[(2, 1), (2, 3)])).is_empty());
    assert!(cache.summarize().unwrap().content.bytes <= 3 * PIECE);
    assert!(cache.remove_pin("mine").unwrap() && !cache.remove_pin("mine").unwrap());
    cache.clear().unwrap();
    assert_eq!(cache.summarize().unwrap().content.bytes, 0);
}

#[test]
fn a_pin_that_does_not_fit_is_refused_with_the_numbers() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 1 << 20).unwrap();
    let large = pieces_of(&[(1, 0), (1, 1), (1, 2), (1, 3)]);
    let refused = cache.add_pin(&pin("large", large)).unwrap();
    assert!(!refused.is_enough(), "{refused:?}");
    assert!(refused.wanted > 4 * PIECE && refused.allowed == 1 << 20, "{refused:?}");
    assert!(cache.list_pins().unwrap().pins.is_empty());
    assert!(cache.add_pin(&pin("one", pieces_of(&[(1, 0), (1, 1)]))).unwrap().is_enough());
    let second = cache.add_pin(&pin("two", pieces_of(&[(2, 0), (2, 1)]))).unwrap();
    assert!(!second.is_enough() && second.pinned > 2 * PIECE, "{second:?}");
    // What is pinned twice counts once, and a pin takes the place of one with its name.
    assert!(cache.add_pin(&pin("two", pieces_of(&[(1, 0)]))).unwrap().is_enough());
    assert!(cache.add_pin(&pin("one", pieces_of(&[(1, 1)]))).unwrap().is_enough());
    assert_eq!(cache.summarize().unwrap().pinned, 2 * PIECE);
    assert_eq!(cache.unpinned_pieces(&pieces_of(&[(1, 0), (1, 2)])), pieces_of(&[(1, 2)]));
    cache.set_limit(CachePart::Content, 0).unwrap();
    assert!(!cache.add_pin(&pin("none", pieces_of(&[(3, 0)]))).unwrap().is_enough());
}

#[test]
fn a_damaged_pin_is_listed_and_pins_nothing() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 8 << 20).unwrap();
    let whole = pin("mine", pieces_of(&[(1, 0), (2, 7)]));
    cache.add_pin(&whole).unwrap();
    assert_eq!(cache.list_pins().unwrap().pins, [whole]);
    let path = fs::read_dir(cache.folder().join("pins")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let listing = cache.list_pins().unwrap();
    assert!(listing.pins.is_empty());
    assert_eq!(listing.damaged, [path]);
}

#[test]
fn evicted_pieces_give_their_room_back() {
    let (_dir, cache) = cache();
    cache.set_limit(CachePart::Content, 64 << 20).unwrap();
    let (_, key) = real_pack(1);
    let pieces: Vec<u8> = (0..8).flat_map(|number| content(1, number, PIECE)).collect();
    cache.store_pieces(&key, 0, &pieces);
    let before = blocks_below(&cache.folder().join("packs"));
    let evicted = cache.evict_pieces(&pieces_of(&[(1, 2), (1, 3), (1, 9), (5, 0)])).unwrap();
    assert_eq!(evicted, EvictedBytes { before, left: before - 2 * PIECE });
    assert_eq!(blocks_below(&cache.folder().join("packs")), before - 2 * PIECE);
    assert_eq!(cache.missing_pieces(&pieces_of(&[(1, 1), (1, 2)])), pieces_of(&[(1, 2)]));
    assert_eq!(cache.read_piece(&key, 4), Some(content(1, 4, PIECE)));
    cache.store_pieces(&key, 2, &content(1, 2, PIECE));
    assert_eq!(cache.read_piece(&key, 2), Some(content(1, 2, PIECE)));
}

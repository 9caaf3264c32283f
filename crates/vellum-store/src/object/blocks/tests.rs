#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod trees;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vellum_types::PackId;

use super::*;
use crate::object::{MemoryObjectStore, PieceSet};

const MIB: u64 = 1 << 20;

/// A store that counts ranged gets, and takes its time for them.
struct CountingStore {
    inner: MemoryObjectStore,
    gets: AtomicU64,
    bytes: AtomicU64,
}

impl ObjectStore for CountingStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }
    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }
    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
        self.inner.get_range(key, offset, len)
    }
    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }
    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.put_object(key, bytes)
    }
    fn swap_ref(&self, key: &ObjectKey, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        self.inner.swap_ref(key, old, new)
    }
    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }
    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

struct TestPack {
    counting: Arc<CountingStore>,
    store: BlockStore,
    key: ObjectKey,
    content: Vec<u8>,
}

fn make_pack(len: u64) -> TestPack {
    let content: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ (at >> 16) as u8).collect();
    let key = ObjectKey::new("packs/ab/pack").unwrap();
    let inner = MemoryObjectStore::new("memory");
    inner.put_object(&key, &content).unwrap();
    let counting = Arc::new(CountingStore { inner, gets: AtomicU64::new(0), bytes: AtomicU64::new(0) });
    TestPack { store: BlockStore::new(counting.clone(), None), counting, key, content }
}

impl TestPack {
    fn check_range(&self, offset: u64, len: u64) {
        let expected = &self.content[offset as usize..(offset + len) as usize];
        assert!(self.store.get_range(&self.key, offset, len).unwrap() == expected, "{offset}+{len}");
    }

    fn gets(&self) -> u64 {
        self.counting.gets.load(Ordering::Relaxed)
    }
}

#[test]
fn neighbours_are_read_with_few_requests() {
    let pack = make_pack(16 * MIB + 12_345);
    let mut offset = 0;
    while offset + 10_000 <= pack.content.len() as u64 {
        pack.check_range(offset, 10_000);
        offset += 10_000;
    }
    // 256 KiB, twice that, and so on up to 4 MiB.
    assert!(pack.gets() <= 9, "{} requests", pack.gets());
    assert!(pack.counting.bytes.load(Ordering::Relaxed) <= pack.content.len() as u64);
}

#[test]
fn scattered_reads_stay_small() {
    let pack = make_pack(64 * MIB);
    for at in 0..200_u64 {
        pack.check_range((at * 7919 * 4096) % (60 * MIB), 4096);
    }
    let mean = pack.counting.bytes.load(Ordering::Relaxed) / pack.gets();
    assert!(mean <= 300 << 10, "{mean} bytes for each request");
}

#[test]
fn the_end_of_a_pack_is_its_end() {
    for len in [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
        let pack = make_pack(len);
        pack.check_range(0, len);
        pack.check_range(len - 1, 1);
        for (offset, wanted) in [(0, len + 1), (len, 1), (len + 5 * PIECE, 3), (u64::MAX, 1)] {
            let error = pack.store.get_range(&pack.key, offset, wanted).unwrap_err();
            assert!(matches!(error, StoreError::Length { .. }), "{offset}+{wanted} of {len}: {error}");
        }
    }
    let pack = make_pack(9);
    let missing = pack.store.get_range(&ObjectKey::new("packs/ab/other").unwrap(), 0, 1).unwrap_err();
    assert!(missing.is_not_found());
}

#[test]
fn threads_that_want_the_same_piece_share_a_request() {
    let pack = make_pack(PIECE);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let pack = &pack;
            scope.spawn(move || pack.check_range(thread * 1000, 1000));
        }
    });
    assert_eq!(pack.gets(), 1);
}

#[test]
fn a_piece_that_another_thread_fetches_holds_no_request_up() {
    let pack = make_pack(4 * MIB);
    let others = pack.store.claim_pieces(&pack.key, 0, 3).unwrap();
    assert_eq!(others.pieces, 0..4);
    std::thread::scope(|scope| {
        // It begins in the last piece of the other thread.
        let reader = scope.spawn(|| pack.check_range(4 * PIECE - 1000, 2 * MIB));
        let start = Instant::now();
        while pack.gets() == 0 {
            let is_held_up = reader.is_finished() || start.elapsed() > Duration::from_secs(60);
            if is_held_up {
                // It ends, so that the scope does.
                drop(others);
                panic!("it sends no request");
            }
            std::thread::yield_now();
        }
        // The other thread fails. What it was to fetch is fetched by who waits for it.
        drop(others);
    });
    assert_eq!(pack.gets(), 2);
}

#[test]
fn a_deleted_pack_is_forgotten() {
    let pack = make_pack(PIECE);
    pack.check_range(0, 10);
    pack.store.delete_object(&pack.key).unwrap();
    assert!(pack.store.get_range(&pack.key, 0, 10).unwrap_err().is_not_found());
}

/// Another process: nothing in memory, and the same folder.
fn reopen(pack: &TestPack, folder: &Path) -> TestPack {
    let store = BlockStore::new(pack.counting.clone(), Some(PackCache::new(folder)));
    pack.counting.gets.store(0, Ordering::Relaxed);
    TestPack { store, counting: pack.counting.clone(), key: pack.key.clone(), content: pack.content.clone() }
}

#[test]
fn what_was_read_once_is_read_from_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let len = 9 * MIB + 5;
    let first = reopen(&make_pack(len), dir.path());
    for at in 0..len / 1000 {
        first.check_range(at * 1000, 1000);
    }
    assert!(first.gets() > 0);
    let second = reopen(&first, dir.path());
    for at in 0..len / 1000 {
        second.check_range(at * 1000, 1000);
    }
    // Also what is too large for memory.
    second.check_range(0, 8 * MIB);
    second.check_range(MIB + 1, 8 * MIB);
    assert_eq!(second.gets(), 0);
    // Whoever checks the store reads the store.
    let third = reopen(&first, dir.path());
    third.store.ignore_local_copies();
    third.check_range(0, 1000);
    third.check_range(0, 8 * MIB);
    assert_eq!(third.gets(), 2);
}

#[test]
fn large_ranges_and_what_was_written_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let first = reopen(&make_pack(12 * MIB), dir.path());
    first.check_range(1000, 8 * MIB);
    assert_eq!(first.gets(), 1);
    let second = reopen(&first, dir.path());
    second.check_range(PIECE, 7 * MIB);
    second.check_range(MIB, 500);
    assert_eq!(second.gets(), 0);
    second.check_range(0, 500);
    assert_eq!(second.gets(), 1, "the first piece was not fetched whole");

    let written = ObjectKey::new("packs/cd/written").unwrap();
    second.store.put_object(&written, &second.content).unwrap();
    let third = reopen(&second, dir.path());
    assert!(
        third.store.get_range(&written, 5 * MIB, 3 * MIB).unwrap()[..] == third.content[5 << 20..8 << 20]
    );
    assert_eq!(third.gets(), 0);
    third.store.delete_object(&written).unwrap();
    let fourth = reopen(&third, dir.path());
    assert!(fourth.store.get_range(&written, 0, 10).unwrap_err().is_not_found());
}

#[test]
fn damage_in_the_cache_changes_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let first = reopen(&make_pack(5 * MIB), dir.path());
    first.check_range(0, 5 * MIB - 3);
    let data = dir.path().join("packs/ab/pack");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes.iter_mut().step_by(100_000).for_each(|byte| *byte ^= 1);
    std::fs::write(&data, bytes).unwrap();
    let second = reopen(&first, dir.path());
    second.check_range(0, 5 * MIB);
    assert_eq!(second.gets(), 1);
    let third = reopen(&first, dir.path());
    third.check_range(0, 4 * MIB);
    assert_eq!(third.gets(), 0, "it is healed");
}

/// Numbers in a fixed order that looks random.
fn scatter(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |at| at * 7919 % count)
}

/// Blobs of 100 KiB, one after another, as a pack of a large file has them: two of five lie across two pieces.
#[test]
fn scattered_blobs_are_one_request_each_of_a_piece_at_most() {
    const BLOB: u64 = 100 << 10;
    let pack = make_pack(64 * MIB);
    let blobs = pack.content.len() as u64 / BLOB;
    // The first few could be the beginning of anything.
    let mut order = scatter(blobs).step_by(7).take(40);
    order.by_ref().take(4).for_each(|blob| pack.check_range(blob * BLOB, BLOB));
    let requests = pack.gets();
    let bytes = pack.counting.bytes.load(Ordering::Relaxed);
    let rest: Vec<u64> = order.collect();
    rest.iter().for_each(|blob| pack.check_range(blob * BLOB, BLOB));
    assert_eq!(pack.gets() - requests, rest.len() as u64);
    let mean = (pack.counting.bytes.load(Ordering::Relaxed) - bytes) / rest.len() as u64;
    assert!(mean <= PIECE, "{mean} bytes for each request");
}

#[test]
fn a_reader_in_order_gets_long_spans_after_scattered_ones() {
    let pack = make_pack(64 * MIB);
    scatter(600).take(50).for_each(|blob| pack.check_range(blob * 100_000, 100_000));
    let requests = pack.gets();
    let other = ObjectKey::new("packs/cd/pack").unwrap();
    pack.counting.inner.put_object(&other, &pack.content).unwrap();
    for blob in 0..320_u64 {
        pack.store.get_range(&other, blob * 100_000, 100_000).unwrap();
    }
    // 32 MB: at first a blob alone or two, then 256 KiB and doubled, up to 4 MiB.
    assert!(pack.gets() - requests <= 16, "{} requests", pack.gets() - requests);
}

#[test]
fn who_may_not_fetch_gets_no_range_across_two_pieces_either() {
    let pack = make_pack(64 * MIB);
    scatter(600).take(8).for_each(|blob| pack.check_range(blob * 100_000, 100_000));
    let requests = pack.gets();
    let _scope = FetchPolicy::Refuse.enter();
    let refused = pack.store.get_range(&pack.key, 201 * PIECE - 1000, 2000).unwrap_err();
    assert!(matches!(refused, StoreError::FetchRefused { .. }), "{refused}");
    assert_eq!(pack.gets(), requests);
}

#[test]
fn announced_packs_are_fetched_in_two_requests_wherever_reading_begins() {
    // A little more than 16 MiB, as packs have.
    let len = 16 * MIB + 300_000;
    for begin in [0, 5 * MIB, 8 * MIB, len - 10_000] {
        let pack = make_pack(len);
        let id = PackId([7; PackId::LEN]);
        let key = crate::pack::pack_key(&id);
        pack.counting.inner.put_object(&key, &pack.content).unwrap();
        let pack = TestPack { key, ..pack };
        let mut pieces = PieceSet::default();
        pieces.add_range(&id, 16, u32::try_from(len).unwrap() - 16);
        pack.store.announce_reads(&pieces);
        // Scattered, backwards, and larger than what usually goes through pieces.
        pack.check_range(begin, 10_000);
        for at in (0..len / MIB).rev() {
            pack.check_range(at * MIB, 1000);
        }
        pack.check_range(MIB, 6 * MIB);
        assert_eq!(pack.gets(), 2, "from {begin}");
        assert!(pack.counting.bytes.load(Ordering::Relaxed) <= len + PIECE);
    }
}

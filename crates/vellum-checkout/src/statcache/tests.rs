//! The format: round trips, damage, hostile content, raciness.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use vellum_host::beneath::HeldDir;
use vellum_host::metadata::FileStat;
use vellum_types::{BlobId, DecodeError, FileKind, Ino, UnixTime};

use super::format::{CHECKSUM_LEN, RECORD_LEN, StatCacheRecord};
use super::*;

const BASE: BlobId = BlobId([0x5a; 32]);

fn stat(kind: FileKind, ino: u64) -> FileStat {
    let time = |secs| UnixTime { secs, nanos: 123_456_789 };
    FileStat {
        kind,
        may_have_holes: false,
        is_mount_root: false,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        nlink: 1,
        size: 10 * ino,
        ino,
        dev: 7,
        rdev: 0,
        mtime: time(1_700_000_000),
        ctime: time(1_700_000_001),
        btime: time(-5),
    }
}

fn stamp(secs: i64) -> FilesystemTime {
    FilesystemTime { time: UnixTime { secs, nanos: 0 }, dev: 7 }
}

/// root: a (file), d (directory: e, é), z (device)
fn sample(dir: &HeldDir) {
    let root = stat(FileKind::Dir, 1);
    let mut writer = StatCacheWriter::create(dir, BASE, stamp(1_700_000_002), (Ino::ROOT, &root)).unwrap();
    let put = |writer: &mut StatCacheWriter, name: &str, ino, kind| {
        let stat = FileStat { rdev: if kind == FileKind::CharDevice { 0x103 } else { 0 }, ..stat(kind, ino) };
        let size = if stat.rdev == 0 { stat.size } else { 0 };
        let stat = FileStat { size, ..stat };
        writer
            .write_entry(&NewStatCacheEntry {
                name: name.as_bytes(),
                ino: Ino(100 + ino),
                stat: &stat,
                racy: false,
            })
            .unwrap()
    };
    writer.begin_block(StatCacheBlockId::ROOT).unwrap();
    assert_eq!(put(&mut writer, "a", 2, FileKind::File), None);
    let block = put(&mut writer, "d", 3, FileKind::Dir).unwrap();
    put(&mut writer, "empty", 4, FileKind::Dir).unwrap();
    put(&mut writer, "z", 5, FileKind::CharDevice);
    writer.begin_block(block).unwrap();
    put(&mut writer, "e", 6, FileKind::Symlink);
    put(&mut writer, "é", 2, FileKind::File);
    writer.commit_cache(b"cache").unwrap();
}

fn sample_bytes() -> Vec<u8> {
    let temp = tempfile::tempdir().unwrap();
    sample(&HeldDir::open_root(temp.path()).unwrap());
    std::fs::read(temp.path().join("cache")).unwrap()
}

/// Everything that can be asked of a cache, as text.
fn dump(cache: &StatCache) -> String {
    let mut out = format!(
        "{:?} {:?} {} {:?}\n",
        cache.base_root(),
        cache.filesystem_time(),
        cache.len(),
        cache.root_entry()
    );
    let mut stack = vec![CachedDir::ROOT];
    // What is mentioned several times is shown several times: a hostile cache could make that endless.
    for _ in 0..1000 {
        let Some(dir) = stack.pop() else { break };
        for entry in cache.entries(dir) {
            out += &format!("{entry:?} {}\n", cache.find_entry(dir, entry.name).is_some());
            out += &format!("{:?}\n", cache.find_by_host_inode(entry.stat.dev, entry.stat.ino).count());
            stack.extend(entry.child);
        }
    }
    out
}

#[test]
fn what_was_written_is_read() {
    let cache = StatCache::decode(sample_bytes()).unwrap();
    assert_eq!((cache.base_root(), cache.filesystem_time(), cache.len()), (BASE, stamp(1_700_000_002), 6));
    assert_eq!(cache.root_entry().unwrap().ino, Ino::ROOT);
    let names: Vec<_> = cache.entries(CachedDir::ROOT).map(|entry| entry.name).collect();
    assert_eq!(names, [&b"a"[..], b"d", b"empty", b"z"]);
    let a = cache.find_entry(CachedDir::ROOT, b"a").unwrap();
    assert_eq!((a.ino, a.stat, a.child), (Ino(102), stat(FileKind::File, 2), None));
    assert!(a.is_unchanged(&stat(FileKind::File, 2)));
    let d = cache.find_entry(CachedDir::ROOT, b"d").unwrap().child.unwrap();
    assert_eq!(cache.entries(d).map(|entry| entry.name).collect::<Vec<_>>(), [&b"e"[..], "é".as_bytes()]);
    let empty = cache.find_entry(CachedDir::ROOT, b"empty").unwrap().child.unwrap();
    assert_eq!(cache.entry_count(empty), 0);
    assert_eq!(cache.find_entry(CachedDir::ROOT, b"z").unwrap().stat.rdev, 0x103);
    assert_eq!(cache.find_by_host_inode(7, 2).count(), 2, "two names of one file");
    assert_eq!(cache.find_by_host_inode(8, 2).count(), 0);
    assert!(cache.find_entry(CachedDir::ROOT, b"nothing").is_none());
}

#[test]
fn every_flipped_byte_and_every_cut_is_no_cache() {
    let bytes = sample_bytes();
    for place in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[place] ^= flip;
            assert!(StatCache::decode(damaged).is_err(), "byte {place}");
        }
        assert!(StatCache::decode(bytes[..place].to_vec()).is_err(), "cut at {place}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(StatCache::decode(longer).is_err());
}

#[test]
fn flipped_bytes_under_a_right_checksum_never_panic() {
    let bytes = sample_bytes();
    let content_len = bytes.len() - CHECKSUM_LEN;
    for place in 0..content_len {
        for flip in [1, 0x10, 0x80, 0xff] {
            let mut forged = bytes[..content_len].to_vec();
            forged[place] ^= flip;
            let checksum = blake3::hash(&forged);
            forged.extend_from_slice(checksum.as_bytes());
            if let Ok(cache) = StatCache::decode(forged) {
                dump(&cache);
            }
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = sample_bytes();
    bytes[8] = 9;
    assert!(matches!(StatCache::decode(bytes), Err(StatCacheError::Malformed(DecodeError::Version(9)))));
}

#[test]
fn a_new_device_number_of_the_root_is_adopted() {
    let mut cache = StatCache::decode(sample_bytes()).unwrap();
    cache.set_root_device(99);
    let moved = FileStat { dev: 99, ..stat(FileKind::File, 2) };
    assert!(cache.find_entry(CachedDir::ROOT, b"a").unwrap().is_unchanged(&moved));
    assert_eq!(cache.find_by_host_inode(99, 2).count(), 2);
}

#[test]
fn attributes_not_older_than_the_stamp_are_racy() {
    let mut file = stat(FileKind::File, 2);
    let stamp = stamp(1_700_000_002);
    assert!(!stamp.can_hide_change(&file));
    file.ctime = UnixTime { secs: 1_700_000_001, nanos: 989_999_999 };
    assert!(!stamp.can_hide_change(&file));
    file.ctime.nanos = 990_000_000;
    assert!(stamp.can_hide_change(&file), "within one tick");
    file.ctime = UnixTime { secs: 1_800_000_000, nanos: 0 };
    assert!(stamp.can_hide_change(&file), "from the future");
    let foreign = FileStat { dev: 8, ..stat(FileKind::File, 2) };
    assert!(stamp.can_hide_change(&foreign), "other filesystems may count in steps of 2 s");
}

#[test]
fn every_attribute_counts() {
    let cache = StatCache::decode(sample_bytes()).unwrap();
    let cached = cache.find_entry(CachedDir::ROOT, b"a").unwrap();
    let now = stat(FileKind::File, 2);
    let later = UnixTime { secs: 1_700_000_001, nanos: 123_456_790 };
    let changed = [
        FileStat { mode: 0o600, ..now },
        FileStat { uid: 0, ..now },
        FileStat { gid: 0, ..now },
        FileStat { nlink: 2, ..now },
        FileStat { size: 21, ..now },
        FileStat { ino: 3, ..now },
        FileStat { dev: 8, ..now },
        FileStat { mtime: later, ..now },
        FileStat { ctime: later, ..now },
        FileStat { btime: later, ..now },
        FileStat { kind: FileKind::Symlink, ..now },
    ];
    assert!(cached.is_unchanged(&now));
    for other in changed {
        assert!(!cached.is_unchanged(&other), "{other:?}");
    }
    assert!(!CachedEntry { racy: true, ..cached }.is_unchanged(&now));
}

proptest! {
    #[test]
    fn records_round_trip(
        numbers: (u64, u64, u64, u32, u32, u32),
        secs: (i64, i64, i64),
        nanos in (0..1_000_000_000u32, 0..1_000_000_000u32, 0..1_000_000_000u32),
        kind in 0..7u8,
        mode in 0..0o10000u32,
        rest: (bool, bool, bool, u32, u16, u32, u8),
    ) {
        let kind = FileKind::from_byte(kind).unwrap();
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (ino, host_ino, size, uid, gid, nlink) = numbers;
        let (racy, may_have_holes, is_mount_root, block, line, name_start, name_len) = rest;
        let stat = FileStat {
            kind, may_have_holes, is_mount_root, mode, uid, gid, nlink,
            size: if device { 0 } else { size },
            rdev: if device { size } else { 0 },
            ino: host_ino,
            dev: 0,
            mtime: UnixTime { secs: secs.0, nanos: nanos.0 },
            ctime: UnixTime { secs: secs.1, nanos: nanos.1 },
            btime: UnixTime { secs: secs.2, nanos: nanos.2 },
        };
        let record = StatCacheRecord { ino: Ino(ino), stat, racy, block, device: line, name_start, name_len };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), RECORD_LEN);
        prop_assert_eq!(StatCacheRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn any_bytes_as_a_record_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(record) = StatCacheRecord::decode(&bytes) {
            let mut again = Vec::new();
            record.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_bytes_as_a_cache_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(StatCache::decode(bytes).is_err());
    }
}

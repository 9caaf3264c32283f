//! What was appended is read back; what a crash leaves is told from what never was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use super::*;

const LIMIT: u64 = 1 << 30;

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format_segment_name(number))
}

fn data(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 13 + 1) as u8).collect()
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Segment, offset and length.
type Place = (u64, u64, u64);

fn append(log: &WriteLog, data: &[u8]) -> Place {
    let AppendedData { segment, offset, len, .. } = log.append_data(data).unwrap();
    (segment, offset, len)
}

fn read(log: &WriteLog, (segment, offset, len): Place) -> Vec<u8> {
    let mut buffer = vec![0; len as usize];
    log.read_data(segment, offset, &mut buffer).unwrap();
    buffer
}

fn is_intact(log: &WriteLog, (segment, offset, len): Place) -> bool {
    log.is_data_intact(segment, offset, len)
}

#[test]
fn what_was_appended_is_read_back_also_after_reopening() {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    let places: Vec<_> = (0..50).map(|number| append(&log, &data(number, number * 100))).collect();
    let used = log.used_bytes();
    for log in [log, WriteLog::open(dir.path(), LIMIT).unwrap()] {
        for (number, place) in places.iter().enumerate() {
            assert_eq!(read(&log, *place), data(number, number * 100));
            assert!(is_intact(&log, *place));
        }
        assert_eq!(log.used_bytes(), used);
    }
}

#[test]
fn a_part_of_a_frame_is_intact_and_what_reaches_beyond_is_not() {
    let dir = temporary();
    let (segment, offset, _) = append(&WriteLog::open(dir.path(), LIMIT).unwrap(), &data(1, 1000));
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    assert!(log.is_data_intact(segment, offset + 10, 900) && log.is_data_intact(segment, offset, 1000));
    assert!(!log.is_data_intact(segment, offset, 1001) && !log.is_data_intact(segment, offset - 1, 10));
    assert!(!log.is_data_intact(segment + 1, offset, 1) && !log.is_data_intact(segment, u64::MAX, 2));
}

/// A log of a few frames: its bytes, and where the frames are.
fn sample() -> (tempfile::TempDir, PathBuf, Vec<u8>, Vec<Place>) {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    let places = (0..4).map(|number| append(&log, &data(number, 20 + number * 11))).collect();
    let path = path_of(dir.path(), 0);
    let bytes = std::fs::read(&path).unwrap();
    (dir, path, bytes, places)
}

#[test]
fn a_segment_cut_anywhere_keeps_the_frames_before_the_cut() {
    let (dir, path, bytes, places) = sample();
    for len in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let log = WriteLog::open(dir.path(), LIMIT).unwrap();
        for place in &places {
            assert_eq!(is_intact(&log, *place), place.1 + place.2 <= len as u64, "cut at {len}");
        }
    }
}

#[test]
fn a_flipped_byte_costs_the_frame_that_it_is_in_and_no_other() {
    let (dir, path, bytes, places) = sample();
    for at in PREAMBLE_LEN..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&path, &damaged).unwrap();
        let log = WriteLog::open(dir.path(), LIMIT).unwrap();
        for place in &places {
            let hit = (place.1 - HEADER..place.1 + place.2).contains(&(at as u64));
            assert_eq!(is_intact(&log, *place), !hit, "flipped at {at}");
        }
    }
}

const PREAMBLE_LEN: usize = frame::PREAMBLE as usize;

#[test]
fn a_segment_with_another_number_holds_nothing() {
    let (dir, path, bytes, places) = sample();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(path_of(dir.path(), 1), &bytes).unwrap();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    assert!(places.iter().all(|(_, offset, len)| !log.is_data_intact(1, *offset, *len)));
}

#[test]
fn a_log_within_the_data_of_a_torn_frame_is_not_taken_for_frames() {
    let (_, _, inner, _) = sample();
    let dir = temporary();
    let place = append(&WriteLog::open(dir.path(), LIMIT).unwrap(), &inner);
    let path = path_of(dir.path(), 0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[place.1 as usize - 1] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    assert!((0..place.2).all(|at| !log.is_data_intact(place.0, place.1 + at, 1)));
}

#[test]
fn after_recovery_frames_go_to_a_new_segment() {
    let (dir, path, bytes, _) = sample();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    assert_eq!(append(&log, b"new").0, 1);
    assert_eq!(std::fs::read(&path).unwrap(), bytes[..bytes.len() - 3]);
}

#[test]
fn a_full_segment_is_sealed_once_it_is_durable() {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    let place = append(&log, &data(1, 100));
    log.rotate_segment();
    let later = append(&log, &data(2, 100));
    assert_eq!((place.0, later.0), (0, 1));
    log.sync_log().unwrap();
    drop(log);
    // A seal says that nobody need look: damage beneath it is for readers to find.
    let path = path_of(dir.path(), 0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[place.1 as usize] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    assert!(is_intact(&log, place) && is_intact(&log, later));
    assert!(!log.is_data_intact(place.0, place.1, 10_000));
}

#[test]
fn segments_go_when_nothing_names_them() {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), LIMIT).unwrap();
    let places: Vec<_> = (0..4)
        .map(|number| {
            log.rotate_segment();
            append(&log, &data(number, 5000))
        })
        .collect();
    let held = log.append_data(b"named by nothing yet").unwrap();
    log.rotate_segment();
    let current = append(&log, b"current");
    log.remove_unnamed(&log.sealed_segments(), &BTreeSet::from([1])).unwrap();
    let mut byte = [0];
    for (number, (segment, offset, _)) in places.iter().enumerate() {
        let there = log.read_data(*segment, *offset, &mut byte);
        assert_eq!(there.is_ok(), number == 1 || number == 3, "{number}");
        let gone =
            |error| matches!(error, FsError::Log { source, .. } if source.kind() == io::ErrorKind::NotFound);
        assert!(there.is_ok() || gone(there.unwrap_err()));
    }
    drop(held);
    log.remove_unnamed(&log.sealed_segments(), &BTreeSet::new()).unwrap();
    assert_eq!(read(&log, current), b"current");
    assert_eq!(
        log.used_bytes(),
        std::fs::metadata(path_of(dir.path(), current.0)).unwrap().len().next_multiple_of(8)
    );
}

#[test]
fn writers_wait_for_room_and_go_on() {
    let dir = temporary();
    let log = Arc::new(WriteLog::open(dir.path(), 100_000).unwrap());
    let publisher = Arc::downgrade(&log);
    log.set_pressure_hook(move || {
        let Some(log) = publisher.upgrade() else { return };
        log.rotate_segment();
        log.remove_unnamed(&log.sealed_segments(), &BTreeSet::new()).unwrap();
    });
    std::thread::scope(|scope| {
        for number in 0..4 {
            let log = &log;
            scope.spawn(move || (0..200).for_each(|_| assert_eq!(append(log, &data(number, 3000)).2, 3000)));
        }
    });
    let usage = log.usage();
    assert!(usage.waits > 0 && usage.waiting == 0 && usage.used <= 120_000, "{usage:?}");
}

#[test]
fn who_waits_goes_on_when_the_limit_is_lifted() {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), 10_000).unwrap();
    log.set_pressure_hook(|| {});
    append(&log, &[1; 9000]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| append(&log, &[2; 9000]));
        while log.usage().waiting == 0 {
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished());
        log.set_limit(u64::MAX);
    });
    assert_eq!(log.usage().waits, 1);
}

#[test]
fn many_threads_append_and_flush() {
    let dir = temporary();
    let log = WriteLog::open(dir.path(), 1 << 20).unwrap();
    let places: Vec<_> = std::thread::scope(|scope| {
        let append_some = |writer: usize| {
            let log = &log;
            move || -> Vec<_> {
                (0..100)
                    .map(|number| {
                        let place = append(log, &data(writer * 100 + number, 1000 + number));
                        if number % 7 == 0 {
                            log.sync_log().unwrap();
                        }
                        (writer * 100 + number, 1000 + number, place)
                    })
                    .collect()
            }
        };
        let writers: Vec<_> = (0..4).map(|writer| scope.spawn(append_some(writer))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    for log in [log, WriteLog::open(dir.path(), LIMIT).unwrap()] {
        for (number, len, place) in &places {
            assert_eq!(read(&log, *place), data(*number, *len));
            assert!(is_intact(&log, *place));
        }
    }
}

#[test]
fn an_entry_counts_if_what_it_names_is_there() {
    use vellum_live::DurabilityHooks;
    use vellum_types::{Extent, ExtentSource, Ino, MapKey};

    let (dir, path, bytes, places) = sample();
    std::fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
    let hooks = LogHooks(Arc::new(WriteLog::open(dir.path(), LIMIT).unwrap()));
    let key = |key: MapKey| {
        [&crate::tree::head::layer_prefix(crate::tree::head::LayerId(3)), key.as_bytes()].concat()
    };
    let extent = |(segment, offset, len): Place| {
        Extent { len, source: ExtentSource::WriteLog { segment, offset } }.encode()
    };
    let extent_key = key(MapKey::for_extent(Ino(5), 0));
    assert!(hooks.is_intact(&extent_key, &extent(places[0])));
    assert!(!hooks.is_intact(&extent_key, &extent(places[3])));
    assert!(hooks.is_intact(&extent_key, &[0xFF]), "a tombstone");
    assert!(hooks.is_intact(&key(MapKey::for_xattr(Ino(5), b"user.a")), &extent(places[3])), "not an extent");
    assert!(hooks.is_intact(b"h", b"head"));
    hooks.before_sync().unwrap();
}

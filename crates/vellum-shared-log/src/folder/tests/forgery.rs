//! An engine that lies: each lie but one is found out when the log is read.

use super::*;

/// A log with several bases and records, and its claim.
fn written_log() -> (Arc<MemoryLog>, LogClaim, u64) {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.create_file("a").unwrap();
    for number in 0..6_u8 {
        file.write_at(&[number + 1; 40], 40 * u64::from(number)).unwrap();
        file.sync_file().unwrap();
    }
    let end = log.end();
    let current = held.current();
    let (start, end_position) = (LogPosition(0), LogPosition(end));
    (log, LogClaim { epoch: current.epoch, incarnation: current.incarnation, start, end: end_position }, end)
}

fn is_refused(log: &MemoryLog, claim: &LogClaim) -> bool {
    let end = LogPosition(log.end().min(claim.end.0));
    replay(log, &LogClaim { end, ..*claim }, claim.end.0).is_err()
}

#[test]
fn every_flipped_bit_is_found() {
    let (log, claim, len) = written_log();
    assert!(!is_refused(&log, &claim), "it can be read as it is");
    for at in 0..len as usize {
        log.forge(|bytes| bytes[at] ^= 0x10);
        assert!(is_refused(&log, &claim), "byte {at}");
        log.forge(|bytes| bytes[at] ^= 0x10);
    }
}

#[test]
fn records_do_not_open_in_other_places() {
    let (log, claim, _) = written_log();
    let records = log.records();
    let original = std::sync::Mutex::new(Vec::new());
    log.forge(|bytes| original.lock().unwrap().clone_from(bytes));
    let original = original.into_inner().unwrap();
    let parts: Vec<&[u8]> = records.iter().map(|range| &original[range.clone()]).collect();
    for first in 0..parts.len() {
        for second in 0..parts.len() {
            // Exchanged, one in place of the other, and left out.
            let mut exchanged = parts.clone();
            exchanged.swap(first, second);
            let mut repeated = parts.clone();
            repeated[first] = parts[second];
            let mut shorter = parts.clone();
            shorter.remove(first);
            for forged in [exchanged, repeated, shorter] {
                let forged = forged.concat();
                if forged == original {
                    continue;
                }
                log.forge(|bytes| bytes.clone_from(&forged));
                assert!(is_refused(&log, &claim), "{first} and {second}");
            }
        }
    }
}

#[test]
fn an_end_that_is_missing_is_found_if_the_worktree_knew_of_it() {
    let (log, claim, len) = written_log();
    for record in log.records().iter().skip(2) {
        let (past, claim) = log.at_moment(record.start as u64);
        let cut = replay(&past, &claim, len);
        assert!(matches!(cut, Err(ReplayError::Cut { .. })), "{record:?}");
        assert!(replay(&past, &claim, record.start as u64).is_ok(), "what is there is sound: {record:?}");
    }
    // Within a record.
    log.forge(|bytes| bytes.truncate(len as usize - 3));
    let cut = LogClaim { end: LogPosition(len - 3), ..claim };
    assert!(replay(&*log, &cut, 0).is_err());
}

#[test]
fn a_record_of_another_course_of_things_does_not_open() {
    // Two servers that went on from the same record, since the engine forgot what came after it: the records of one do
    // not follow those of the other, though they stand in the same places.
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, _held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.create_file("a").unwrap();
    file.sync_file().unwrap();
    let fork = log.end() as usize;
    for number in 0..2_u8 {
        file.write_at(&[number + 1; 40], 0).unwrap();
        file.sync_file().unwrap();
    }
    let first = std::sync::Mutex::new(Vec::new());
    log.forge(|bytes| {
        first.lock().unwrap().clone_from(bytes);
        bytes.truncate(fork);
    });
    let first = first.into_inner().unwrap();
    let (disk, replayed, held) = take_over(&log, 2);
    let files =
        SharedFiles::from_replay(parts(&disk, &held, SharedFilesLimits::default()), &replayed).unwrap();
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.open_file("a").unwrap();
    for number in 0..2_u8 {
        file.write_at(&[number + 3; 40], 0).unwrap();
        file.sync_file().unwrap();
    }
    let current = held.current();
    let claim = LogClaim {
        epoch: current.epoch,
        incarnation: current.incarnation,
        start: LogPosition(0),
        end: LogPosition(log.end()),
    };
    assert!(replay(&*log, &claim, 0).is_ok());
    let middle = fork + (log.end() as usize - fork) / 2;
    assert_eq!(first.len() as u64, log.end(), "both are of equal length");
    log.forge(|bytes| bytes[fork..middle].copy_from_slice(&first[fork..middle]));
    assert!(replay(&*log, &claim, 0).is_err(), "the second record does not follow another first one");
}

//! Records that all hosts append to one file: each is there once, or an append was lost.

use std::collections::HashSet;
use std::io::Read;

use super::operations::WorkerThread;
use crate::error::{BenchError, Result};

/// Bytes of a record.
pub(super) const RECORD_LEN: usize = 64;

/// The records of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundRecords {
    /// Whole ones that are different from each other.
    pub different: u64,
    /// Whether there is anything else: a record twice, or a part of one.
    pub damaged: bool,
}

/// A record: a line of so many bytes that says who wrote it, again and again: one that is made of two parts shows.
pub(super) fn format_record(place: WorkerThread, number: u64) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    let text = format!("record {} {} {number} ", place.host, place.thread);
    record.iter_mut().zip(text.bytes().cycle()).for_each(|(byte, letter)| *byte = letter);
    record[RECORD_LEN - 1] = b'\n';
    record
}

/// Counts the records of a file.
pub(super) fn count_records(mut file: impl Read) -> Result<FoundRecords> {
    let mut seen = HashSet::new();
    let mut damaged = false;
    let mut record = Vec::with_capacity(RECORD_LEN);
    loop {
        record.clear();
        let read = file.by_ref().take(RECORD_LEN as u64).read_to_end(&mut record);
        match read.map_err(BenchError::io_error("read", "the file of records"))? {
            0 => break,
            RECORD_LEN => match parse_record(&record) {
                Some(found) => damaged |= !seen.insert(found),
                None => damaged = true,
            },
            // Only the end of the file gives fewer bytes, and the file consists of whole records.
            _ => damaged = true,
        }
    }
    Ok(FoundRecords { different: seen.len() as u64, damaged })
}

/// Who wrote a record, and which of its records it is.
fn parse_record(record: &[u8]) -> Option<(usize, usize, u64)> {
    let text = std::str::from_utf8(record).ok()?.strip_prefix("record ")?;
    let mut words = text.split(' ');
    let place = WorkerThread { host: words.next()?.parse().ok()?, thread: words.next()?.parse().ok()? };
    let number = words.next()?.parse().ok()?;
    // The numbers may be whole in a record that is not.
    (format_record(place, number) == record).then_some((place.host, place.thread, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_and_torn_records_are_found() {
        let record = |thread, number| format_record(WorkerThread { host: 3, thread }, number);
        let largest = format_record(WorkerThread { host: 255, thread: 1023 }, u64::MAX);
        let whole = [record(0, 0), record(1, 0), record(0, 1), largest].concat();
        assert_eq!(count_records(&whole[..]).unwrap(), FoundRecords { different: 4, damaged: false });
        let twice = [&whole[..], &record(0, 1)].concat();
        assert_eq!(count_records(&twice[..]).unwrap(), FoundRecords { different: 4, damaged: true });
        assert_eq!(count_records(&whole[..200]).unwrap(), FoundRecords { different: 3, damaged: true });
        let torn = [&record(0, 0)[..32], &record(1, 0)[32..]].concat();
        assert!(count_records(&torn[..]).unwrap().damaged);
    }
}

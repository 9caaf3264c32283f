//! Records that many append to the same files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;

use super::event::{HistoryEvent, HistoryViolation};
use super::files::{RECORD, TORN, append_record, close, decode_records, encode_record, extend_hash, hash_of};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

const FILES: u64 = 2;
/// One operation in so many reads all of a file.
const READS: u64 = 16;

fn name_of(file: u64) -> String {
    format!("append{file}")
}

pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    (0..FILES).try_for_each(|file| close(File::create(dir.join(name_of(file)))?))
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    for file in 0..FILES {
        let path = worker.path(name_of(file));
        worker.record("final", &[file], || Ok(decode_records(&std::fs::read(&path)?)));
    }
}

/// Appends to files that stay open, and to those that are opened each time.
pub(super) struct AppendProgram {
    kept: HashMap<u64, File>,
}

impl AppendProgram {
    pub(super) fn new() -> Self {
        Self { kept: HashMap::new() }
    }
}

impl HistoryProgram for AppendProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let file = worker.random.next_below(FILES);
        let path = worker.path(name_of(file));
        if worker.random.is_one_in(READS) {
            // A hash, because the log of a history would otherwise hold the file once for each read.
            let read = || std::fs::read(&path).map(|content| vec![content.len() as u64, hash_of(&content)]);
            worker.record("read", &[file], read);
            return;
        }
        let number = worker.choose_number();
        let is_synced = worker.random.is_one_in(4);
        let is_kept = worker.random.is_one_in(2);
        let open = || File::options().append(true).open(&path);
        // Taken out: after an append that failed, the file is opened anew.
        let kept = self.kept.remove(&file);
        let arguments = [file, number, u64::from(is_synced)];
        let opened = worker.record("append", &arguments, || {
            let opened = kept.map_or_else(open, Ok)?;
            append_record(&opened, number)?;
            if is_synced {
                opened.sync_data()?;
            }
            Ok(opened)
        });
        if let Some(opened) = opened
            && is_kept
        {
            self.kept.insert(file, opened);
        }
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    (0..FILES).flat_map(|file| check_file(file, events, take_over)).collect()
}

fn check_file(file: u64, events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let of_file: Vec<_> = events.iter().filter(|event| event.argument(0) == file).collect();
    let mut found = Vec::new();
    let last = of_file.iter().filter(|event| event.name == "final").find_map(|event| event.results());
    let Some(numbers) = last else { return vec![violation(file, "its content is not known")] };
    let mut positions: HashMap<u64, usize> = HashMap::new();
    for (position, number) in numbers.iter().enumerate() {
        if *number == TORN {
            found.push(violation(file, &format!("record {position} is torn")));
        } else if let Some(first) = positions.insert(*number, position) {
            found.push(violation(file, &format!("record {position} is that of {first} again")));
        }
    }
    let appends: Vec<_> = of_file.iter().copied().filter(|event| event.name == "append").collect();
    let appended: HashSet<u64> = appends.iter().map(|event| event.argument(1)).collect();
    for number in numbers.iter().filter(|number| **number != TORN) {
        if !appended.contains(number) {
            found.push(violation(file, &format!("nobody appended {number}")));
        }
    }
    found.extend(check_appends(&appends, &positions, take_over));
    let expectation = ReadExpectation::new(numbers, &appends, &positions);
    // What the lost server answered may have been more than what is there.
    let is_of_last = |event: &&HistoryEvent| take_over.is_none_or(|take_over| !take_over.may_lose(event));
    let reads = of_file.iter().copied().filter(|event| event.name == "read").filter(is_of_last);
    found.extend(reads.flat_map(|read| expectation.check_read(read)));
    found
}

/// What was acknowledged is there, in the order of each writer.
fn check_appends(
    appends: &[&HistoryEvent],
    positions: &HashMap<u64, usize>,
    take_over: Option<TakeOver>,
) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    let is_kept =
        |event: &&HistoryEvent| event.results().is_some() && positions.contains_key(&event.argument(1));
    let kept: Vec<_> = appends.iter().copied().filter(is_kept).collect();
    // Events come in the order of their starts, and a writer does one thing after the other.
    let mut last_of: BTreeMap<usize, usize> = BTreeMap::new();
    for event in appends.iter().filter(|event| event.results().is_some()) {
        let file = event.argument(0);
        let Some(position) = positions.get(&event.argument(1)) else {
            let is_synced = event.argument(2) == 1;
            if !is_synced && take_over.is_some_and(|take_over| take_over.explains_loss(event, &kept)) {
                continue;
            }
            found.push(violation(file, &format!("lost: {event}")));
            continue;
        };
        if last_of.insert(event.client, *position).is_some_and(|last| last > *position) {
            found.push(violation(file, &format!("before what its writer appended earlier: {event}")));
        }
    }
    found
}

/// What readers may see: a beginning of what is there at the end, with all that was complete when they began.
struct ReadExpectation<'a> {
    /// Hashes of the beginnings, by their number of records.
    hashes: Vec<u64>,
    /// Appends in the order of their ends, each replaced by the earlier one that is farthest behind in the file, if one is.
    farthest: Vec<CompleteAppend<'a>>,
}

/// An append that succeeded.
#[derive(Clone, Copy)]
struct CompleteAppend<'a> {
    /// The end of the append at this place in the order.
    end: u64,
    event: &'a HistoryEvent,
    position: usize,
}

impl<'a> ReadExpectation<'a> {
    fn new(numbers: &[u64], appends: &[&'a HistoryEvent], positions: &HashMap<u64, usize>) -> Self {
        // The first one is that of nothing, so that the position in this list is the number of records.
        let mut hashes = vec![hash_of(&[])];
        for number in numbers {
            let hash = extend_hash(*hashes.last().unwrap_or(&0), &encode_record(*number));
            hashes.push(hash);
        }
        let complete = |event: &&'a HistoryEvent| {
            let position = *positions.get(&event.argument(1))?;
            event.results()?;
            Some(CompleteAppend { end: event.end?, event, position })
        };
        let mut farthest: Vec<_> = appends.iter().filter_map(complete).collect();
        farthest.sort_by_key(|append| append.end);
        for at in 1..farthest.len() {
            // Of all appends that ended before a read began, only the one that is farthest behind need be looked for.
            let before = farthest[at - 1];
            if before.position > farthest[at].position {
                farthest[at] = CompleteAppend { end: farthest[at].end, ..before };
            }
        }
        Self { hashes, farthest }
    }

    fn check_read(&self, read: &HistoryEvent) -> Vec<HistoryViolation> {
        let Some(&[len, hash]) = read.results() else { return Vec::new() };
        let file = read.argument(0);
        let mut found = Vec::new();
        let records = len as usize / RECORD;
        if !(len as usize).is_multiple_of(RECORD) || self.hashes.get(records) != Some(&hash) {
            found.push(violation(file, &format!("no beginning of what is there at the end: {read}")));
        }
        // What was under way when the read began may be seen or not.
        let ended = self.farthest.partition_point(|append| append.end < read.start);
        if let Some(append) = ended.checked_sub(1).map(|last| self.farthest[last])
            && append.position >= records
        {
            found.push(violation(file, &format!("{read} misses {}", append.event)));
        }
        found
    }
}

fn violation(file: u64, what: &str) -> HistoryViolation {
    HistoryViolation(format!("{}: {what}", name_of(file)))
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    /// Two writers of file 0, its content at the end, and a reader that saw its first `seen` records.
    fn found(content: &[u64], seen: &[u64]) -> Vec<String> {
        let bytes: Vec<u8> = seen.iter().flat_map(|number| encode_record(*number)).collect();
        let reader = format!("I 35 read 0\nD 40 {} {}\n", bytes.len(), hash_of(&bytes));
        let numbers: String = content.iter().map(|number| format!(" {number}")).collect();
        let logs = [
            "I 10 append 0 11\nD 20\nI 30 append 0 12\nD 50\n".to_owned(),
            "I 10 append 0 21\nD 20\nI 60 append 0 22\nU 70 5\n".to_owned(),
            reader,
            format!("I 100 final 0\nD 101{numbers}\nI 102 final 1\nD 103\n"),
        ];
        let events: Vec<_> =
            logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        check(&events, None).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn what_appending_does_is_accepted() {
        let none: [String; 0] = [];
        assert_eq!(found(&[11, 21, 12], &[11, 21]), none);
        assert_eq!(found(&[21, 11, 12, 22], &[21, 11, 12]), none);
    }

    #[test]
    fn each_violation_is_found() {
        let cases: [(&[u64], &[u64], &str); 7] = [
            (&[11, 12], &[11], "lost"),
            (&[11, 21, TORN, 12], &[11, 21], "torn"),
            (&[11, 21, 12, 11], &[11, 21], "again"),
            (&[12, 21, 11], &[12, 21, 11], "before what its writer"),
            (&[11, 21, 12, 99], &[11, 21], "nobody appended"),
            (&[11, 21, 12], &[11], "misses"),
            (&[11, 21, 12], &[21, 11], "no beginning"),
        ];
        for (content, seen, expected) in cases {
            let found = found(content, seen);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}

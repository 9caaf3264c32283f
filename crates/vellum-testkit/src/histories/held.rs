//! Files that programs have open while others remove their names.
//!
//! Each worker creates files and keeps them open; all of them remove names, of files of others as well. Who has a file open
//! reads what it wrote last, whatever became of the name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::event::{HistoryEvent, HistoryViolation};
use super::files::{EMPTY, TORN, close};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

/// Most files that a worker has open.
const OPEN_MAX: usize = 4;

fn name_of(number: u64) -> String {
    format!("held{number}")
}

/// Records the names that are there.
pub(super) fn observe(worker: &mut HistoryWorker) {
    let dir = worker.path("");
    worker.record("end", &[], || list_numbers(&dir));
}

fn list_numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        numbers.extend(name.strip_prefix("held").and_then(|digits| digits.parse::<u64>().ok()));
    }
    Ok(numbers)
}

/// Creates, reads, writes and closes files of its own, and removes any.
pub(super) struct HeldProgram {
    open: Vec<(u64, File)>,
}

impl HeldProgram {
    pub(super) fn new() -> Self {
        Self { open: Vec::new() }
    }

    fn create(&mut self, worker: &mut HistoryWorker) {
        let number = worker.choose_number();
        let path = worker.path(name_of(number));
        let created = worker.record("create", &[number], || {
            let file = File::options().read(true).write(true).create_new(true).open(path)?;
            file.write_all_at(&number.to_le_bytes(), 0)?;
            Ok(file)
        });
        self.open.extend(created.map(|file| (number, file)));
    }

    /// Reads or writes an open file, or closes it. After a failure it is closed, too: what failed may be carried out later.
    fn use_open(&mut self, worker: &mut HistoryWorker) {
        let at = worker.random.next_below(self.open.len() as u64) as usize;
        let (number, file) = self.open.swap_remove(at);
        let kept = match worker.random.next_below(8) {
            0 => worker.record("close", &[number], || close(file)).and(None),
            1..=3 => {
                let written = worker.choose_number();
                let is_synced = worker.random.is_one_in(4);
                worker.record("write", &[number, written, u64::from(is_synced)], || {
                    file.write_all_at(&written.to_le_bytes(), 0)?;
                    if is_synced {
                        file.sync_all()?;
                    }
                    Ok(file)
                })
            }
            _ => worker.record("read", &[number], || read_open(&file)).map(|_| file),
        };
        self.open.extend(kept.map(|file| (number, file)));
    }
}

impl HistoryProgram for HeldProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        if self.open.len() < OPEN_MAX && worker.random.is_one_in(4) {
            self.create(worker);
        } else if self.open.is_empty() || worker.random.is_one_in(4) {
            remove_any(worker);
        } else {
            self.use_open(worker);
        }
    }
}

fn read_open(file: &File) -> io::Result<u64> {
    // Longer than what is there, so that what nobody wrote is noticed.
    let mut content = [0; 16];
    let len = file.read_at(&mut content, 0)?;
    Ok(match &content[..len] {
        [] => EMPTY,
        bytes => bytes.try_into().map_or(TORN, u64::from_le_bytes),
    })
}

fn remove_any(worker: &mut HistoryWorker) {
    let dir = worker.path("");
    // What cannot be listed has no names to remove; the next attempt may find some.
    let numbers = list_numbers(&dir).unwrap_or_default();
    if numbers.is_empty() {
        return;
    }
    let number = numbers[worker.random.next_below(numbers.len() as u64) as usize];
    worker.record("remove", &[number], || std::fs::remove_file(dir.join(name_of(number))));
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let mut found = check_names(events, take_over);
    let mut of_file: BTreeMap<u64, Vec<&HistoryEvent>> = BTreeMap::new();
    for event in events.iter().filter(|event| ["create", "write", "read"].contains(&&*event.name)) {
        of_file.entry(event.argument(0)).or_default().push(event);
    }
    // A file is used by the worker that created it, which does one thing after the other.
    found.extend(of_file.into_values().flat_map(|uses| check_contents(&uses, take_over)));
    found
}

/// A name that was created is there until it is removed, which happens once.
fn check_names(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let Some(last) = events.iter().filter(|event| event.name == "end").find_map(HistoryEvent::results) else {
        return vec![HistoryViolation("the names at the end are not known".into())];
    };
    let last: HashSet<u64> = last.iter().copied().collect();
    let may_be_lost = |event: &HistoryEvent| take_over.is_some_and(|take_over| take_over.may_lose(event));
    let mut removed: HashMap<u64, &HistoryEvent> = HashMap::new();
    let mut perhaps_removed: HashSet<u64> = HashSet::new();
    let mut found = Vec::new();
    for event in events.iter().filter(|event| event.name == "remove") {
        let number = event.argument(0);
        if event.is_unknown() {
            perhaps_removed.insert(number);
        }
        if event.results().is_none() {
            continue;
        }
        if let Some(first) = removed.insert(number, event)
            && !may_be_lost(first)
            && !may_be_lost(event)
        {
            found.push(HistoryViolation(format!("removed twice: {first} and {event}")));
        }
        if last.contains(&number) && !may_be_lost(event) {
            found.push(HistoryViolation(format!("it is there again: {event}")));
        }
    }
    for event in events.iter().filter(|event| event.name == "create" && event.results().is_some()) {
        let number = event.argument(0);
        let is_gone = removed.contains_key(&number) || perhaps_removed.contains(&number);
        if !is_gone && !last.contains(&number) && !may_be_lost(event) {
            found.push(HistoryViolation(format!("nobody removed it, and it is gone: {event}")));
        }
    }
    found
}

/// Each read of an open file shows what was written last.
fn check_contents(uses: &[&HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let written = |event: &HistoryEvent| match &*event.name {
        "create" => Some(event.argument(0)),
        "write" => Some(event.argument(1)),
        _ => None,
    };
    let mut found = Vec::new();
    for (at, read) in uses.iter().enumerate().filter(|(_, event)| event.name == "read") {
        let Some(&[seen]) = read.results() else { continue };
        let mut is_explained = false;
        let mut is_certain = false;
        for event in uses[..at].iter().rev() {
            let Some(number) = written(event) else { continue };
            is_explained |= number == seen;
            let is_lost = event.argument(2) == 0
                && take_over
                    .is_some_and(|take_over| take_over.may_lose(event) && take_over.may_precede(read));
            // What was written before it cannot be seen any more.
            if event.results().is_some() && !is_lost {
                is_certain = true;
                break;
            }
        }
        // Without its first content it is empty.
        if !is_explained && (is_certain || seen != EMPTY) {
            found.push(HistoryViolation(format!("not what was written last: {read}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn found(log: &str, end: &str) -> Vec<String> {
        let events = [parse_log(0, log), parse_log(1, &format!("I 90 end\nD 91{end}\n"))].concat();
        check(&events, None).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn what_open_files_do_is_accepted() {
        let none: [String; 0] = [];
        let log = "I 1 create 5\nD 2\nI 3 remove 5\nD 4\nI 5 read 5\nD 6 5\nI 7 write 5 6 0\nD 8\nI 9 read 5\nD 10 6\n";
        assert_eq!(found(log, ""), none);
        // Whether the name is there, nobody knows.
        let log = "I 1 create 5\nD 2\nI 3 remove 5\nU 4 5\n";
        assert_eq!(found(log, ""), none);
        assert_eq!(found(log, " 5"), none);
    }

    #[test]
    fn each_violation_is_found() {
        let cases = [
            ("I 1 create 5\nD 2\nI 5 read 5\nD 6 7\n", " 5", "not what was written last"),
            (
                "I 1 create 5\nD 2\nI 3 write 5 6 0\nD 4\nI 5 read 5\nD 6 5\n",
                " 5",
                "not what was written last",
            ),
            ("I 1 create 5\nD 2\nI 3 remove 5\nD 4\n", " 5", "it is there again"),
            ("I 1 create 5\nD 2\nI 3 remove 5\nD 4\nI 5 remove 5\nD 6\n", "", "removed twice"),
            ("I 1 create 5\nD 2\n", "", "nobody removed it"),
        ];
        for (log, end, expected) in cases {
            let found = found(log, end);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn what_a_lost_server_took_along_is_accepted_unless_it_was_synced() {
        let take_over = Some(TakeOver { start: 20, end: 30 });
        let check_log = |log: &str, end: &str| {
            let end = format!("I 90 end\nD 91{end}\n");
            check(&[parse_log(0, log), parse_log(1, &end)].concat(), take_over).len()
        };
        let created = "I 1 create 5\nD 2\nI 3 write 5 6 1\nD 4\nI 5 write 5 7 0\nD 6\n";
        assert_eq!(check_log(&format!("{created}I 40 read 5\nD 41 6\n"), " 5"), 0);
        assert_eq!(check_log(&format!("{created}I 40 read 5\nD 41 5\n"), " 5"), 1);
        assert_eq!(check_log(&format!("{created}I 10 read 5\nD 11 6\n"), " 5"), 1);
        assert_eq!(check_log("I 1 create 5\nD 2\nI 40 read 5\nD 41 18446744073709551615\n", " 5"), 0);
    }
}

//! Small files as registers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::files::{EMPTY, read_number, replace_number, write_number};
use super::linearize::{CheckedObject, EventDurability, SequentialModel, check_linearizable, relevant};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

/// Files: two of each way to write them.
const FILES: u64 = 6;

/// The third argument of a write: all of it was synced, or only what is in the file that was renamed; otherwise 0.
const SYNCED: u64 = 1;
const CONTENT_SYNCED: u64 = 2;

/// How a file is written, which is the same for all who write it.
#[derive(Debug, Clone, Copy)]
enum WriteStyle {
    /// In place.
    Overwrite,
    /// Truncated first: readers may find it empty.
    Truncate,
    /// By a temporary file that is renamed.
    Replace,
}

fn style_of(file: u64) -> WriteStyle {
    match file % 3 {
        0 => WriteStyle::Overwrite,
        1 => WriteStyle::Truncate,
        _ => WriteStyle::Replace,
    }
}

fn name_of(file: u64) -> String {
    format!("register{file}")
}

pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    (0..FILES).try_for_each(|file| write_number(File::create(dir.join(name_of(file)))?, 0, true))
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    (0..FILES).for_each(|file| read(worker, file));
}

/// Reads and writes at random.
pub(super) struct RegisterProgram;

impl HistoryProgram for RegisterProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let file = worker.random.next_below(FILES);
        if worker.random.is_one_in(2) {
            read(worker, file);
        } else {
            write(worker, file);
        }
    }
}

fn read(worker: &mut HistoryWorker, file: u64) {
    let path = worker.path(name_of(file));
    worker.record("read", &[file], || read_number(&path));
}

fn write(worker: &mut HistoryWorker, file: u64) {
    let path = worker.path(name_of(file));
    let number = worker.choose_number();
    let is_synced = worker.random.is_one_in(4);
    let open = || File::options().write(true).open(&path);
    let arguments = [file, number, u64::from(is_synced)];
    match style_of(file) {
        WriteStyle::Overwrite => {
            worker.record("write", &arguments, || write_number(open()?, number, is_synced));
        }
        WriteStyle::Truncate => {
            // Two changes, each of which others may see.
            let truncate = || File::options().write(true).truncate(true).open(&path);
            if let Some(opened) = worker.record("write", &[file, EMPTY], truncate) {
                worker.record("write", &arguments, || write_number(opened, number, is_synced));
            }
        }
        WriteStyle::Replace => {
            let temporary = worker.path(format!("temporary{}", worker.task.client));
            // The name that is replaced is not synced, only what is in the file.
            let arguments = [file, number, if is_synced { CONTENT_SYNCED } else { 0 }];
            worker.record("write", &arguments, || replace_number(&path, &temporary, number, is_synced));
        }
    }
}

/// A register.
struct RegisterModel;

impl SequentialModel for RegisterModel {
    type State = u64;

    fn apply(&self, state: &u64, event: &HistoryEvent) -> Option<u64> {
        match (event.name.as_str(), &event.outcome) {
            ("read", HistoryOutcome::Done(results)) => (results[..] == [*state]).then_some(*state),
            ("write", HistoryOutcome::Done(_) | HistoryOutcome::Unknown(_)) => Some(event.argument(1)),
            _ => Some(*state),
        }
    }

    fn is_reading(&self, event: &HistoryEvent) -> bool {
        event.name == "read"
    }

    fn durability(&self, event: &HistoryEvent) -> EventDurability {
        match event.argument(2) {
            // If only the content was synced, the new name can be lost, so that the write does not count as synced.
            SYNCED => EventDurability::Synced,
            _ => EventDurability::SeveralCalls,
        }
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let halves: Vec<_> = take_over.map_or_else(Vec::new, |take_over| half_replacements(events, take_over));
    let mut files: BTreeMap<u64, Vec<&HistoryEvent>> = BTreeMap::new();
    for event in relevant(events, &[]).into_iter().chain(&halves) {
        files.entry(event.argument(0)).or_default().push(event);
    }
    let check = |(file, events): (u64, Vec<&HistoryEvent>)| {
        let is_seen =
            |value| events.iter().any(|event| event.name == "read" && event.results() == Some(&[value]));
        // An unknown write that nobody saw can be the last of all, and an unknown read says nothing.
        let says_something = |event: &&HistoryEvent| {
            !event.is_unknown() || event.name == "write" && is_seen(event.argument(1))
        };
        let events: Vec<_> = events.iter().copied().filter(says_something).collect();
        let object = CheckedObject { name: &name_of(file), take_over };
        check_linearizable(&RegisterModel, 0, &events, object)
    };
    files.into_iter().flat_map(check).collect()
}

/// What replacements may have become in which a server was lost: the temporary file was made, what was written into it is lost,
/// and then it was renamed. Without `fsync`, nobody is told.
fn half_replacements(events: &[HistoryEvent], take_over: TakeOver) -> Vec<HistoryEvent> {
    let is_half = |event: &&HistoryEvent| {
        let is_replacement =
            event.name == "write" && matches!(style_of(event.argument(0)), WriteStyle::Replace);
        is_replacement && event.argument(2) == 0 && take_over.may_lose(event) && take_over.may_precede(event)
    };
    let as_empty = |event: &HistoryEvent| HistoryEvent {
        arguments: vec![event.argument(0), EMPTY],
        // Until its end, or never.
        outcome: HistoryOutcome::Unknown(None),
        ..event.clone()
    };
    events.iter().filter(is_half).map(as_empty).collect()
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn found(logs: &[&str]) -> usize {
        let events: Vec<_> =
            logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        check(&events, None).len()
    }

    #[test]
    fn what_a_register_does_is_accepted() {
        let writer = "I 10 write 0 5\nD 20\nI 50 write 0 6\nD 60\n";
        assert_eq!(found(&[writer, "I 1 read 0\nD 2 0\nI 21 read 0\nD 22 5\nI 61 read 0\nD 62 6\n"]), 0);
        // Meanwhile both are right, in this order.
        assert_eq!(found(&[writer, "I 51 read 0\nD 52 5\nI 53 read 0\nD 54 6\n"]), 0);
        // Two files know nothing of each other.
        assert_eq!(found(&[writer, "I 30 read 3\nD 40 0\n"]), 0);
    }

    #[test]
    fn stale_reads_are_found() {
        let writer = "I 10 write 0 5\nD 20\nI 50 write 0 6\nD 60\n";
        assert_eq!(found(&[writer, "I 21 read 0\nD 22 0\n"]), 1);
        assert_eq!(found(&[writer, "I 61 read 0\nD 62 5\n"]), 1);
        // New, then old.
        assert_eq!(found(&[writer, "I 51 read 0\nD 52 6\nI 53 read 0\nD 54 5\n"]), 1);
    }

    #[test]
    fn values_that_nobody_wrote_are_found() {
        assert_eq!(found(&["I 1 read 0\nD 2 99\n"]), 1);
        assert_eq!(found(&[&format!("I 1 read 0\nD 2 {EMPTY}\n")]), 1);
    }

    #[test]
    fn an_unknown_write_may_show_late_or_never_but_not_come_and_go() {
        let writer = "I 10 write 0 5\nU 20 5\n";
        assert_eq!(found(&[writer, "I 30 read 0\nD 31 0\nI 40 read 0\nD 41 5\n"]), 0);
        assert_eq!(found(&[writer, "I 30 read 0\nD 31 0\n"]), 0);
        assert_eq!(found(&[writer, "I 30 read 0\nD 31 5\nI 40 read 0\nD 41 0\n"]), 1);
        assert_eq!(found(&[writer, "I 1 read 0\nD 2 5\n"]), 1);
    }

    #[test]
    fn a_replacement_in_a_take_over_may_be_empty_without_fsync() {
        let take_over = Some(TakeOver { start: 100, end: 200 });
        let read = format!("I 310 read 2\nD 320 {EMPTY}\n");
        let found =
            |write: &str| check(&[parse_log(0, write), parse_log(1, &read)].concat(), take_over).len();
        assert_eq!(found("I 90 write 2 5\nD 300\n"), 0);
        assert_eq!(found(&format!("I 90 write 2 5 {CONTENT_SYNCED}\nD 300\n")), 1);
        // Nor one that ended before it or began after it, nor one in place.
        assert_eq!(found("I 80 write 2 5\nD 90\n"), 1);
        assert_eq!(found("I 210 write 2 5\nD 300\n"), 1);
        assert_eq!(found("I 90 write 0 5\nD 300\n"), 1);
    }
}

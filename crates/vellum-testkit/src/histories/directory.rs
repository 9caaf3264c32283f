//! The names of one directory, for which all compete.

use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::files::close;
use super::linearize::{CheckedObject, EventDurability, SequentialModel, check_linearizable, relevant};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

const NAMES: usize = 5;
/// How often to look at a name where something else is each time.
const STALE_TRIES: usize = 10;
/// What is at a name where nothing is.
const ABSENT: u64 = 0;
/// What is at a name where a file is. Symlinks tell who made them: their targets are numbers.
const FILE: u64 = 1;

fn name_of(name: u64) -> String {
    format!("name{name}")
}

pub(super) fn prepare(_dir: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    (0..NAMES as u64).for_each(|name| look(worker, name));
}

/// Creates, removes, renames and looks at random.
pub(super) struct DirectoryProgram;

impl HistoryProgram for DirectoryProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let first = worker.random.next_below(NAMES as u64);
        // Another name.
        let second = (first + 1 + worker.random.next_below(NAMES as u64 - 1)) % NAMES as u64;
        let [from, to] = [first, second].map(|name| worker.path(name_of(name)));
        let rename = |flags| Ok(renameat_with(CWD, &from, CWD, &to, flags)?);
        match worker.random.next_below(10) {
            0 => {
                let create = || close(File::create_new(&from)?);
                worker.record("create", &[first], create);
            }
            // More often than files: only a symlink tells who made it.
            1..=2 => {
                let number = worker.choose_number();
                worker.record("symlink", &[first, number], || symlink(number.to_string(), &from));
            }
            3 => {
                worker.record("unlink", &[first], || std::fs::remove_file(&from));
            }
            4 => {
                worker.record("rename", &[first, second], || rename(RenameFlags::empty()));
            }
            5 => {
                worker.record("move", &[first, second], || rename(RenameFlags::NOREPLACE));
            }
            6 => {
                worker.record("exchange", &[first, second], || rename(RenameFlags::EXCHANGE));
            }
            _ => look(worker, first),
        }
    }
}

fn look(worker: &mut HistoryWorker, name: u64) {
    let path = worker.path(name_of(name));
    worker.record("look", &[name], || {
        // Where each machine has a kernel of its own, what was found at a name may be removed before its target is read. Linux
        // looks once more by itself, and then says that it is stale.
        let mut seen = read_name(&path);
        for _ in 1..STALE_TRIES {
            if !seen.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)) {
                break;
            }
            seen = read_name(&path);
        }
        seen
    });
}

/// What is at a name.
fn read_name(path: &Path) -> io::Result<u64> {
    match std::fs::read_link(path) {
        // What is no number was made by no program of the history, and fits no state.
        Ok(target) => Ok(target.to_string_lossy().parse::<u64>().unwrap_or(u64::MAX)),
        // That is what `readlink` says of a file that is no symlink.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(FILE),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(ABSENT),
        Err(error) => Err(error),
    }
}

/// A map of names.
struct DirectoryModel;

impl SequentialModel for DirectoryModel {
    type State = [u64; NAMES];

    fn apply(&self, state: &Self::State, event: &HistoryEvent) -> Option<Self::State> {
        let first = event.argument(0) as usize % NAMES;
        let second = event.argument(1) as usize % NAMES;
        let [is_first, is_second] = [first, second].map(|name| state[name] != ABSENT);
        let mut after = *state;
        // The error that it must fail with, and the state after it if there is none.
        let error = match event.name.as_str() {
            "create" | "symlink" => {
                after[first] = if event.name == "create" { FILE } else { event.argument(1) };
                is_first.then_some(libc::EEXIST)
            }
            "unlink" => {
                after[first] = ABSENT;
                (!is_first).then_some(libc::ENOENT)
            }
            "rename" | "move" => {
                after[second] = std::mem::replace(&mut after[first], ABSENT);
                // Linux looks for the source first: if neither name is as it should be, that is the error.
                let occupied = (event.name == "move" && is_second).then_some(libc::EEXIST);
                if is_first { occupied } else { Some(libc::ENOENT) }
            }
            "exchange" => {
                after.swap(first, second);
                (!is_first || !is_second).then_some(libc::ENOENT)
            }
            // What a kernel saw at a name, as a part of something else.
            "present" => return is_first.then_some(*state),
            _ => {
                let is_right = event.results().is_none_or(|results| results == [state[first]]);
                return is_right.then_some(*state);
            }
        };
        match (&event.outcome, error) {
            (HistoryOutcome::Done(_) | HistoryOutcome::Unknown(_), None) => Some(after),
            (HistoryOutcome::Unknown(_), Some(_)) => Some(*state),
            (HistoryOutcome::Failed(errno), Some(expected)) => (*errno == expected).then_some(*state),
            (HistoryOutcome::Done(_), Some(_)) | (HistoryOutcome::Failed(_), None) => None,
        }
    }

    fn is_reading(&self, event: &HistoryEvent) -> bool {
        ["look", "present"].contains(&event.name.as_str())
    }

    fn durability(&self, event: &HistoryEvent) -> EventDurability {
        // What it creates is closed then.
        if event.name == "create" { EventDurability::SeveralCalls } else { EventDurability::OneCall }
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let mut events = relevant(events, &[libc::EEXIST, libc::ENOENT]);
    // A look that failed in an unknown way has seen nothing that can be checked.
    events.retain(|event| event.name != "look" || !event.is_unknown());
    let object = CheckedObject { name: "names in one directory", take_over };
    check_linearizable(&DirectoryModel, [ABSENT; NAMES], &events, object)
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn is_found(logs: &[&str]) -> bool {
        let events: Vec<_> =
            logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        !check(&events, None).is_empty()
    }

    #[test]
    fn one_of_two_that_create_wins() {
        let first = "I 10 create 0\nD 20\n";
        assert!(!is_found(&[first, "I 10 create 0\nF 20 17\n"]));
        assert!(is_found(&[first, "I 10 create 0\nD 20\n"]));
        assert!(is_found(&["I 10 create 0\nF 20 17\n", "I 10 create 0\nF 20 17\n"]));
        // Between the two it may have been removed.
        assert!(!is_found(&[first, "I 10 create 0\nD 20\n", "I 10 unlink 0\nD 20\n"]));
    }

    #[test]
    fn one_of_two_that_take_a_name_away_wins() {
        let made = "I 1 symlink 0 77\nD 2\n";
        assert!(!is_found(&[made, "I 10 rename 0 1\nD 20\n", "I 10 unlink 0\nF 20 2\n"]));
        assert!(is_found(&[made, "I 10 rename 0 1\nD 20\n", "I 10 unlink 0\nD 20\n"]));
        assert!(is_found(&[made, "I 10 rename 0 1\nF 20 2\n", "I 10 unlink 0\nF 20 2\n"]));
    }

    #[test]
    fn what_is_moved_is_at_one_name() {
        let made = "I 1 symlink 0 77\nD 2\nI 10 rename 0 1\nD 20\n";
        assert!(!is_found(&[made, "I 21 look 0\nD 22 0\nI 23 look 1\nD 24 77\n"]));
        // At both, or at none, after it was moved, or meanwhile.
        assert!(is_found(&[made, "I 21 look 0\nD 22 77\n"]));
        assert!(is_found(&[made, "I 21 look 1\nD 22 0\n"]));
        assert!(is_found(&[made, "I 11 look 0\nD 12 0\nI 13 look 1\nD 14 0\n"]));
        assert!(is_found(&[made, "I 11 look 1\nD 12 77\nI 13 look 0\nD 14 77\n"]));
    }

    #[test]
    fn nothing_is_replaced_that_should_not_be() {
        let made = "I 1 symlink 0 77\nD 2\nI 3 symlink 1 78\nD 4\n";
        assert!(!is_found(&[made, "I 10 move 0 1\nF 20 17\n"]));
        assert!(is_found(&[made, "I 10 move 0 1\nD 20\n"]));
        assert!(!is_found(&[made, "I 10 exchange 0 1\nD 20\nI 21 look 0\nD 22 78\n"]));
        assert!(is_found(&[made, "I 10 exchange 0 1\nD 20\nI 21 look 0\nD 22 77\n"]));
        assert!(is_found(&[made, "I 10 exchange 0 2\nD 20\n"]));
    }

    #[test]
    fn an_unknown_operation_may_have_happened() {
        let unknown = "I 10 create 0\nU 20 5\n";
        assert!(!is_found(&[unknown, "I 30 create 0\nD 31\n"]));
        assert!(!is_found(&[unknown, "I 30 create 0\nF 31 17\n"]));
        assert!(is_found(&[unknown, "I 30 create 0\nF 31 17\nI 32 look 0\nD 33 0\n"]));
    }
}

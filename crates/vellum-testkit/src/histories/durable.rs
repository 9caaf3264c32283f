//! What was acknowledged by `fsync`, and is to be there whatever happened afterwards.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::event::{HistoryEvent, HistoryViolation};
use super::files::{
    append_record, close, decode_records, encode_record, read_number, replace_number, sync_directory,
};
use super::worker::{HistoryProgram, HistoryWorker};

fn created_name(number: u64) -> String {
    format!("created{number}")
}

fn log_name(client: usize) -> String {
    format!("log{client}")
}

fn state_name(client: usize) -> String {
    format!("state{client}")
}

pub(super) fn prepare(dir: &Path, clients: usize) -> io::Result<()> {
    for client in 0..clients {
        let log = File::create(dir.join(log_name(client)))?;
        // What the checks begin with must survive as well.
        log.sync_all()?;
        close(log)?;
        replace_number(&dir.join(state_name(client)), &dir.join("temporary"), 0, true)?;
    }
    sync_directory(dir)
}

/// Records all that is there: each created file, each log, each state.
pub(super) fn observe(worker: &mut HistoryWorker) {
    let dir = worker.path("");
    worker.record("created", &[], || {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("created").and_then(|digits| digits.parse().ok());
            if let Some(number) = number
                // A file that is there without its content was not made durable either.
                && std::fs::read(entry.path())? == encode_record(number)
            {
                numbers.push(number);
            }
        }
        Ok(numbers)
    });
    for client in 0..worker.task.clients {
        let [log, state] = [log_name(client), state_name(client)].map(|name| worker.path(name));
        worker.record("log", &[client as u64], || Ok(decode_records(&std::fs::read(&log)?)));
        worker.record("state", &[client as u64], || read_number(&state));
    }
}

/// Creates, appends and replaces, each time durably.
pub(super) struct DurableProgram;

impl HistoryProgram for DurableProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let client = worker.task.client;
        let number = worker.choose_number();
        let dir = worker.path("");
        match worker.random.next_below(3) {
            0 => {
                let path = worker.path(created_name(number));
                worker.record("create", &[number], || {
                    let mut file = File::create_new(path)?;
                    file.write_all(&encode_record(number))?;
                    file.sync_all()?;
                    close(file)?;
                    // `fsync` of the file need not make its name durable.
                    sync_directory(&dir)
                });
            }
            1 => {
                let path = worker.path(log_name(client));
                worker.record("append", &[number], || {
                    let file = File::options().append(true).open(&path)?;
                    append_record(&file, number)?;
                    file.sync_data()?;
                    close(file)
                });
            }
            _ => {
                let path = worker.path(state_name(client));
                // One for each client: two that replace their states at once must not write the same file.
                let temporary = worker.path(format!("temporary{client}"));
                worker.record("replace", &[number], || {
                    replace_number(&path, &temporary, number, true)?;
                    sync_directory(&dir)
                });
            }
        }
    }
}

pub(super) fn check(events: &[HistoryEvent]) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    let named = |name: &str| events.iter().filter(move |event| event.name == name).collect::<Vec<_>>();
    let is_done = |event: &&&HistoryEvent| event.results().is_some();
    let Some(created) = named("created").iter().find_map(|event| event.results()) else {
        return vec![HistoryViolation("what is there at the end is not known".into())];
    };
    let created: HashSet<u64> = created.iter().copied().collect();
    for event in named("create").iter().filter(is_done) {
        if !created.contains(&event.argument(0)) {
            found.push(HistoryViolation(format!("lost or damaged: {event}")));
        }
    }
    let by_client = |name: &str| {
        let mut map: BTreeMap<u64, Vec<&HistoryEvent>> = BTreeMap::new();
        named(name).into_iter().for_each(|event| map.entry(event.client as u64).or_default().push(event));
        map
    };
    let results_of = |name: &str, client: u64| {
        let of_client = named(name).into_iter().find(|event| event.argument(0) == client);
        of_client.and_then(HistoryEvent::results)
    };
    // What could not be read at the end counts as empty, so that all that was acknowledged is missed.
    for (client, appends) in by_client("append") {
        found.extend(check_log(&appends, results_of("log", client).unwrap_or_default()));
    }
    for (client, replaces) in by_client("replace") {
        found.extend(check_state(&replaces, results_of("state", client).unwrap_or_default()));
    }
    found
}

/// Each acknowledged record is there, in order; nothing that was not appended is.
fn check_log(appends: &[&HistoryEvent], log: &[u64]) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    let mut rest = log.iter();
    for event in appends.iter().filter(|event| event.results().is_some()) {
        if !rest.any(|number| *number == event.argument(0)) {
            found.push(HistoryViolation(format!("lost or out of order: {event}")));
            // The others are behind it.
            rest = log.iter();
        }
    }
    for number in log {
        if !appends.iter().any(|event| event.argument(0) == *number) {
            found.push(HistoryViolation(format!("nobody appended {number}")));
        }
    }
    found
}

/// The state is the last that was acknowledged, or one that was to replace it and may have.
fn check_state(replaces: &[&HistoryEvent], state: &[u64]) -> Option<HistoryViolation> {
    let last_known = replaces.iter().rposition(|event| event.results().is_some());
    // Those after it failed or were cut short, and may have been carried out.
    let perhaps = &replaces[last_known.unwrap_or(0)..];
    let is_first = last_known.is_none() && state == [0];
    let is_explained = is_first || perhaps.iter().any(|event| state == [event.argument(0)]);
    let last = replaces[last_known.unwrap_or(0)];
    (!is_explained).then(|| HistoryViolation(format!("the state is {state:?} after {last}")))
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    const LOG: &str = "I 1 create 1\nD 2\nI 3 append 2\nD 4\nI 5 append 3\nU 6 5\nI 7 append 4\nD 8\n\
        I 9 replace 5\nD 10\nI 11 replace 6\nU 12 5\nI 13 create 7\nU 14 5\n";

    fn found(created: &str, log: &str, state: &str) -> Vec<String> {
        let last = format!("I 90 created\nD 91{created}\nI 92 log 0\nD 93{log}\nI 94 state 0\nD 95{state}\n");
        let events = [parse_log(0, LOG), parse_log(1, &last)].concat();
        check(&events).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn what_fsync_promises_is_accepted() {
        let none: [String; 0] = [];
        assert_eq!(found(" 1", " 2 4", " 5"), none);
        assert_eq!(found(" 1 7", " 2 3 4", " 6"), none);
    }

    #[test]
    fn each_loss_is_found() {
        let cases = [
            ("", " 2 4", " 5", "lost or damaged"),
            (" 1", " 2", " 5", "lost or out of order"),
            (" 1", " 4 2", " 5", "lost or out of order"),
            (" 1", " 2 4 8", " 5", "nobody appended"),
            (" 1", " 2 4", " 0", "the state is [0]"),
            (" 1", " 2 4", "", "the state is []"),
        ];
        for (created, log, state, expected) in cases {
            let found = found(created, log, state);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}

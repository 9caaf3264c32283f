//! Snapshots that are taken while files change.
//!
//! Each worker writes a number into one file and then into another one, and goes on with the next number. So at each moment
//! the second has the number of the first, or the one before it. A snapshot shows one moment between its two times, for the
//! files of all workers, on each machine, and whatever happens afterwards.
//!
//! [`super::SNAPSHOT_PROGRAM`] names the program that takes snapshots. Without it, as on filesystems that have none, the
//! files are looked at at the end only.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::files::{EMPTY, read_number, write_number};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

/// One operation in so many takes a snapshot.
const SNAPSHOTS: u64 = 24;
/// Most snapshots that a worker takes, a count: at the end all of them are read again.
const SNAPSHOTS_MAX: usize = 20;
/// The two files of a pair, in the order in which they are written.
const HALVES: [&str; 2] = ["first", "second"];

fn name_of(pair: u64, half: usize) -> String {
    format!("{}{pair}", HALVES[half])
}

/// Records the pairs that are there, and those of each snapshot.
pub(super) fn observe(worker: &mut HistoryWorker) {
    let dir = worker.path("");
    worker.record("end", &[], || read_pairs(&dir));
    // Taken on other hosts as well: the tags say who took which.
    for number in list_snapshots(worker) {
        read_snapshot(worker, "again", number);
    }
}

/// The name of a snapshot: the seed is another one in each history.
fn tag_prefix(worker: &HistoryWorker) -> String {
    format!("history-{}-", worker.task.seed)
}

/// Where the mount shows snapshots by their tags.
fn snapshots_dir(worker: &HistoryWorker) -> PathBuf {
    worker.task.dir.parent().unwrap_or(Path::new("/")).join(".vellum/snapshots")
}

fn list_snapshots(worker: &HistoryWorker) -> Vec<u64> {
    let prefix = tag_prefix(worker);
    // A filesystem without snapshots has no such directory.
    let entries = std::fs::read_dir(snapshots_dir(worker)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect()
}

fn read_snapshot(worker: &mut HistoryWorker, name: &str, number: u64) {
    let tag = format!("{}{number}", tag_prefix(worker));
    let dir = snapshots_dir(worker).join(tag).join(worker.task.dir.file_name().unwrap_or_default());
    worker.record(name, &[number], || read_pairs(&dir));
}

/// Each pair with its two numbers, one after the other.
fn read_pairs(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(pair) = name.strip_prefix(HALVES[0]).and_then(|digits| digits.parse().ok()) {
            found.extend([pair, read_half(&dir.join(&name))?, read_half(&dir.join(name_of(pair, 1)))?]);
        }
    }
    Ok(found)
}

/// The number of a file. One that is not there yet has none, nor has one without its content.
fn read_half(path: &Path) -> io::Result<u64> {
    match read_number(path) {
        Ok(EMPTY) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        result => result,
    }
}

/// Writes pairs and takes snapshots.
pub(super) struct SnapshotsProgram {
    program: Option<PathBuf>,
    pair: Option<u64>,
    /// The last number that was written.
    last: u64,
    snapshots: usize,
}

impl SnapshotsProgram {
    pub(super) fn new() -> Self {
        let program = std::env::var_os(super::SNAPSHOT_PROGRAM).map(PathBuf::from);
        Self { program, pair: None, last: 0, snapshots: 0 }
    }

    fn take_snapshot(&mut self, worker: &mut HistoryWorker, program: &Path) {
        self.snapshots += 1;
        let number = worker.choose_number();
        let mut command = Command::new(program);
        command.args(["snapshot", "--tag", &format!("{}{number}", tag_prefix(worker))]);
        command
            .current_dir(&worker.task.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let taken = worker.record("snapshot", &[number], || {
            let status = command.status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other("it may have been taken")) }
        });
        if taken.is_some() {
            read_snapshot(worker, "read", number);
        }
    }
}

impl HistoryProgram for SnapshotsProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        if let Some(program) = self.program.clone()
            && self.snapshots < SNAPSHOTS_MAX
            && worker.random.is_one_in(SNAPSHOTS)
        {
            return self.take_snapshot(worker, &program);
        }
        // After a failure, which may be carried out later, other files: of one pair, only the last write may be unknown.
        let pair = self.pair.take().unwrap_or_else(|| worker.choose_number());
        let number = self.last + 1;
        self.last = number;
        for half in 0..HALVES.len() {
            let path = worker.path(name_of(pair, half));
            let written = worker.record("write", &[pair, half as u64, number], || {
                let file = File::options().write(true).create(true).truncate(false).open(path)?;
                write_number(file, number, false)
            });
            if written.is_none() {
                return;
            }
        }
        self.pair = Some(pair);
    }
}

/// What was seen of all pairs at one moment.
struct SeenMoment<'a> {
    /// Between its times the moment was.
    taken: &'a HistoryEvent,
    /// The numbers of each pair.
    numbers: BTreeMap<u64, [u64; 2]>,
}

impl<'a> SeenMoment<'a> {
    fn new(taken: &'a HistoryEvent, results: &[u64]) -> Self {
        let numbers = results.chunks_exact(3).map(|seen| (seen[0], [seen[1], seen[2]]));
        Self { taken, numbers: numbers.collect() }
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let named = |name: &'static str| events.iter().filter(move |event| event.name == name);
    let mut found = Vec::new();
    let mut moments: Vec<SeenMoment<'_>> = Vec::new();
    match named("end").find_map(|event| Some((event, event.results()?))) {
        Some((event, results)) => moments.push(SeenMoment::new(event, results)),
        None => found.push(HistoryViolation("the files at the end are not known".into())),
    }
    let taken: HashMap<u64, &HistoryEvent> =
        named("snapshot").map(|event| (event.argument(0), event)).collect();
    let mut shown: HashMap<u64, BTreeMap<u64, [u64; 2]>> = HashMap::new();
    for read in named("read").chain(named("again")) {
        let number = read.argument(0);
        let Some(snapshot) = taken.get(&number) else {
            found.push(HistoryViolation(format!("nobody took it: {read}")));
            continue;
        };
        match &read.outcome {
            HistoryOutcome::Done(results) => {
                let moment = SeenMoment::new(snapshot, results);
                let first = shown.entry(number).or_insert_with(|| moment.numbers.clone());
                if *first != moment.numbers {
                    found.push(HistoryViolation(format!("it has changed: {snapshot}, {read}")));
                }
                moments.push(moment);
            }
            // One that was acknowledged has to be there.
            HistoryOutcome::Failed(_) => found.push(HistoryViolation(format!("it is not whole: {read}"))),
            HistoryOutcome::Unknown(_) => {}
        }
    }
    let again: Vec<u64> = named("again").map(|event| event.argument(0)).collect();
    for snapshot in named("snapshot").filter(|event| event.results().is_some()) {
        if !again.contains(&snapshot.argument(0)) {
            found.push(HistoryViolation(format!("lost: {snapshot}")));
        }
    }
    let mut writes: BTreeMap<u64, Vec<&HistoryEvent>> = BTreeMap::new();
    named("write").for_each(|event| writes.entry(event.argument(0)).or_default().push(event));
    for moment in &moments {
        found.extend(writes.iter().filter_map(|(pair, writes)| check_pair(moment, *pair, writes, take_over)));
    }
    found
}

/// A pair was so at one moment between the times of what saw it.
fn check_pair(
    moment: &SeenMoment<'_>,
    pair: u64,
    writes: &[&HistoryEvent],
    take_over: Option<TakeOver>,
) -> Option<HistoryViolation> {
    let taken = moment.taken;
    let seen = moment.numbers.get(&pair).copied().unwrap_or_default();
    // Another server may have begun before this moment, with less than was written.
    let may_miss = |write: &HistoryEvent| {
        take_over.is_some_and(|take_over| take_over.may_lose(write) && take_over.may_precede(taken))
    };
    for (half, number) in seen.iter().enumerate() {
        let of_half = || writes.iter().filter(|write| write.argument(1) == half as u64);
        let is_certain =
            |write: &&&HistoryEvent| write.results().is_some() && write.is_before(taken) && !may_miss(write);
        let least = of_half().filter(is_certain).map(|write| write.argument(2)).max().unwrap_or(0);
        let is_begun = |write: &&&HistoryEvent| taken.end.is_none_or(|end| write.start < end);
        let most = of_half().filter(is_begun).map(|write| write.argument(2)).max().unwrap_or(0);
        if !(least..=most).contains(number) {
            let what = format!("{} {pair} has {number}", HALVES[half]);
            return Some(HistoryViolation(format!("{what}, and not {least} to {most}, in {taken}")));
        }
    }
    // The first write of a pair has any number; each later one the next. After a loss, numbers are left out.
    let first_number = writes.first().map_or(0, |write| write.argument(2));
    let before = if seen[1] == 0 { first_number } else { seen[1] + 1 };
    let has_gap = seen[0] > before && !take_over.is_some_and(|take_over| take_over.may_precede(taken));
    // The lost server may have taken the first number along, while the next one wrote the second.
    let is_divided =
        writes.iter().any(|write| write.argument(1) == 0 && write.argument(2) == seen[1] && may_miss(write));
    (seen[1] > seen[0] && !is_divided || has_gap)
        .then(|| HistoryViolation(format!("pair {pair} was never {seen:?}, as in {taken}")))
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    const WRITER: &str =
        "I 1 write 7 0 1\nD 2\nI 3 write 7 1 1\nD 4\nI 20 write 7 0 2\nD 21\nI 22 write 7 1 2\nD 23\n";

    fn found(snapshots: &str, end: &str, take_over: Option<TakeOver>) -> Vec<String> {
        let observer = format!("I 90 end\nD 91{end}\nI 92 again 9\nD 93 7 1 1\n");
        let events = [parse_log(0, WRITER), parse_log(1, snapshots), parse_log(2, &observer)].concat();
        check(&events, take_over).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn one_moment_is_accepted() {
        let none: [String; 0] = [];
        assert_eq!(found("I 10 snapshot 9\nD 11\nI 12 read 9\nD 13 7 1 1\n", " 7 2 2", None), none);
        assert_eq!(found("I 10 snapshot 9\nU 11 0\n", " 7 2 2", None), none);
        let take_over = Some(TakeOver { start: 30, end: 40 });
        assert_eq!(found("I 10 snapshot 9\nD 11\n", " 7 2 1", take_over), none);
        let take_over = Some(TakeOver { start: 22, end: 30 });
        assert_eq!(found("I 10 snapshot 9\nD 11\n", " 7 1 2", take_over), none);
    }

    #[test]
    fn each_violation_is_found() {
        let taken = "I 10 snapshot 9\nD 11\n";
        let cases = [
            (format!("{taken}I 12 read 9\nF 13 2\n"), " 7 2 2", "it is not whole"),
            (format!("{taken}I 12 read 9\nD 13 7 2 2\n"), " 7 2 2", "first 7 has 2, and not 1 to 1"),
            (format!("{taken}I 12 read 9\nD 13 7 1 0\n"), " 7 2 2", "second 7 has 0, and not 1 to 1"),
            ("I 1 snapshot 9\nD 5\nI 12 read 9\nD 13 7 0 1\n".into(), " 7 2 2", "was never [0, 1]"),
            ("I 1 snapshot 9\nD 5\nI 12 read 9\nD 13\n".into(), " 7 2 2", "it has changed"),
            (taken.into(), " 7 1 2", "first 7 has 1, and not 2 to 2"),
            (taken.into(), "", "first 7 has 0"),
            (format!("{taken}I 12 snapshot 8\nD 13\n"), " 7 2 2", "lost"),
            (String::new(), " 7 2 2", "nobody took it"),
        ];
        for (snapshots, end, expected) in cases {
            let found = found(&snapshots, end, None);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}

//! Counters that are incremented under locks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::files::{LockCall, LockedBytes, close, set_lock};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker, now};

/// Counters of a file, each with a lock on its bytes; with `flock` there is one.
const COUNTERS: u64 = 3;
/// Distance of two counters, bytes.
const DISTANCE: u64 = 64;
/// Length of a counter, bytes.
const LEN: u64 = 8;

fn name_of(call: usize) -> String {
    format!("counter{call}")
}

pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    for call in 0..LockCall::ALL.len() {
        let file = File::create(dir.join(name_of(call)))?;
        file.write_all_at(&vec![0; (COUNTERS * DISTANCE) as usize], 0)?;
        close(file)?;
    }
    Ok(())
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    for call in 0..LockCall::ALL.len() {
        let path = worker.path(name_of(call));
        for counter in 0..COUNTERS {
            worker.record("final", &[call as u64, counter], || read_counter(&File::open(&path)?, counter));
        }
    }
}

fn read_counter(file: &File, counter: u64) -> io::Result<u64> {
    let mut bytes = [0; LEN as usize];
    file.read_exact_at(&mut bytes, counter * DISTANCE)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Increments counters, in files that stay open: a process that closes one loses its locks on it.
pub(super) struct CounterProgram {
    files: Vec<File>,
}

impl CounterProgram {
    pub(super) fn open(dir: &Path) -> Self {
        let open = |call| File::options().read(true).write(true).open(dir.join(name_of(call)));
        let files = (0..LockCall::ALL.len()).map(|call| open(call).expect("a file that was made"));
        Self { files: files.collect() }
    }
}

impl HistoryProgram for CounterProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let call = worker.random.next_below(LockCall::ALL.len() as u64);
        let counter = worker.random.next_below(COUNTERS);
        let path = worker.path(name_of(call as usize));
        let file = &mut self.files[call as usize];
        let added =
            worker.record("add", &[call, counter], || add(file, LockCall::ALL[call as usize], counter));
        // What failed may have left a lock, and the file may refuse everything from now on.
        if added.is_none()
            && let Ok(opened) = File::options().read(true).write(true).open(path)
        {
            *file = opened;
        }
    }
}

/// Increments a counter. Returns when the lock was held for certain, from and to, and what the counter was.
fn add(file: &File, call: LockCall, counter: u64) -> io::Result<Vec<u64>> {
    let range = LockedBytes { start: counter * DISTANCE, len: LEN };
    set_lock(file, call, true, range)?;
    // Taken inside the lock, on both sides: two that overlap have certainly held it at the same time.
    let locked = now();
    // Read and written in two steps: only the lock keeps others from coming in between, which is what is tested.
    let value = read_counter(file, counter)?;
    file.write_all_at(&(value + 1).to_le_bytes(), counter * DISTANCE)?;
    let unlocking = now();
    set_lock(file, call, false, range)?;
    Ok(vec![locked, unlocking, value])
}

/// A counter, or its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CounterId {
    /// Its file: that of a way to lock.
    call: u64,
    number: u64,
}

/// Which lock protects a counter: with `flock` the same one all of the file.
fn lock_of(event: &HistoryEvent) -> CounterId {
    let call = event.argument(0);
    let is_flock = LockCall::ALL.get(call as usize) == Some(&LockCall::Flock);
    CounterId { call, number: if is_flock { 0 } else { event.argument(1) } }
}

/// An increment that succeeded.
#[derive(Debug, Clone, Copy)]
struct Increment<'a> {
    event: &'a HistoryEvent,
    locked: u64,
    unlocking: u64,
    value: u64,
}

impl<'a> Increment<'a> {
    fn from_event(event: &'a HistoryEvent) -> Option<Self> {
        let [locked, unlocking, value] = *event.results()? else { return None };
        Some(Self { event, locked, unlocking, value })
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    let mut holders: BTreeMap<CounterId, Vec<Increment<'_>>> = BTreeMap::new();
    let mut counters: BTreeMap<CounterId, Vec<Increment<'_>>> = BTreeMap::new();
    let mut unknown: BTreeMap<CounterId, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event.name == "add") {
        let counter = CounterId { call: event.argument(0), number: event.argument(1) };
        match (&event.outcome, Increment::from_event(event)) {
            (_, Some(increment)) => {
                holders.entry(lock_of(event)).or_default().push(increment);
                counters.entry(counter).or_default().push(increment);
            }
            (HistoryOutcome::Unknown(_), None) => *unknown.entry(counter).or_default() += 1,
            // Nobody asks for a lock without waiting, or for two at once.
            (_, None) => found.push(HistoryViolation(format!("a lock was refused: {event}"))),
        }
    }
    found.extend(holders.into_values().flat_map(check_exclusion));
    for event in events.iter().filter(|event| event.name == "final") {
        let Some(&[last]) = event.results() else {
            found.push(HistoryViolation(format!("a counter is not known: {event}")));
            continue;
        };
        let counter = CounterId { call: event.argument(0), number: event.argument(1) };
        let mut increments = counters.remove(&counter).unwrap_or_default();
        let perhaps = unknown.get(&counter).copied().unwrap_or(0);
        let lost = take_over.map_or(0, |take_over| count_lost(&mut increments, last, take_over));
        found.extend(check_counter(counter, increments, CounterEnd { last, perhaps, lost }));
    }
    found
}

/// No two held the lock at once.
fn check_exclusion(mut increments: Vec<Increment<'_>>) -> Option<HistoryViolation> {
    increments.sort_by_key(|increment| increment.locked);
    // In this order neighbours are enough: whoever overlaps a later one overlaps the next one, too.
    let overlapping = increments.windows(2).find(|pair| pair[0].unlocking > pair[1].locked)?;
    let [first, second] = overlapping else { return None };
    Some(HistoryViolation(format!("both had the lock: {} and {}", first.event, second.event)))
}

/// How a counter ended.
#[derive(Debug, Clone, Copy)]
struct CounterEnd {
    /// What it is.
    last: u64,
    /// Increments whose outcome is unknown.
    perhaps: u64,
    /// Increments that the server had taken along when it was lost.
    lost: u64,
}

/// The increments that a lost server has taken along: where, at the take-over, the counter fell back. Those before that are
/// left as if they had been less, so that all agree again.
fn count_lost(increments: &mut [Increment<'_>], last: u64, take_over: TakeOver) -> u64 {
    increments.sort_by_key(|increment| increment.locked);
    let next_values = increments.iter().skip(1).map(|increment| increment.value).chain([last]);
    let next_values: Vec<u64> = next_values.collect();
    for (at, next) in next_values.into_iter().enumerate() {
        let is_before = take_over.may_lose(increments[at].event);
        let is_after = increments.get(at + 1).is_none_or(|later| take_over.may_precede(later.event));
        let lost = (increments[at].value + 1).saturating_sub(next);
        if is_before && is_after && lost > 0 {
            increments[..=at].iter_mut().for_each(|one| one.value = one.value.wrapping_sub(lost));
            return lost;
        }
    }
    0
}

/// No increment was lost: each saw all earlier ones.
fn check_counter(
    counter: CounterId,
    mut increments: Vec<Increment<'_>>,
    end: CounterEnd,
) -> Vec<HistoryViolation> {
    let CounterEnd { last, perhaps, lost } = end;
    let mut found = Vec::new();
    increments.sort_by_key(|increment| increment.locked);
    for pair in increments.windows(2) {
        // Signed, since `count_lost` may have taken values below 0.
        if pair[0].value.cast_signed() >= pair[1].value.cast_signed() {
            let [first, second] = [pair[0].event, pair[1].event];
            found.push(HistoryViolation(format!("an increment was lost: {first}, then {second}")));
        }
    }
    let known = increments.len() as u64;
    // An increment whose outcome is unknown may have been carried out or not.
    if last + lost < known || last > known + perhaps {
        let what = format!("{counter:?} is {last}: {known} increments and perhaps {perhaps}");
        found.push(HistoryViolation(what));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn found(logs: &[&str], last: u64) -> Vec<String> {
        let last = format!("I 900 final 0 0\nD 901 {last}\n");
        let logs = logs.iter().copied().chain([last.as_str()]);
        let events: Vec<_> = logs.enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        check(&events, None).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn what_locks_do_is_accepted() {
        let none: [String; 0] = [];
        let first = "I 1 add 0 0\nD 9 2 4 0\n";
        assert_eq!(found(&[first, "I 1 add 0 0\nD 9 5 6 1\n"], 2), none);
        // Another counter has another lock, except with flock.
        assert_eq!(found(&[first, "I 1 add 0 1\nD 9 3 6 0\n"], 1), none);
        assert_eq!(found(&[first, "I 1 add 0 0\nU 9 5\n"], 2), none);
        assert_eq!(found(&[first, "I 1 add 0 0\nU 9 5\n"], 1), none);
    }

    #[test]
    fn each_violation_is_found() {
        let first = "I 1 add 0 0\nD 9 2 4 0\n";
        let cases: [(&str, u64, &str); 6] = [
            ("I 1 add 0 0\nD 9 3 6 1\n", 2, "both had the lock"),
            ("I 1 add 0 0\nD 9 5 6 0\n", 1, "an increment was lost"),
            ("I 1 add 0 0\nD 9 5 6 1\n", 1, "is 1: 2 increments"),
            ("I 1 add 0 0\nU 9 5\n", 3, "is 3: 1 increments and perhaps 1"),
            ("I 1 add 0 0\nF 9 35\n", 1, "a lock was refused"),
            ("I 1 add 2 0\nD 9 3 5 0\nI 1 add 2 1\nD 9 4 6 0\n", 1, "both had the lock"),
        ];
        for (second, last, expected) in cases {
            let found = found(&[first, second], last);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}

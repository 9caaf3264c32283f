//! One file that programs on all mounts write, cut off, extend and map, each under a lock on it: as `fsx` does it alone.
//!
//! Who has the lock reads the whole file, changes it, and reads it again. It finds what the one before has left, and then what
//! it has made of that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;

use super::event::{HistoryEvent, HistoryViolation};
use super::files::{LockCall, LockedBytes, close, hash_of, set_lock};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker, now};

const FILE: &str = "ranges";
/// Longest file, bytes.
const LEN_MAX: u64 = 96 << 10;
/// Longest piece that is written at once, bytes: less than a request has.
const PIECE_MAX: u64 = 20_000;
/// Bytes that are mapped at once: so they come back in one piece.
const PAGE: u64 = 4096;
/// All bytes of the file, also those that it does not have yet.
const ALL: LockedBytes = LockedBytes { start: 0, len: 0 };
/// For how long after its start an operation of a killed worker may be carried out, nanoseconds: until its session has ended,
/// and some more.
const LATE_MAX: u64 = 30_000_000_000;

pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    close(File::create(dir.join(FILE))?)
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    let path = worker.path(FILE);
    worker.record("end", &[], || Ok(hash_of(&std::fs::read(path)?)));
}

/// A change of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeChange {
    /// Bytes are written, perhaps behind the end.
    Write { offset: u64, len: u64 },
    /// The file gets this length.
    SetLen(u64),
    /// Bytes of one page are changed in a mapping.
    Map { offset: u64, len: u64 },
}

impl RangeChange {
    fn choose(worker: &mut HistoryWorker) -> Self {
        let offset = worker.random.next_below(LEN_MAX - PIECE_MAX);
        match worker.random.next_below(4) {
            0 => Self::SetLen(offset),
            1 => {
                let len = 1 + worker.random.next_below(PAGE - offset % PAGE);
                Self::Map { offset, len }
            }
            _ => Self::Write { offset, len: 1 + worker.random.next_below(PIECE_MAX) },
        }
    }

    /// What the file has afterwards.
    fn apply(self, content: &mut Vec<u8>, number: u64) {
        let (offset, len) = match self {
            Self::SetLen(len) => return content.resize(len as usize, 0),
            Self::Write { offset, len } => {
                content.resize(content.len().max((offset + len) as usize), 0);
                (offset, len)
            }
            Self::Map { offset, len } => (offset, len),
        };
        // Of a mapping, what lies behind the end of the file is not written back.
        let end = ((offset + len) as usize).min(content.len());
        let start = (offset as usize).min(end);
        content[start..end].copy_from_slice(&piece_of(number, len)[..end - start]);
    }

    fn carry_out(self, file: &File, number: u64) -> io::Result<()> {
        match self {
            Self::Write { offset, len } => file.write_all_at(&piece_of(number, len), offset),
            Self::SetLen(len) => file.set_len(len),
            Self::Map { offset, len } => {
                // The kernel kills who touches a page that the file does not reach.
                let end = file.metadata()?.len().min(offset + len);
                let len = end.saturating_sub(offset);
                if len > 0 { write_mapped(file, offset, &piece_of(number, len)) } else { Ok(()) }
            }
        }
    }
}

/// Bytes that depend on a number.
fn piece_of(number: u64, len: u64) -> Vec<u8> {
    let words =
        (0..len.div_ceil(8)).flat_map(|word| (number ^ word << 48).rotate_left(word as u32).to_le_bytes());
    words.take(len as usize).collect()
}

/// Writes bytes of one page through a mapping, and waits until the filesystem has them.
fn write_mapped(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let page = offset / PAGE * PAGE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of a page that the file reaches.
    let mapped = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE as usize,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            page.cast_signed(),
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the bytes lie within the page, which nobody else of this process knows.
    let synced = unsafe {
        ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            mapped.cast::<u8>().add((offset - page) as usize),
            bytes.len(),
        );
        libc::msync(mapped, PAGE as usize, libc::MS_SYNC)
    };
    let result = if synced == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: it was mapped above, and is not used any more.
    let unmapped = unsafe { libc::munmap(mapped, PAGE as usize) };
    if unmapped == 0 { result } else { result.and(Err(io::Error::last_os_error())) }
}

/// Changes the file under a lock.
pub(super) struct RangesProgram;

impl HistoryProgram for RangesProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let call = LockCall::ALL[worker.random.next_below(LockCall::ALL.len() as u64) as usize];
        // Locks of `flock` and of `fcntl` do not know of each other.
        let call = if call == LockCall::Flock { LockCall::Ofd } else { call };
        let change = RangeChange::choose(worker);
        let number = worker.choose_number();
        let is_synced = worker.random.is_one_in(8);
        let path = worker.path(FILE);
        worker.record("change", &[number, u64::from(is_synced)], || {
            let file = File::options().read(true).write(true).open(path)?;
            set_lock(&file, call, true, ALL)?;
            let locked = now();
            let mut content = read_all(&file)?;
            let before = hash_of(&content);
            change.carry_out(&file, number)?;
            change.apply(&mut content, number);
            let after = hash_of(&read_all(&file)?);
            if is_synced {
                file.sync_all()?;
            }
            set_lock(&file, call, false, ALL)?;
            close(file)?;
            Ok(vec![locked, before, after, hash_of(&content)])
        });
    }
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut content = vec![0; LEN_MAX as usize + 1];
    let mut len = 0;
    loop {
        match file.read_at(&mut content[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    content.truncate(len);
    Ok(content)
}

/// A change that succeeded.
#[derive(Clone, Copy)]
struct LockedChange<'a> {
    event: &'a HistoryEvent,
    locked: u64,
    before: u64,
    after: u64,
    expected: u64,
}

impl<'a> LockedChange<'a> {
    fn from_event(event: &'a HistoryEvent) -> Option<Self> {
        let [locked, before, after, expected] = *event.results()? else { return None };
        Some(Self { event, locked, before, after, expected })
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let Some((end, &[last])) =
        events.iter().filter(|event| event.name == "end").find_map(|event| Some((event, event.results()?)))
    else {
        return vec![HistoryViolation("the file at the end is not known".into())];
    };
    // The observation at the end has one result, and a change has four.
    let mut changes: Vec<_> = events.iter().filter_map(LockedChange::from_event).collect();
    changes.sort_by_key(|change| change.locked);
    // What the lost server answered at the beginning may be missing when the next one carries out the rest.
    let is_divided = |event: &HistoryEvent| {
        take_over.is_some_and(|take_over| take_over.may_lose(event) && take_over.may_precede(event))
    };
    let mut found: Vec<HistoryViolation> = changes
        .iter()
        .filter(|change| change.after != change.expected && !is_divided(change.event))
        .map(|change| HistoryViolation(format!("it did not read what it wrote: {}", change.event)))
        .collect();
    changes.push(LockedChange { event: end, locked: end.start, before: last, after: last, expected: last });
    // What a lost server may bring back: the contents since the last one that was synced.
    let mut earlier = vec![hash_of(&[])];
    for (at, next) in changes.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &changes[before]);
        let left = before.map_or(hash_of(&[]), |before| before.after);
        let is_lost = take_over.is_some_and(|take_over| {
            before.is_some_and(|before| take_over.may_lose(before.event))
                && take_over.may_precede(next.event)
                && earlier.contains(&next.before)
        });
        let since = before.map_or(0, |before| before.locked);
        if next.before != left && !is_lost && !may_be_changed(events, since, next.locked) {
            let by = before.map_or_else(|| "nobody".to_owned(), |before| before.event.to_string());
            found.push(HistoryViolation(format!("{} did not find what was left by {by}", next.event)));
        }
        if next.event.argument(1) == 1 {
            earlier.clear();
        }
        earlier.push(next.after);
    }
    found
}

/// Whether an operation with an unknown outcome may have been carried out between two times.
fn may_be_changed(events: &[HistoryEvent], from: u64, to: u64) -> bool {
    events.iter().filter(|event| event.name == "change" && event.is_unknown()).any(|event| {
        // Its worker goes on when it has failed.
        let later = events.iter().filter(|other| other.client == event.client && other.start > event.start);
        let over = later.map(|other| other.start).min().unwrap_or(event.start + LATE_MAX);
        event.start < to && over > from
    })
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn found(changes: &str, end: u64, take_over: Option<TakeOver>) -> Vec<String> {
        let events = [parse_log(0, changes), parse_log(1, &format!("I 90 end\nD 91 {end}\n"))].concat();
        check(&events, take_over).into_iter().map(|violation| violation.0).collect()
    }

    fn changed(start: u64, is_synced: u64, hashes: [u64; 3]) -> String {
        let [before, after, expected] = hashes;
        let locked = start + 1;
        format!("I {start} change 1 {is_synced}\nD {} {locked} {before} {after} {expected}\n", start + 2)
    }

    #[test]
    fn what_locks_protect_is_accepted() {
        let none: [String; 0] = [];
        let empty = hash_of(&[]);
        let both = changed(1, 0, [empty, 5, 5]) + &changed(10, 0, [5, 6, 6]);
        assert_eq!(found(&both, 6, None), none);
        // Of what failed, nobody knows whether it was done.
        let failed = changed(1, 0, [empty, 5, 5]) + "I 5 change 1 0\nU 6 5\n" + &changed(10, 0, [7, 6, 6]);
        assert_eq!(found(&failed, 6, None), none);
        let take_over = Some(TakeOver { start: 20, end: 30 });
        assert_eq!(found(&both, 5, take_over), none);
        // It read the file at the lost server, and again at the next one.
        let take_over = Some(TakeOver { start: 11, end: 30 });
        assert_eq!(found(&(changed(1, 0, [empty, 5, 5]) + &changed(10, 0, [5, 7, 6])), 7, take_over), none);
    }

    #[test]
    fn each_violation_is_found() {
        let empty = hash_of(&[]);
        let first = changed(1, 0, [empty, 5, 5]);
        let take_over = Some(TakeOver { start: 20, end: 30 });
        let synced = changed(1, 1, [empty, 5, 5]) + &changed(10, 1, [5, 6, 6]);
        for (changes, end, take_over, expected) in [
            (changed(1, 0, [empty, 5, 6]), 5, None, "did not read what it wrote"),
            (first.clone() + &changed(10, 0, [4, 6, 6]), 6, None, "did not find what was left"),
            (first.clone(), empty, None, "did not find what was left"),
            (synced, 5, take_over, "did not find what was left"),
            (String::new(), 5, None, "left by nobody"),
        ] {
            let found = found(&changes, end, take_over);
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_change_is_what_the_file_has_afterwards() {
        let file = tempfile::tempfile().expect("a file");
        let mut content = Vec::new();
        for (number, change) in [
            RangeChange::Write { offset: 3000, len: 9000 },
            RangeChange::Map { offset: 5000, len: 3000 },
            RangeChange::SetLen(6000),
            RangeChange::Map { offset: 5990, len: 100 },
            RangeChange::SetLen(20_000),
            RangeChange::Map { offset: 30_000, len: 5 },
        ]
        .into_iter()
        .enumerate()
        {
            change.carry_out(&file, number as u64 + 1).expect("a change");
            change.apply(&mut content, number as u64 + 1);
            assert!(read_all(&file).expect("the content") == content, "{change:?}");
        }
    }
}

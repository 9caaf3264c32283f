//! A suite of the requirements on every engine of the shared log.
//!
//! Each function panics with the requirement that was violated. The engine must have no logs at the start.

mod races;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use vellum_shared_log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, SharedLog, SharedLogError,
};

/// How far ages may be from the truth: services count whole seconds.
const AGE_RESOLUTION: Duration = Duration::from_secs(2);
/// Timeout of what must happen: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine under test.
pub trait SharedLogFixture: Sync {
    /// Opens the log with a name of letters, as another process would.
    fn open_log(&self, name: &str) -> Arc<dyn SharedLog>;

    /// Removes everything that the engine keeps, as a mistake or a disaster would.
    fn remove_everything(&self);
}

/// Runs the whole suite.
///
/// # Panics
/// Panics if the engine violates a requirement.
pub fn check_shared_log(fixture: &dyn SharedLogFixture) {
    check_life(fixture);
    check_positions(fixture);
    check_reads(fixture);
    check_claims(fixture);
    check_fencing(fixture);
    check_lost_answers(fixture);
    check_discards(fixture);
    check_large_appends(fixture);
    check_ages(fixture);
    check_waits(fixture);
    races::check_racing_claims(fixture);
    races::check_racing_appends(fixture);
    races::check_readers(fixture);
    steps::check_random_steps(fixture);
    // Last, since it removes the logs of all other checks.
    check_loss(fixture);
}

/// A server whose number is part of everything that it says of itself.
#[must_use]
pub fn make_server(number: u8) -> ServerRecord {
    ServerRecord {
        host: format!("host-{number}"),
        address: number.is_multiple_of(2).then(|| format!("10.0.0.{number}:7788")),
        instance: [number; 16],
    }
}

/// Creates and claims a log that nobody has claimed.
fn claim_new_log(fixture: &dyn SharedLogFixture, name: &str) -> (Arc<dyn SharedLog>, LogClaim) {
    let log = fixture.open_log(name);
    let incarnation = log.create().expect("a new log");
    let claim = log.claim(incarnation, &make_server(1), None).expect("the first claim");
    (log, claim)
}

/// Everything that the log holds from a position on.
fn read_all(log: &dyn SharedLog, from: LogPosition) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let read = log.read(LogPosition(from.0 + bytes.len() as u64), 1 << 20).expect("a read");
        if read.is_empty() {
            return bytes;
        }
        bytes.extend(read);
    }
}

fn append(log: &dyn SharedLog, claim: &LogClaim, at: u64, bytes: &[u8]) -> u64 {
    log.append(claim.epoch, LogPosition(at), bytes).expect("an append at the end").0
}

#[track_caller]
fn expect_fenced<T>(done: Result<T, SharedLogError>, epoch: LogEpoch, current: LogEpoch) {
    match done {
        Err(SharedLogError::Fenced { epoch: found, current: now }) => {
            assert_eq!((found, now), (epoch, current));
        }
        Err(error) => panic!("another error than that of a claim by another server: {error}"),
        Ok(_) => panic!("a server that was replaced succeeded"),
    }
}

#[track_caller]
fn expect_moved<T>(done: Result<T, SharedLogError>, at: u64, end: u64) {
    match done {
        Err(SharedLogError::Moved { at: found, end: now }) => assert_eq!((found.0, now.0), (at, end)),
        Err(error) => panic!("another error than that of a wrong position: {error}"),
        Ok(_) => panic!("a wrong position was taken"),
    }
}

#[track_caller]
fn expect_discarded<T>(done: Result<T, SharedLogError>, from: u64, start: u64) {
    match done {
        Err(SharedLogError::Discarded { from: found, start: now }) => {
            assert_eq!((found.0, now.0), (from, start));
        }
        Err(error) => panic!("another error than that of what was discarded: {error}"),
        Ok(_) => panic!("what was discarded was read"),
    }
}

#[track_caller]
fn expect_lost<T>(done: Result<T, SharedLogError>, expected: LogIncarnation, found: Option<LogIncarnation>) {
    match done {
        Err(SharedLogError::Lost { expected: missed, found: there }) => {
            assert_eq!((missed, there), (expected, found));
        }
        Err(error) => panic!("another error than that of a lost log: {error}"),
        Ok(_) => panic!("a log that is gone was used"),
    }
}

/// From its creation to its removal.
fn check_life(fixture: &dyn SharedLogFixture) {
    let log = fixture.open_log("life");
    assert!(matches!(log.renew(LogEpoch(1)), Err(SharedLogError::NoLog { .. })), "there is no log yet");
    assert!(matches!(log.read(LogPosition(0), 9), Err(SharedLogError::NoLog { .. })), "nothing to read yet");
    assert_eq!(log.current_server(None, Duration::ZERO).expect("no server"), None, "without a log");
    let incarnation = log.create().expect("a new log");
    assert_eq!(log.create().expect("the same log"), incarnation, "it is created once");
    let other = fixture.open_log("life");
    assert_eq!(other.create().expect("the same log"), incarnation, "also by another process");
    assert_ne!(fixture.open_log("other").create().expect("another log"), incarnation, "names are apart");
    assert_eq!(log.current_server(None, Duration::ZERO).expect("no server"), None, "nobody has claimed it");
    assert_eq!(log.read(LogPosition(0), 9).expect("an empty log"), b"", "it begins empty");
    let server = make_server(2);
    let claim = log.claim(incarnation, &server, None).expect("the first claim");
    let first = LogClaim { epoch: claim.epoch, incarnation, start: LogPosition(0), end: LogPosition(0) };
    assert_eq!(claim, first);
    assert!(claim.epoch > LogEpoch(0), "epochs begin above what stands for none");
    let sighting = other.current_server(None, Duration::ZERO).expect("a server").expect("that claimed it");
    assert_eq!(
        (&sighting.server, sighting.epoch, sighting.released),
        (&server, claim.epoch, false),
        "others see the server as it describes itself"
    );
    append(&*log, &claim, 0, b"content");
    log.renew(claim.epoch).expect("a renewal");
    log.release(claim.epoch).expect("a release");
    let sighting = other.current_server(None, Duration::ZERO).expect("a server").expect("the last one");
    assert!(sighting.released, "others see that it has given the log up");
    let claim = other.claim(incarnation, &make_server(3), Some(claim.epoch)).expect("the next claim");
    assert_eq!(claim.end, LogPosition(7), "what was appended stays");
    other.remove(claim.epoch).expect("a removal");
    expect_lost(other.read(LogPosition(0), 9), incarnation, None);
    let next = other.create().expect("a new log");
    assert_ne!(next, incarnation, "each log has an incarnation of its own");
    assert_eq!(other.read(LogPosition(0), 9).expect("an empty log"), b"", "nothing of the old one is left");
    // This one still expects the log that was removed, and must not take the new one for it.
    expect_lost(log.renew(claim.epoch), incarnation, Some(next));
}

/// Appends are taken at the end only.
fn check_positions(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "positions");
    assert_eq!(append(&*log, &claim, 0, b"first"), 5);
    assert_eq!(append(&*log, &claim, 5, b"second"), 11);
    assert_eq!(append(&*log, &claim, 11, b""), 11, "nothing can be appended");
    for wrong in [0, 4, 5, 10, 12, 1 << 40] {
        expect_moved(log.append(claim.epoch, LogPosition(wrong), b"x"), wrong, 11);
        expect_moved(log.append(claim.epoch, LogPosition(wrong), b""), wrong, 11);
    }
    // One that has not appended does not know the end.
    let other = fixture.open_log("positions");
    expect_moved(other.append(claim.epoch, LogPosition(5), b"x"), 5, 11);
    assert_eq!(append(&*other, &claim, 11, b"third"), 16, "the epoch counts, not the process");
    expect_moved(log.append(claim.epoch, LogPosition(11), b"x"), 11, 16);
    assert_eq!(append(&*log, &claim, 16, b"!"), 17);
    assert_eq!(read_all(&*other, LogPosition(0)), b"firstsecondthird!");
    log.wait_until_durable(LogPosition(17)).expect("a disk that is not full");
}

/// Whole appends, as many as fit.
fn check_reads(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "reads");
    for (at, bytes) in [(0, &b"aaa"[..]), (3, b"bb"), (5, b"cccc"), (9, b"d")] {
        append(&*log, &claim, at, bytes);
    }
    let reader = fixture.open_log("reads");
    let read = |from, max| reader.read(LogPosition(from), max).expect("a read");
    let cases = [
        (0, 0, &b"aaa"[..]),
        (0, 4, b"aaa"),
        (0, 5, b"aaabb"),
        (0, 8, b"aaabb"),
        (0, 9, b"aaabbcccc"),
        (0, 99, b"aaabbccccd"),
        (3, 2, b"bb"),
        (5, 1, b"cccc"),
        (5, 5, b"ccccd"),
        (1, 0, b"aa"),
        (1, 4, b"aabb"),
        (4, 3, b"b"),
        (4, 5, b"bcccc"),
        (8, 9, b"cd"),
        (9, 9, b"d"),
        (10, 9, b""),
    ];
    for (from, max, expected) in cases {
        assert_eq!(read(from, max), expected, "{max} bytes from {from} on");
    }
    expect_moved(reader.read(LogPosition(11), 9), 11, 10);
    expect_moved(reader.read(LogPosition(1 << 50), 9), 1 << 50, 10);
}

/// A claim is based on what was seen.
fn check_claims(fixture: &dyn SharedLogFixture) {
    let (log, first) = claim_new_log(fixture, "claims");
    append(&*log, &first, 0, b"one");
    let incarnation = first.incarnation;
    let other = fixture.open_log("claims");
    let next = LogEpoch(first.epoch.0 + 1);
    expect_fenced(other.claim(incarnation, &make_server(2), None), LogEpoch(0), first.epoch);
    expect_fenced(other.claim(incarnation, &make_server(2), Some(next)), next, first.epoch);
    let repeated = log.claim(incarnation, &make_server(1), None).expect("the claim whose answer was lost");
    assert_eq!(repeated.epoch, first.epoch, "the same claim is carried out once");
    assert_eq!(append(&*log, &first, 3, b"two"), 6, "and does not end what it has begun");
    let second = other.claim(incarnation, &make_server(2), Some(first.epoch)).expect("a claim");
    assert_eq!((second.epoch, second.start.0, second.end.0), (next, 0, 6), "epochs grow, the log stays");
    // The first server may come back, with its old instance.
    expect_fenced(log.claim(incarnation, &make_server(1), None), LogEpoch(0), second.epoch);
    let third = log.claim(incarnation, &make_server(1), Some(second.epoch)).expect("a claim");
    assert!(third.epoch > second.epoch);
    log.release(third.epoch).expect("a release");
    let fourth = log.claim(incarnation, &make_server(1), Some(third.epoch)).expect("a claim after a release");
    assert!(fourth.epoch > third.epoch, "what was given up is claimed anew");
    let sighting = other.current_server(None, Duration::ZERO).expect("a server").expect("the last one");
    assert!(!sighting.released);
    let foreign = LogIncarnation([7; 16]);
    expect_lost(other.claim(foreign, &make_server(2), Some(fourth.epoch)), foreign, Some(incarnation));
}

/// A server that was replaced changes nothing.
fn check_fencing(fixture: &dyn SharedLogFixture) {
    let (log, first) = claim_new_log(fixture, "fencing");
    append(&*log, &first, 0, b"old");
    let other = fixture.open_log("fencing");
    let second =
        other.claim(first.incarnation, &make_server(2), Some(first.epoch)).expect("the second claim");
    // At wrong positions, too: that another server has the log matters more than where it ends.
    for at in [3, 0, 99] {
        expect_fenced(log.append(first.epoch, LogPosition(at), b"late"), first.epoch, second.epoch);
    }
    expect_fenced(log.renew(first.epoch), first.epoch, second.epoch);
    expect_fenced(log.discard_before(first.epoch, LogPosition(3)), first.epoch, second.epoch);
    expect_fenced(log.release(first.epoch), first.epoch, second.epoch);
    expect_fenced(log.remove(first.epoch), first.epoch, second.epoch);
    append(&*other, &second, 3, b"new");
    // At an end that it had reached, and at the one that it does not know.
    for at in [3, 6] {
        expect_fenced(log.append(first.epoch, LogPosition(at), b"late"), first.epoch, second.epoch);
    }
    let future = LogEpoch(second.epoch.0 + 1);
    expect_fenced(log.append(future, LogPosition(6), b"x"), future, second.epoch);
    for log in [&log, &other] {
        assert_eq!(read_all(&**log, LogPosition(0)), b"oldnew");
    }
    let sighting = log.current_server(None, Duration::ZERO).expect("a server").expect("the second");
    assert_eq!((sighting.epoch, sighting.released), (second.epoch, false));
}

/// An append that was carried out without an answer is found.
fn check_lost_answers(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "answers");
    append(&*log, &claim, 0, b"before");
    // Carried out by another connection: this one knows as much as if its own answer had been lost.
    append(&*fixture.open_log("answers"), &claim, 6, b"unknown");
    expect_moved(log.append(claim.epoch, LogPosition(6), b"unknown"), 6, 13);
    assert_eq!(log.read(LogPosition(6), 99).expect("a read"), b"unknown", "its own bytes are there");
    assert_eq!(append(&*log, &claim, 13, b"after"), 18);
    // The next server does not know of it either.
    let other = fixture.open_log("answers");
    append(&*fixture.open_log("answers"), &claim, 18, b"?");
    let next = other.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).expect("a claim");
    assert_eq!(next.end, LogPosition(19));
    assert_eq!(read_all(&*other, LogPosition(0)), b"beforeunknownafter?");
}

/// What is discarded is whole appends before the position, and no more.
fn check_discards(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "discards");
    for (at, bytes) in [(0, &b"aaa"[..]), (3, b"bb"), (5, b"cccc"), (9, b"d")] {
        append(&*log, &claim, at, bytes);
    }
    let reader = fixture.open_log("discards");
    let discard = |before| log.discard_before(claim.epoch, LogPosition(before)).expect("a discard");
    discard(0);
    discard(2);
    assert_eq!(read_all(&*reader, LogPosition(0)), b"aaabbccccd", "the append that has the position stays");
    discard(4);
    expect_discarded(reader.read(LogPosition(0), 9), 0, 3);
    expect_discarded(reader.read(LogPosition(2), 9), 2, 3);
    assert_eq!(read_all(&*reader, LogPosition(3)), b"bbccccd");
    discard(1);
    assert_eq!(read_all(&*reader, LogPosition(3)), b"bbccccd", "nothing comes back, and nothing more goes");
    expect_moved(log.discard_before(claim.epoch, LogPosition(11)), 11, 10);
    let other = fixture.open_log("discards");
    let next = other.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).expect("a claim");
    assert_eq!((next.start.0, next.end.0), (3, 10), "the next server sees where it begins");
    append(&*other, &next, 10, b"ee");
    other.discard_before(next.epoch, LogPosition(9)).expect("a discard of what another server appended");
    assert_eq!(read_all(&*reader, LogPosition(9)), b"dee");
    other.discard_before(next.epoch, LogPosition(12)).expect("a discard of everything");
    expect_discarded(reader.read(LogPosition(11), 9), 11, 12);
    assert_eq!(reader.read(LogPosition(12), 9).expect("an empty log"), b"");
    assert_eq!(append(&*other, &next, 12, b"f"), 13, "it goes on where it was");
    let last = reader.claim(claim.incarnation, &make_server(3), Some(next.epoch)).expect("a claim");
    assert_eq!((last.start.0, last.end.0), (12, 13));
    reader.discard_before(last.epoch, LogPosition(13)).expect("a discard of everything");
    let empty = other.claim(claim.incarnation, &make_server(4), Some(last.epoch)).expect("a claim");
    assert_eq!((empty.start.0, empty.end.0), (13, 13), "an empty log keeps its position");
    assert_eq!(read_all(&*other, LogPosition(13)), b"");
}

/// Appends of many sizes are whole, also where an engine splits them.
fn check_large_appends(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "large");
    // Bytes that depend on their place, so that parts in a wrong order show.
    let make = |len: usize, seed: u64| -> Vec<u8> {
        (0..len as u64).map(|place| (place.wrapping_mul(seed) >> 7) as u8).collect()
    };
    // Around a mebibyte, above which etcd splits appends, and up to the most that is allowed.
    let sizes = [1 << 20, (1 << 20) + 1, 3, 8 << 20, 1, APPEND_MAX];
    let mut starts = Vec::new();
    let mut at = 0;
    for (number, size) in sizes.into_iter().enumerate() {
        starts.push(at);
        at = append(&*log, &claim, at, &make(size, 3 + number as u64));
    }
    let reader = fixture.open_log("large");
    for (number, size) in sizes.into_iter().enumerate() {
        // With no room at all, exactly one append is returned.
        let read = reader.read(LogPosition(starts[number]), 0).expect("a read");
        assert!(read == make(size, 3 + number as u64), "the append of {size} bytes");
    }
    let too_long = vec![0; APPEND_MAX + 1];
    let refused = log.append(claim.epoch, LogPosition(at), &too_long);
    assert!(matches!(refused, Err(SharedLogError::Oversized { .. })), "{refused:?}");
    log.discard_before(claim.epoch, LogPosition(starts[4])).expect("a discard");
    expect_discarded(reader.read(LogPosition(starts[3]), 0), starts[3], starts[4]);
    let other = fixture.open_log("large");
    let next = other.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).expect("a claim");
    // An old server's parts must not get into what the new one appends at the same place.
    expect_fenced(log.append(claim.epoch, LogPosition(at), &make(2 << 20, 5)), claim.epoch, next.epoch);
    append(&*other, &next, at, &make(2 << 20, 9));
    assert!(reader.read(LogPosition(at), 0).expect("a read") == make(2 << 20, 9));
}

/// The age of a claim is that of its last renewal.
fn check_ages(fixture: &dyn SharedLogFixture) {
    let begun = Instant::now();
    let (log, claim) = claim_new_log(fixture, "ages");
    let observer = fixture.open_log("ages");
    let read_age = || {
        let found = observer.current_server(None, Duration::ZERO).expect("a server");
        found.expect("that claimed it").age
    };
    // What is measured, since a claim's age is the only thing that passes by itself.
    while read_age() < 2 * AGE_RESOLUTION {
        assert!(begun.elapsed() < PATIENCE, "a claim becomes no older");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(read_age() <= begun.elapsed() + AGE_RESOLUTION, "a claim is not older than it is");
    for round in 0..2 {
        let renewed = Instant::now();
        let epoch = match round {
            0 => {
                log.renew(claim.epoch).expect("a renewal");
                claim.epoch
            }
            _ => {
                let next = log.claim(claim.incarnation, &make_server(2), Some(claim.epoch));
                next.expect("another claim").epoch
            }
        };
        let age = read_age();
        assert!(age <= renewed.elapsed() + AGE_RESOLUTION, "epoch {} is {age:?} old", epoch.0);
    }
}

/// Who waits for another server learns of it.
fn check_waits(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "waits");
    let observer = fixture.open_log("waits");
    let short = Duration::from_millis(300);
    let begun = Instant::now();
    let found = observer.current_server(Some(claim.epoch), short).expect("a server").expect("the same");
    assert!(found.epoch == claim.epoch && begun.elapsed() >= short, "it waits for another one");
    let found = observer.current_server(Some(LogEpoch(0)), PATIENCE).expect("a server").expect("the first");
    assert_eq!(found.epoch, claim.epoch, "another one than is known is there already");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| observer.current_server(Some(claim.epoch), PATIENCE));
        // It may come before the wait has begun: then it is found at once.
        let next = log.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).expect("a claim");
        let found = waiter.join().expect("no panic").expect("a server").expect("the second");
        assert_eq!((found.epoch, found.server), (next.epoch, make_server(2)));
        let known = Some(next.epoch);
        let observer = &observer;
        let waiter = scope.spawn(move || observer.current_server(known, PATIENCE));
        log.release(next.epoch).expect("a release");
        let found = waiter.join().expect("no panic").expect("a server").expect("the second");
        assert!(found.released, "the next one need not wait for its term to end");
    });
    assert!(begun.elapsed() < PATIENCE, "they learned of it at once");
}

/// A log that is gone is never taken for an empty one.
fn check_loss(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "loss");
    append(&*log, &claim, 0, b"lost");
    let reader = fixture.open_log("loss");
    assert_eq!(read_all(&*reader, LogPosition(0)), b"lost");
    // Opened before the loss and not used yet: all that it will know of the log is what its caller expects.
    let late = fixture.open_log("loss");
    fixture.remove_everything();
    let incarnation = claim.incarnation;
    let expect_all_lost = |found: Option<LogIncarnation>| {
        expect_lost(log.append(claim.epoch, LogPosition(4), b"x"), incarnation, found);
        expect_lost(log.renew(claim.epoch), incarnation, found);
        expect_lost(log.discard_before(claim.epoch, LogPosition(4)), incarnation, found);
        expect_lost(log.release(claim.epoch), incarnation, found);
        expect_lost(log.remove(claim.epoch), incarnation, found);
        expect_lost(reader.read(LogPosition(0), 9), incarnation, found);
        // Also at the end, where an answer without bytes would say that the log is there.
        expect_lost(reader.read(LogPosition(4), 9), incarnation, found);
        expect_lost(reader.current_server(None, Duration::ZERO), incarnation, found);
        expect_lost(reader.claim(incarnation, &make_server(2), Some(claim.epoch)), incarnation, found);
    };
    expect_all_lost(None);
    expect_lost(late.claim(incarnation, &make_server(2), Some(claim.epoch)), incarnation, None);
    let next = fixture.open_log("loss").create().expect("a new log");
    assert_ne!(next, incarnation);
    expect_all_lost(Some(next));
    // The living server writes everything anew.
    assert_eq!(log.create().expect("the new log"), next);
    let claim = log.claim(next, &make_server(1), None).expect("a claim of the new log");
    assert_eq!(append(&*log, &claim, claim.end.0, b"again"), 5);
    assert_eq!(read_all(&*fixture.open_log("loss"), LogPosition(0)), b"again");
}

//! What several servers and readers do at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vellum_shared_log::{LogEpoch, LogPosition, SharedLog, SharedLogError};

use super::{SharedLogFixture, append, claim_new_log, make_server, read_all};

/// Servers that claim at once.
const RACERS: u8 = 4;
/// Claims that are raced for.
const ROUNDS: u64 = 5;
/// Appends that readers follow.
const APPENDS: u64 = 100;

/// Of several that saw the same server, one gets the next epoch.
pub(super) fn check_racing_claims(fixture: &dyn SharedLogFixture) {
    let (log, first) = claim_new_log(fixture, "racing");
    let logs: Vec<Arc<dyn SharedLog>> = (0..RACERS).map(|_| fixture.open_log("racing")).collect();
    let mut current = first;
    for round in 0..ROUNDS {
        // Each claim has another end to find.
        append(&*log, &current, current.end.0, &[round as u8; 3]);
        let results: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = logs
                .iter()
                .zip(10..)
                .map(|(log, number)| {
                    let claim =
                        move || log.claim(first.incarnation, &make_server(number), Some(current.epoch));
                    scope.spawn(claim)
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().expect("no panic")).collect()
        });
        let mut winners = Vec::new();
        for (number, result) in results.into_iter().enumerate() {
            match result {
                Ok(claim) => winners.push((number, claim)),
                Err(SharedLogError::Fenced { epoch, current: now }) => {
                    assert_eq!((epoch, now.0), (current.epoch, current.epoch.0 + 1));
                }
                Err(error) => panic!("a claim that lost the race failed with something else: {error}"),
            }
        }
        let [(winner, claim)] = winners[..] else { panic!("{} servers have the log", winners.len()) };
        assert_eq!((claim.epoch.0, claim.end.0), (current.epoch.0 + 1, 3 * (round + 1)));
        let sighting = log.current_server(None, std::time::Duration::ZERO).expect("a server");
        assert_eq!(sighting.expect("the winner").server, make_server(10 + winner as u8));
        current = claim;
    }
    let expected: Vec<u8> = (0..ROUNDS).flat_map(|round| [round as u8; 3]).collect();
    assert_eq!(read_all(&*log, LogPosition(0)), expected);
}

/// A server appends as fast as it can while others take the log from it: what was acknowledged is in the log, and
/// nothing comes into it once the claim has returned.
pub(super) fn check_racing_appends(fixture: &dyn SharedLogFixture) {
    let (_, mut claim) = claim_new_log(fixture, "appends");
    for round in 0..ROUNDS {
        let old = fixture.open_log("appends");
        let new = fixture.open_log("appends");
        let acknowledged = AtomicU64::new(claim.end.0);
        let next = std::thread::scope(|scope| {
            let writer = scope.spawn(|| append_until_fenced(&*old, claim.epoch, claim.end, &acknowledged));
            // The claim comes in the middle of the appends.
            // A writer that has failed would be waited for without end.
            while acknowledged.load(Ordering::SeqCst) < claim.end.0 + 20 && !writer.is_finished() {
                std::thread::yield_now();
            }
            let next = new.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).expect("a claim");
            // Read while the old server may still be sending appends: what comes from here on must not count.
            let content = read_all(&*new, LogPosition(0));
            assert_eq!(content.len() as u64, next.end.0, "the claim knows the end");
            let successor = writer.join().expect("no panic");
            assert_eq!(successor, next.epoch, "the old server learns who follows it");
            assert!(acknowledged.load(Ordering::SeqCst) <= next.end.0, "an append succeeded too late");
            assert!(read_all(&*new, LogPosition(0)) == content, "an append came too late, and counts");
            next
        });
        // Each epoch appends bytes of its own, so that one under another epoch shows.
        let content = read_all(&*old, LogPosition(claim.end.0));
        assert!(content.iter().all(|byte| *byte == claim.epoch.0 as u8), "round {round}");
        claim = next;
    }
}

/// Appends under an epoch until another one is claimed, which is returned.
fn append_until_fenced(
    log: &dyn SharedLog,
    epoch: LogEpoch,
    mut at: LogPosition,
    acknowledged: &AtomicU64,
) -> LogEpoch {
    loop {
        match log.append(epoch, at, &[epoch.0 as u8; 2]) {
            Ok(end) => {
                at = end;
                acknowledged.store(at.0, Ordering::SeqCst);
            }
            Err(SharedLogError::Fenced { current, .. }) => return current,
            Err(error) => panic!("an append failed: {error}"),
        }
    }
}

/// Readers see a growing log: whole appends in their order, and none twice, whatever is discarded behind them.
pub(super) fn check_readers(fixture: &dyn SharedLogFixture) {
    let (log, claim) = claim_new_log(fixture, "readers");
    let is_done = AtomicBool::new(false);
    let slowest: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for progress in &slowest {
            let reader = fixture.open_log("readers");
            let is_done = &is_done;
            scope.spawn(move || follow_log(&*reader, progress, is_done));
        }
        for number in 0..APPENDS {
            append(&*log, &claim, number * 8, &number.to_le_bytes());
            if number % 10 == 9 {
                // Only what all have read: a reader that is before the beginning would be refused.
                let read = slowest.iter().map(|progress| progress.load(Ordering::SeqCst)).min();
                log.discard_before(claim.epoch, LogPosition(read.unwrap_or(0))).expect("a discard");
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    for progress in slowest {
        assert_eq!(progress.into_inner(), APPENDS * 8, "a reader has read everything");
    }
}

fn follow_log(log: &dyn SharedLog, progress: &AtomicU64, is_done: &AtomicBool) {
    let mut at = 0;
    loop {
        // Looked at before the read: what was appended by then, the read finds.
        let was_done = is_done.load(Ordering::SeqCst);
        let bytes = log.read(LogPosition(at), 64).expect("a read of what is not discarded");
        for number in bytes.chunks(8) {
            assert_eq!(number, (at / 8).to_le_bytes(), "at {at}");
            at += 8;
        }
        progress.store(at, Ordering::SeqCst);
        if bytes.is_empty() && was_done {
            return;
        }
    }
}

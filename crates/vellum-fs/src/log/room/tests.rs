//! Who waits for room goes on or is told, by what publishing came to and what the disk has.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const LIMIT: u64 = 1000;

/// A room with somebody to ask, and a disk with so many bytes free.
fn room(has_store: bool) -> (Arc<LogRoom>, Arc<AtomicU64>) {
    let room = Arc::new(LogRoom::new(0, LIMIT));
    let free = Arc::new(AtomicU64::new(1 << 40));
    room.set_pressure_hook(Box::new(|| {}));
    let seen = Arc::clone(&free);
    let disk =
        move || Some(LogDisk { size: 64 << 20, free: seen.load(Ordering::SeqCst), metadata: 10, has_store });
    room.set_disk_probe(Box::new(disk));
    (room, free)
}

/// Waits in a thread, and gives what comes of it after `meanwhile`, during which the waiting goes on.
fn waiting(room: &LogRoom, bytes: u64, meanwhile: impl FnOnce()) -> Result<()> {
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| room.wait_for_log_space(bytes));
        while room.usage().waiting == 0 {
            std::thread::yield_now();
        }
        meanwhile();
        waits.join().unwrap()
    })
}

fn is_full(outcome: &Result<()>) -> bool {
    outcome.as_ref().is_err_and(|error| error.errno() == Errno::NOSPC)
}

#[test]
fn a_store_that_is_away_lets_writers_wait_until_there_is_room() {
    let (room, _free) = room(false);
    room.reserve_bytes(LIMIT);
    let went_on = waiting(&room, 1, || {
        for _ in 0..3 {
            let attempt = room.begin_publish_attempt();
            room.end_publish_attempt(attempt, false);
            assert_eq!(room.usage().waiting, 1);
        }
        room.return_bytes(LIMIT);
    });
    went_on.unwrap();
}

#[test]
fn a_store_without_room_is_told_after_an_attempt_that_began_later() {
    let (room, _free) = room(false);
    room.reserve_bytes(LIMIT);
    let early = room.begin_publish_attempt();
    let reported = waiting(&room, 1, || {
        room.end_publish_attempt(early, true);
        assert_eq!(room.usage().waiting, 1, "what was written last was no part of that attempt");
        let late = room.begin_publish_attempt();
        room.end_publish_attempt(late, true);
    });
    assert!(is_full(&reported));
    // The next one waits for an attempt of its own.
    assert!(is_full(&waiting(&room, 1, || room.end_publish_attempt(room.begin_publish_attempt(), true))));
}

#[test]
fn a_full_disk_is_told_unless_publishing_makes_room() {
    let (room, free) = room(false);
    free.store(RESERVED.0 + 10 + 99, Ordering::SeqCst);
    assert!(is_full(&waiting(&room, 100, || room.end_publish_attempt(room.begin_publish_attempt(), false))));
    let went_on = waiting(&room, 100, || {
        free.fetch_add(1, Ordering::SeqCst);
        room.end_publish_attempt(room.begin_publish_attempt(), false);
    });
    went_on.unwrap();
    // What stands in the log already is no reason to wait: the store is elsewhere.
    room.reserve_bytes(500);
    room.wait_for_log_space(100).unwrap();
    assert!(is_full(&waiting(&room, 101, || room.end_publish_attempt(room.begin_publish_attempt(), false))));
}

#[test]
fn what_is_to_be_published_onto_the_same_disk_has_its_room_kept() {
    let (room, free) = room(true);
    room.reserve_bytes(500);
    free.store(RESERVED.0 + 10 + 100 + (10 + 500 + 100), Ordering::SeqCst);
    room.wait_for_log_space(100).unwrap();
    free.fetch_sub(1, Ordering::SeqCst);
    assert!(is_full(&waiting(&room, 100, || room.end_publish_attempt(room.begin_publish_attempt(), false))));
}

#[test]
fn a_log_that_becomes_nearly_full_is_told_once_until_it_was_half_empty() {
    let (room, _) = room(false);
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    room.set_fill_hook(Box::new(move |usage| {
        assert_eq!(usage.percent(), 80);
        count.fetch_add(1, Ordering::SeqCst);
    }));
    room.reserve_bytes(799);
    assert_eq!(told.load(Ordering::SeqCst), 0);
    room.reserve_bytes(1);
    room.reserve_bytes(100);
    room.return_bytes(400);
    room.reserve_bytes(300);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    room.return_bytes(301);
    room.reserve_bytes(301);
    assert_eq!(told.load(Ordering::SeqCst), 2);
    // Without a limit it is never full.
    room.set_limit(u64::MAX);
    assert_eq!(room.usage().percent(), 0);
}

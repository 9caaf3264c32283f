//! What programs see of locks, one rule a test.

mod model;

use std::sync::Arc;

use parking_lot::Mutex;
use vellum_types::Ino;

use super::{
    HeldLock, LockError, LockKind, LockLimits, LockMode, LockOwner, LockRange, LockRequest, LockSession,
    LockTable, WaitId,
};
use LockKind::{Flock, Ofd, Posix};
use LockMode::{Exclusive, Shared};

const FILE: Ino = Ino(7);
const OTHER_FILE: Ino = Ino(8);

/// Session `number`; they are in the order of their numbers.
fn session(number: u8) -> LockSession {
    LockSession([number; LockSession::LEN])
}

/// Owner `number` of session `of`.
fn owner(of: u8, number: u64) -> LockOwner {
    LockOwner { session: session(of), number }
}

/// A request for bytes of [`FILE`], the last one included.
fn request(owner: LockOwner, kind: LockKind, mode: LockMode, (start, end): (u64, u64)) -> LockRequest {
    let range = LockRange::new(start, end).unwrap();
    LockRequest { ino: FILE, owner, kind, mode, range, pid: owner.number as u32 }
}

fn flock(owner: LockOwner, mode: LockMode) -> LockRequest {
    request(owner, Flock, mode, (0, LockRange::LAST))
}

/// A request, by its number, and what was decided on it.
type DecidedRequest = (u64, Result<(), LockError>);

/// A table with sessions 1, 2 and 3, and what became of the requests that wait in it.
struct Desk {
    table: Arc<LockTable>,
    decided: Arc<Mutex<Vec<DecidedRequest>>>,
}

impl Desk {
    fn new() -> Self {
        Self::with_limits(LockLimits::default())
    }

    fn with_limits(limits: LockLimits) -> Self {
        let table = LockTable::new(limits);
        (1..=3).for_each(|number| table.open_session(session(number)));
        Self { table: Arc::new(table), decided: Arc::default() }
    }

    /// Waits as request `number`.
    fn wait(&self, request: &LockRequest, number: u64) {
        let decided = Arc::clone(&self.decided);
        let wait = WaitId { session: request.owner.session, number };
        self.table.set_and_wait(request, wait, move |result| decided.lock().push((number, result)));
    }

    /// The requests that were decided since the last call.
    fn decided(&self) -> Vec<(u64, Result<(), LockError>)> {
        std::mem::take(&mut *self.decided.lock())
    }

    /// The ranges of an owner on [`FILE`].
    fn ranges(&self, owner: LockOwner) -> Vec<(u64, u64, LockMode)> {
        let locks = self.table.list_locks(FILE).into_iter().filter(|lock| lock.owner == owner);
        locks.map(|lock| (lock.range.start(), lock.range.end(), lock.mode)).collect()
    }
}

#[test]
fn exclusive_locks_exclude_others_and_shared_ones_only_exclusive_ones() {
    let Desk { table, .. } = Desk::new();
    table.set(&request(owner(1, 1), Posix, Exclusive, (0, 9))).unwrap();
    for kind in [Posix, Ofd] {
        for mode in [Shared, Exclusive] {
            let blocked = table.set(&request(owner(2, 1), kind, mode, (9, 20)));
            assert_eq!(blocked, Err(LockError::WouldBlock), "{kind:?} {mode:?}");
        }
    }
    table.set(&request(owner(2, 1), Posix, Exclusive, (10, 20))).unwrap();
    table.set(&request(owner(3, 1), Posix, Shared, (30, 40))).unwrap();
    table.set(&request(owner(3, 2), Ofd, Shared, (35, 45))).unwrap();
    assert_eq!(table.set(&request(owner(3, 1), Posix, Exclusive, (35, 35))), Err(LockError::WouldBlock));
    // The numbers of two sessions' owners mean different owners.
    assert_eq!(table.set(&request(owner(2, 1), Posix, Shared, (0, 0))), Err(LockError::WouldBlock));
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    let Desk { table, .. } = Desk::new();
    table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    table.set(&request(owner(2, 1), Posix, Exclusive, (0, LockRange::LAST))).unwrap();
    assert_eq!(table.set(&flock(owner(2, 2), Shared)), Err(LockError::WouldBlock));
    assert!(table.release_flock(FILE, owner(1, 1)));
    assert!(!table.release_flock(FILE, owner(1, 1)));
    table.set(&flock(owner(2, 2), Shared)).unwrap();
}

#[test]
fn the_lock_in_the_way_is_reported() {
    let Desk { table, .. } = Desk::new();
    let mine = request(owner(1, 11), Posix, Exclusive, (10, 19));
    table.set(&mine).unwrap();
    let found = table.find_conflict(&request(owner(2, 1), Posix, Shared, (0, LockRange::LAST))).unwrap();
    let expected = HeldLock { owner: mine.owner, kind: Posix, mode: Exclusive, range: mine.range, pid: 11 };
    assert_eq!(found, expected);
    assert_eq!(table.find_conflict(&request(owner(2, 1), Posix, Exclusive, (0, 9))), None);
    assert_eq!(table.find_conflict(&request(owner(1, 11), Posix, Exclusive, (0, 99))), None);
}

#[test]
fn ranges_are_split_and_merged() {
    let desk = Desk::new();
    let me = owner(1, 1);
    let set = |mode, range| desk.table.set(&request(me, Posix, mode, range)).unwrap();
    let unlock = |range| desk.table.unlock(&request(me, Posix, Shared, range)).unwrap();
    set(Exclusive, (0, 99));
    unlock((40, 59));
    assert_eq!(desk.ranges(me), [(0, 39, Exclusive), (60, 99, Exclusive)]);
    // A change of mode in the middle, and back.
    set(Shared, (10, 19));
    assert_eq!(
        desk.ranges(me),
        [(0, 9, Exclusive), (10, 19, Shared), (20, 39, Exclusive), (60, 99, Exclusive)]
    );
    set(Exclusive, (10, 19));
    assert_eq!(desk.ranges(me), [(0, 39, Exclusive), (60, 99, Exclusive)]);
    // What adjoins becomes one.
    set(Exclusive, (40, 59));
    assert_eq!(desk.ranges(me), [(0, 99, Exclusive)]);
    set(Shared, (100, LockRange::LAST));
    assert_eq!(desk.ranges(me), [(0, 99, Exclusive), (100, LockRange::LAST, Shared)]);
    set(Shared, (50, 149));
    assert_eq!(desk.ranges(me), [(0, 49, Exclusive), (50, LockRange::LAST, Shared)]);
    assert_eq!(desk.table.usage(session(1)).unwrap().locks, 2);
    unlock((0, LockRange::LAST));
    assert_eq!(desk.ranges(me), []);
    assert_eq!(desk.table.usage(session(1)).unwrap().locks, 0);
}

#[test]
fn who_waits_is_granted_in_the_order_of_arrival() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.wait(&flock(owner(2, 1), Exclusive), 21);
    desk.wait(&flock(owner(3, 1), Shared), 31);
    desk.wait(&flock(owner(3, 2), Shared), 32);
    desk.wait(&flock(owner(2, 2), Exclusive), 22);
    assert_eq!(desk.decided(), []);
    desk.table.unlock(&flock(owner(1, 1), Shared)).unwrap();
    assert_eq!(desk.decided(), [(21, Ok(()))]);
    desk.table.unlock(&flock(owner(2, 1), Shared)).unwrap();
    assert_eq!(desk.decided(), [(31, Ok(())), (32, Ok(()))]);
    desk.table.unlock(&flock(owner(3, 1), Shared)).unwrap();
    assert_eq!(desk.decided(), []);
    desk.table.unlock(&flock(owner(3, 2), Shared)).unwrap();
    assert_eq!(desk.decided(), [(22, Ok(()))]);
}

#[test]
fn only_what_overlaps_waits() {
    let desk = Desk::new();
    desk.table.set(&request(owner(1, 1), Posix, Exclusive, (0, 99))).unwrap();
    desk.wait(&request(owner(2, 1), Posix, Exclusive, (50, 59)), 1);
    desk.wait(&request(owner(3, 1), Posix, Exclusive, (200, 299)), 2);
    assert_eq!(desk.decided(), [(2, Ok(()))]);
    desk.table.unlock(&request(owner(1, 1), Posix, Shared, (0, 49))).unwrap();
    assert_eq!(desk.decided(), []);
    desk.table.unlock(&request(owner(1, 1), Posix, Shared, (50, 59))).unwrap();
    assert_eq!(desk.decided(), [(1, Ok(()))]);
}

#[test]
fn a_shared_lock_joins_others_although_somebody_waits() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Shared)).unwrap();
    desk.wait(&flock(owner(2, 1), Exclusive), 1);
    // As a child of the holder would, for whose end it waits.
    desk.wait(&flock(owner(1, 2), Shared), 2);
    assert_eq!(desk.decided(), [(2, Ok(()))]);
}

#[test]
fn a_downgrade_lets_readers_in() {
    let desk = Desk::new();
    desk.table.set(&request(owner(1, 1), Posix, Exclusive, (0, 9))).unwrap();
    desk.wait(&request(owner(2, 1), Posix, Shared, (0, 9)), 1);
    desk.table.set(&request(owner(1, 1), Posix, Shared, (0, 4))).unwrap();
    assert_eq!(desk.decided(), []);
    desk.table.set(&request(owner(1, 1), Posix, Shared, (5, 9))).unwrap();
    assert_eq!(desk.decided(), [(1, Ok(()))]);
}

#[test]
fn an_upgrade_of_a_range_keeps_the_shared_lock_until_it_succeeds() {
    let desk = Desk::new();
    desk.table.set(&request(owner(1, 1), Posix, Shared, (0, 9))).unwrap();
    desk.table.set(&request(owner(2, 1), Posix, Shared, (0, 9))).unwrap();
    assert_eq!(desk.table.set(&request(owner(1, 1), Posix, Exclusive, (0, 9))), Err(LockError::WouldBlock));
    assert_eq!(desk.ranges(owner(1, 1)), [(0, 9, Shared)]);
    desk.wait(&request(owner(1, 1), Posix, Exclusive, (0, 9)), 1);
    assert_eq!(desk.ranges(owner(1, 1)), [(0, 9, Shared)]);
    // Both cannot become the only one.
    desk.wait(&request(owner(2, 1), Posix, Exclusive, (0, 9)), 2);
    assert_eq!(desk.decided(), [(2, Err(LockError::Deadlock))]);
    assert!(desk.table.release_ranges(FILE, owner(2, 1)));
    assert_eq!(desk.decided(), [(1, Ok(()))]);
    assert_eq!(desk.ranges(owner(1, 1)), [(0, 9, Exclusive)]);
}

#[test]
fn a_flock_that_cannot_change_its_mode_is_lost_as_on_linux() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Shared)).unwrap();
    desk.table.set(&flock(owner(2, 1), Shared)).unwrap();
    assert_eq!(desk.table.set(&flock(owner(1, 1), Exclusive)), Err(LockError::WouldBlock));
    // Now the other one is alone.
    desk.table.set(&flock(owner(2, 1), Exclusive)).unwrap();
    assert_eq!(desk.table.usage(session(1)).unwrap().locks, 0);
    // Two that want to become exclusive do not wait for each other.
    desk.table.set(&flock(owner(2, 1), Shared)).unwrap();
    desk.table.set(&flock(owner(1, 1), Shared)).unwrap();
    desk.wait(&flock(owner(1, 1), Exclusive), 1);
    desk.wait(&flock(owner(2, 1), Exclusive), 2);
    // The second found nobody in its way, as the first had nothing any more.
    assert_eq!(desk.decided(), [(2, Ok(()))]);
    desk.table.unlock(&flock(owner(2, 1), Shared)).unwrap();
    assert_eq!(desk.decided(), [(1, Ok(()))]);
}

#[test]
fn deadlocks_are_found_across_files_and_sessions() {
    let desk = Desk::new();
    let of = |owner, file| LockRequest { ino: Ino(file), ..request(owner, Posix, Exclusive, (0, 0)) };
    let owners = [owner(1, 1), owner(2, 1), owner(3, 1), owner(3, 2)];
    for (&owner, file) in owners.iter().zip(10..) {
        desk.table.set(&of(owner, file)).unwrap();
    }
    desk.wait(&of(owners[0], 11), 1);
    desk.wait(&of(owners[1], 12), 2);
    desk.wait(&of(owners[2], 13), 3);
    // To ask without waiting is no deadlock.
    assert_eq!(desk.table.set(&of(owners[3], 10)), Err(LockError::WouldBlock));
    desk.wait(&of(owners[3], 10), 4);
    assert_eq!(desk.decided(), [(4, Err(LockError::Deadlock))]);
    // It gives up what it has, as it should, and all the others get through.
    assert!(desk.table.release_ranges(Ino(13), owners[3]));
    assert_eq!(desk.decided(), [(3, Ok(()))]);
}

#[test]
fn contention_is_no_deadlock() {
    let desk = Desk::new();
    let turn = |of| request(owner(of, 1), Posix, Exclusive, (0, 0));
    desk.table.set(&turn(1)).unwrap();
    for round in 0..30 {
        let holder = round % 3 + 1;
        let next = (round + 1) % 3 + 1;
        desk.wait(&turn(next), u64::from(round));
        assert_eq!(desk.decided(), []);
        desk.table.unlock(&turn(holder)).unwrap();
        assert_eq!(desk.decided(), [(u64::from(round), Ok(()))]);
    }
}

#[test]
fn open_files_do_not_wait_so_they_make_no_deadlock() {
    for kind in [Ofd, Flock] {
        let desk = Desk::new();
        let range = if kind == Flock { (0, LockRange::LAST) } else { (0, 0) };
        let of = |owner, ino| LockRequest { ino, ..request(owner, kind, Exclusive, range) };
        desk.table.set(&of(owner(1, 1), FILE)).unwrap();
        desk.table.set(&of(owner(2, 1), OTHER_FILE)).unwrap();
        desk.wait(&of(owner(1, 1), OTHER_FILE), 1);
        desk.wait(&of(owner(2, 1), FILE), 2);
        assert_eq!(desk.decided(), [], "{kind:?}");
        // Another process that has the same open file unlocks it.
        desk.table.unlock(&of(owner(1, 1), FILE)).unwrap();
        assert_eq!(desk.decided(), [(2, Ok(()))], "{kind:?}");
    }
}

#[test]
fn a_request_that_waits_can_be_taken_back() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.wait(&flock(owner(2, 1), Exclusive), 1);
    desk.wait(&flock(owner(2, 2), Exclusive), 2);
    desk.wait(&flock(owner(2, 3), Exclusive), 2);
    assert_eq!(desk.decided(), [(2, Err(LockError::DuplicateWait))]);
    let wait = WaitId { session: session(2), number: 1 };
    assert!(desk.table.cancel(wait));
    assert!(!desk.table.cancel(wait));
    assert_eq!(desk.decided(), [(1, Err(LockError::Interrupted))]);
    desk.table.unlock(&flock(owner(1, 1), Shared)).unwrap();
    assert_eq!(desk.decided(), [(2, Ok(()))]);
    assert!(!desk.table.cancel(WaitId { session: session(2), number: 2 }));
}

#[test]
fn a_session_that_ends_releases_everything_at_once() {
    let desk = Desk::new();
    desk.table.set(&request(owner(1, 1), Posix, Exclusive, (0, 9))).unwrap();
    desk.table.set(&request(owner(1, 2), Ofd, Exclusive, (10, 19))).unwrap();
    desk.table.set(&flock(owner(1, 3), Exclusive)).unwrap();
    desk.wait(&request(owner(1, 3), Posix, Exclusive, (0, 9)), 1);
    desk.wait(&request(owner(2, 1), Posix, Exclusive, (0, 19)), 2);
    desk.wait(&flock(owner(3, 1), Exclusive), 3);
    assert_eq!(desk.table.end_session(session(1)), [FILE]);
    let mut decided = desk.decided();
    assert_eq!(decided.remove(0), (1, Err(LockError::SessionEnded)));
    assert_eq!(decided, [(2, Ok(())), (3, Ok(()))]);
    assert_eq!(desk.table.list_sessions(), [session(2), session(3)]);
    // What arrives late from the ended session has no effect.
    assert_eq!(desk.table.set(&flock(owner(1, 9), Shared)), Err(LockError::SessionEnded));
    desk.wait(&request(owner(1, 9), Posix, Shared, (100, 100)), 4);
    assert_eq!(desk.decided(), [(4, Err(LockError::SessionEnded))]);
    assert_eq!(desk.table.end_session(session(1)), []);
}

#[test]
fn a_lost_connection_takes_back_what_waits_and_keeps_what_is_held() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.table.set(&request(owner(2, 1), Posix, Exclusive, (0, 9))).unwrap();
    desk.wait(&flock(owner(2, 2), Exclusive), 1);
    desk.table.cancel_session(session(2));
    assert_eq!(desk.decided(), [(1, Err(LockError::Interrupted))]);
    assert_eq!(desk.ranges(owner(2, 1)), [(0, 9, Exclusive)]);
    let usage = desk.table.usage(session(2)).unwrap();
    assert_eq!((usage.locks, usage.waits), (1, 0));
}

#[test]
fn a_session_has_a_limit_of_locks_and_of_requests_that_wait() {
    let desk = Desk::with_limits(LockLimits { locks: 2, waits: 1 });
    let set = |mode, range| desk.table.set(&request(owner(1, 1), Posix, mode, range));
    set(Exclusive, (0, 9)).unwrap();
    set(Exclusive, (20, 29)).unwrap();
    assert_eq!(set(Exclusive, (40, 49)), Err(LockError::TooMany));
    // To split one would make three.
    let middle = request(owner(1, 1), Posix, Exclusive, (4, 5));
    assert_eq!(desk.table.unlock(&middle), Err(LockError::TooMany));
    assert_eq!(set(Shared, (4, 5)), Err(LockError::TooMany));
    // What makes fewer is allowed.
    set(Exclusive, (10, 19)).unwrap();
    desk.table.unlock(&middle).unwrap();
    // Others are not concerned.
    desk.table.set(&flock(owner(2, 1), Exclusive)).unwrap();
    desk.wait(&flock(owner(1, 2), Exclusive), 1);
    desk.wait(&flock(owner(1, 3), Exclusive), 2);
    assert_eq!(desk.decided(), [(2, Err(LockError::TooMany))]);
    // A request that waited for a lock that it may not have any more fails, and does not wait for ever.
    desk.table.unlock(&flock(owner(2, 1), Exclusive)).unwrap();
    assert_eq!(desk.decided(), [(1, Err(LockError::TooMany))]);
}

#[test]
fn a_callback_may_use_the_table() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    let table = Arc::clone(&desk.table);
    let decided = Arc::clone(&desk.decided);
    let wanted = flock(owner(2, 1), Exclusive);
    desk.table.set_and_wait(&wanted, WaitId { session: session(2), number: 1 }, move |result| {
        table.unlock(&wanted).unwrap();
        decided.lock().push((1, result));
    });
    desk.wait(&flock(owner(3, 1), Exclusive), 2);
    desk.table.unlock(&flock(owner(1, 1), Exclusive)).unwrap();
    // The second was granted while the callback of the first ran.
    let mut decided = desk.decided();
    decided.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(decided, [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn nothing_is_kept_of_files_that_nobody_locks() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.wait(&flock(owner(2, 1), Exclusive), 1);
    assert!(desk.table.cancel(WaitId { session: session(2), number: 1 }));
    desk.table.release_flock(FILE, owner(1, 1));
    assert_eq!(desk.table.set(&flock(owner(9, 1), Shared)), Err(LockError::SessionEnded));
    assert!(desk.table.list_locks(FILE).is_empty());
    assert!(desk.table.state.lock().is_blank());
}

#[test]
fn ranges_that_no_file_can_have_are_refused() {
    assert_eq!(LockRange::new(1, 0), None);
    assert_eq!(LockRange::new(0, LockRange::LAST + 1), None);
    assert_eq!(LockRange::new(0, LockRange::LAST), Some(LockRange::ALL));
}

/// Session 1 had locks when another process served.
fn desk_in_grace(awaited: &[u8]) -> Desk {
    let desk = Desk::new();
    desk.table.begin_grace(awaited.iter().map(|number| session(*number)).collect());
    desk
}

#[test]
fn who_had_locks_takes_them_up_before_others_get_any() {
    let desk = desk_in_grace(&[1]);
    let decided = desk.decided.clone();
    let wait = WaitId { session: session(2), number: 8 };
    let try_to_lock = flock(owner(2, 1), Exclusive);
    desk.table.set_in_turn(&try_to_lock, wait, move |done| decided.lock().push((8, done)));
    desk.wait(&flock(owner(3, 1), Exclusive), 9);
    assert_eq!(desk.table.set(&try_to_lock), Err(LockError::WouldBlock));
    assert!(desk.decided.lock().is_empty());
    assert!(desk.table.may_reclaim(session(1)) && !desk.table.may_reclaim(session(2)));
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.table.end_reclaim(session(1));
    assert_eq!(*desk.decided.lock(), [(8, Err(LockError::WouldBlock))]);
    assert!(!desk.table.may_reclaim(session(1)));
    desk.table.release_flock(FILE, owner(1, 1));
    assert_eq!(desk.decided.lock()[1..], [(9, Ok(()))]);
}

#[test]
fn who_does_not_come_back_has_lost_its_locks() {
    let desk = desk_in_grace(&[1, 2]);
    desk.wait(&flock(owner(3, 1), Exclusive), 9);
    desk.table.end_reclaim(session(2));
    assert!(desk.decided.lock().is_empty());
    assert_eq!(desk.table.list_awaited(), [session(1)]);
    desk.table.end_grace();
    assert_eq!(*desk.decided.lock(), [(9, Ok(()))]);
    assert_eq!(desk.table.set(&flock(owner(1, 1), Exclusive)), Err(LockError::WouldBlock));
}

#[test]
fn what_is_held_up_can_be_interrupted_and_ends_with_its_session() {
    let desk = desk_in_grace(&[1]);
    desk.wait(&flock(owner(2, 1), Exclusive), 8);
    desk.wait(&flock(owner(3, 1), Exclusive), 9);
    assert!(desk.table.cancel(WaitId { session: session(2), number: 8 }));
    desk.table.end_session(session(3));
    assert_eq!(*desk.decided.lock(), [(8, Err(LockError::Interrupted)), (9, Err(LockError::SessionEnded))]);
}

#[test]
fn a_table_whose_locks_go_to_another_process_grants_nothing() {
    let desk = Desk::new();
    desk.table.set(&flock(owner(1, 1), Exclusive)).unwrap();
    desk.wait(&flock(owner(2, 1), Exclusive), 9);
    desk.table.suspend();
    desk.table.end_session(session(1));
    desk.table.end_reclaim(session(1));
    desk.table.end_grace();
    assert!(desk.decided.lock().is_empty());
    desk.table.end_session(session(2));
    assert_eq!(*desk.decided.lock(), [(9, Err(LockError::SessionEnded))]);
}

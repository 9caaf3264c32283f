use std::cell::Cell;
use std::sync::mpsc::channel;

use rustix::thread::gettid;

use super::*;
use crate::transport::schedule::get_thread_policy;

const NODE: u64 = 5;

fn head(pid: u32) -> RequestHeader {
    RequestHeader { opcode: 3, unique: 8, node: NODE, uid: 0, gid: 0, pid }
}

/// This thread, as a program that asks.
fn me() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Readers of which one may be alone; none on a machine where that is no use, or not allowed.
fn readers() -> Option<DeviceReaders> {
    let count = allowed_processors().unwrap().count();
    (count > 1 && can_change_policy()).then(|| DeviceReaders::with_settings(true, |_| false))
}

/// This thread reads and answers small requests of a program.
fn answer(readers: &DeviceReaders, asker: u32, times: u32) {
    for _ in 0..times {
        readers.begin_request(gettid(), &head(asker), false);
        assert_eq!(get_thread_policy(gettid()), Some(SchedulingPolicy::Normal), "while it is carried out");
        let mut policy = None;
        readers.answer_request(gettid(), || policy = get_thread_policy(gettid()));
        let expected =
            if readers.is_sole_reader(gettid()) { SchedulingPolicy::Idle } else { SchedulingPolicy::Normal };
        assert_eq!(policy, Some(expected), "while the answer is told");
    }
}

/// Readers of which this thread is alone.
fn alone() -> Option<DeviceReaders> {
    let readers = readers()?;
    answer(&readers, me(), STREAK + 1);
    assert!(readers.is_sole_reader(gettid()));
    Some(readers)
}

fn assert_all_read(readers: &DeviceReaders) {
    assert_eq!(readers.sole.load(Ordering::Relaxed), ALL);
    assert_eq!(get_thread_policy(gettid()), Some(SchedulingPolicy::Normal));
    assert!(allowed_processors().unwrap().count() > 1);
}

#[test]
fn one_reads_alone_while_one_program_asks_and_all_when_another_does() {
    let Some(readers) = alone() else { return };
    // Requests of the kernel itself belong to no program.
    answer(&readers, 0, 3);
    assert!(readers.is_sole_reader(gettid()));
    answer(&readers, 1, 1);
    assert_all_read(&readers);
    // It was in the way: not at once again.
    readers.state.lock().free = Instant::now() + PAUSE_MAX;
    answer(&readers, me(), 2 * STREAK);
    assert_all_read(&readers);
}

#[test]
fn all_read_while_a_request_takes_long_and_one_soon_after_it() {
    let Some(readers) = alone() else { return };
    readers.begin_request(gettid(), &head(me()), true);
    assert_all_read(&readers);
    readers.answer_request(gettid(), || {});
    answer(&readers, me(), STREAK + 1);
    assert!(readers.is_sole_reader(gettid()));
    readers.finish_readers();
    assert_all_read(&readers);
}

#[test]
fn programs_that_ask_in_turns_are_read_by_all() {
    let Some(readers) = readers() else { return };
    for _ in 0..10 * STREAK {
        answer(&readers, me(), 1);
        answer(&readers, 1, 1);
        assert_all_read(&readers);
    }
}

#[test]
fn a_program_that_is_gone_is_not_followed() {
    let Some(readers) = readers() else { return };
    answer(&readers, u32::MAX, 2 * STREAK);
    assert_all_read(&readers);
}

#[test]
fn nobody_is_alone_on_a_machine_whose_processors_are_all_taken() {
    let Some(mut readers) = readers() else { return };
    readers.is_crowded = |_| true;
    answer(&readers, me(), 2 * STREAK);
    assert_all_read(&readers);
}

#[test]
fn nobody_is_alone_where_the_policy_cannot_be_taken_back() {
    let readers = DeviceReaders::with_settings(false, |_| false);
    answer(&readers, me(), 2 * STREAK);
    assert_all_read(&readers);
}

#[test]
fn others_read_when_who_is_alone_is_held_up_by_a_request() {
    let Some(readers) = alone() else { return };
    readers.begin_request(gettid(), &head(me()), false);
    let looks = Cell::new(0);
    readers.watch_sole_reader(|| false, || looks.set(looks.get() + 1));
    assert_eq!(looks.get(), 2);
    assert_all_read(&readers);
}

#[test]
fn others_read_when_who_is_alone_gets_no_time_for_a_request_that_waits() {
    let Some(readers) = alone() else { return };
    let looks = Cell::new(0);
    readers.watch_sole_reader(|| true, || looks.set(looks.get() + 1));
    assert_eq!(looks.get(), 2);
    assert_all_read(&readers);
}

#[test]
fn who_goes_on_stays_alone_and_ends_when_nothing_is_asked() {
    let Some(readers) = alone() else { return };
    let looks = Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        if looks.get() <= 50 {
            assert!(readers.is_sole_reader(gettid()));
            answer(&readers, me(), 1);
        }
    };
    readers.watch_sole_reader(|| false, look);
    assert_eq!(looks.get(), 50 + QUIET_TICKS);
    assert_all_read(&readers);
}

#[test]
fn who_gets_no_time_while_it_tells_an_answer_has_the_normal_policy_again() {
    let Some(readers) = alone() else { return };
    readers.begin_request(gettid(), &head(me()), false);
    readers.answer_request(gettid(), || {
        assert_eq!(get_thread_policy(gettid()), Some(SchedulingPolicy::Idle));
        readers.watch_sole_reader(|| true, || {});
        assert_all_read(&readers);
    });
    assert_all_read(&readers);
}

#[test]
fn others_wait_while_one_is_alone_and_go_on_when_it_is_not() {
    let Some(readers) = alone() else { return };
    let (gone_on, reached) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            readers.wait_for_sole_reader(gettid());
            gone_on.send(readers.sole.load(Ordering::Relaxed)).unwrap();
        });
        // A program that is alone does not wait for itself.
        readers.wait_for_sole_reader(gettid());
        readers.end_sole_reading(SoleReaderEnd::Useless);
        assert_eq!(reached.recv().unwrap(), ALL);
    });
}

#[test]
fn programs_that_come_one_after_the_other_are_each_answered_by_one_alone() {
    let Some(readers) = readers() else { return };
    for number in 0..10u32 {
        // Each program is another thread, which stays until the next one asks.
        let asker = if number % 2 == 0 { me() } else { 1 };
        answer(&readers, asker, STREAK + 1 + WORTH_REQUESTS as u32);
        assert!(readers.is_sole_reader(gettid()), "program {number}");
    }
    readers.finish_readers();
    assert_all_read(&readers);
}

#[test]
fn who_is_alone_for_nothing_is_so_again_after_longer_and_longer() {
    let readers = DeviceReaders::with_settings(false, |_| false);
    let start = Instant::now();
    let mut state = readers.state.lock();
    let mut rest = |ending, lasted, answered| {
        state.free = start;
        state.schedule_next_sole(ending, lasted, answered, start);
        state.free.saturating_duration_since(start).as_millis()
    };
    let pauses: Vec<_> = (0..12).map(|_| rest(SoleReaderEnd::HeldUp, PAUSE_MIN, 0)).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
    assert_eq!(rest(SoleReaderEnd::Useless, PAUSE_MIN, 0), 0);
    assert_eq!(rest(SoleReaderEnd::Stranger, PAUSE_MIN, 1), 1000, "being useless changes nothing");
    assert_eq!(rest(SoleReaderEnd::HeldUp, WORTH, 1000), 1);
    assert_eq!(
        [
            rest(SoleReaderEnd::Stranger, PAUSE_MIN, WORTH_REQUESTS),
            rest(SoleReaderEnd::Stranger, PAUSE_MIN, 1)
        ],
        [0, 1]
    );
}

#[test]
fn a_policy_that_was_taken_on_as_another_ended_it_is_not_kept() {
    let Some(readers) = alone() else { return };
    readers.end_sole_reading(SoleReaderEnd::HeldUp);
    set_thread_policy(gettid(), SchedulingPolicy::Idle).unwrap();
    readers.restore_ended_reader();
    assert_all_read(&readers);
    // A program that is alone again by then has sole reading rightly.
    readers.state.lock().free = Instant::now();
    answer(&readers, me(), STREAK + 1);
    assert!(readers.is_sole_reader(gettid()));
    readers.state.lock().ended = Some(gettid());
    set_thread_policy(gettid(), SchedulingPolicy::Idle).unwrap();
    readers.restore_ended_reader();
    assert_eq!(get_thread_policy(gettid()), Some(SchedulingPolicy::Idle));
    readers.finish_readers();
    assert_all_read(&readers);
}

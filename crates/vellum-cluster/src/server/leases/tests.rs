//! The grants of clients, with clients that are threads of the test.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::table::StripeSet;
use super::{FrameSink, LeaseTable, LeasedAnswer, MarkedLeases};
use crate::protocol::SessionId;
use crate::protocol::frame::ServerFrame;
use crate::protocol::lease::Lease;

/// Long enough for a thread to do something.
const MOMENT: Duration = Duration::from_millis(50);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// Frames that a client has not read.
#[derive(Default)]
struct Frames(Mutex<VecDeque<Vec<u8>>>);

impl FrameSink for Frames {
    fn add_answer(&self, frame: Arc<Vec<u8>>) {
        self.0.lock().push_back(frame.to_vec());
    }

    fn add_notice(&self, frame: Vec<u8>) {
        self.0.lock().push_back(frame);
    }
}

impl Frames {
    fn take(&self) -> Vec<Vec<u8>> {
        self.0.lock().drain(..).collect()
    }
}

fn answer(value: u64) -> LeasedAnswer {
    let encode = |is_leased| {
        let body = value.to_le_bytes();
        Arc::new(ServerFrame::Answer { number: 1, errno: 0, body: &body, is_leased }.encode())
    };
    LeasedAnswer { plain: encode(false), leased: encode(true) }
}

fn is_leased(frame: &[u8]) -> bool {
    matches!(ServerFrame::decode(frame), Ok(ServerFrame::Answer { is_leased: true, .. }))
}

fn session(number: u8) -> SessionId {
    SessionId([number; SessionId::LEN])
}

fn change(table: &Arc<LeaseTable>, leases: &[Lease]) -> super::ChangeUnderWay {
    let mut change = table.take_names(StripeSet::default());
    change.recall(MarkedLeases::Some(leases.to_vec()), None);
    change
}

const NODE: Lease = Lease::Node(7);

#[test]
fn what_is_changed_is_not_granted_until_a_later_request() {
    let table = Arc::new(LeaseTable::default());
    let frames = Arc::new(Frames::default());
    table.attach_client(session(1), frames.clone());
    let before = table.now();
    let change = change(&table, &[NODE]);
    let during = table.now();
    table.send_answer(session(1), during, &[NODE], answer(1));
    drop(change);
    for came in [before, during] {
        table.send_answer(session(1), came, &[NODE], answer(1));
    }
    assert!(!frames.take().iter().any(|frame| is_leased(frame)));
    table.send_answer(session(1), table.now(), &[NODE], answer(2));
    assert!(frames.take().iter().all(|frame| is_leased(frame)));
    assert_eq!(table.count_leases(session(1)), 1);
}

#[test]
fn a_change_waits_until_what_is_recalled_is_given_back() {
    let table = Arc::new(LeaseTable::with_recall_time(LONG));
    let frames = Arc::new(Frames::default());
    table.attach_client(session(1), frames.clone());
    table.send_answer(session(1), table.now(), &[NODE], answer(1));
    assert!(is_leased(&frames.take()[0]));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| drop(change(&table, &[NODE])));
        std::thread::sleep(MOMENT);
        assert!(!changing.is_finished());
        let recall = frames.take().remove(0);
        let Ok(ServerFrame::Recall { number, leases }) = ServerFrame::decode(&recall) else {
            panic!("no recall")
        };
        assert_eq!(leases, [NODE]);
        table.note_recalled(session(1), number);
        changing.join().unwrap();
    });
    assert_eq!(table.count_leases(session(1)), 0);
}

#[test]
fn names_are_not_recalled_from_the_client_that_changes_them() {
    let table = Arc::new(LeaseTable::with_recall_time(LONG));
    let frames = [1, 2].map(|number| {
        let frames = Arc::new(Frames::default());
        table.attach_client(session(number), frames.clone());
        frames
    });
    let leases = [NODE, Lease::Names(7)];
    table.send_answer(session(1), table.now(), &leases, answer(1));
    table.send_answer(session(2), table.now(), &leases, answer(1));
    frames.iter().for_each(|frames| assert!(is_leased(&frames.take()[0])));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut change = table.take_names(StripeSet::default());
            change.recall(MarkedLeases::Some(leases.to_vec()), Some(session(1)));
        });
        std::thread::sleep(MOMENT);
        // Attributes are recalled from all.
        let expected = [vec![NODE], leases.to_vec()];
        for ((number, frames), expected) in (1..).zip(&frames).zip(expected) {
            let recall = frames.take().remove(0);
            let Ok(ServerFrame::Recall { number: recall, leases }) = ServerFrame::decode(&recall) else {
                panic!("no recall")
            };
            assert_eq!(leases, expected);
            assert!(!changing.is_finished());
            table.note_recalled(session(number), recall);
        }
        changing.join().unwrap();
    });
    assert_eq!([1, 2].map(|number| table.count_leases(session(number))), [1, 0]);
    // Whoever else changes them has them recalled from all.
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| drop(change(&table, &leases)));
        std::thread::sleep(MOMENT);
        assert!(!changing.is_finished());
        table.remove_client(session(1));
        changing.join().unwrap();
    });
}

#[test]
fn a_client_that_gives_nothing_back_is_overdue_and_the_change_goes_on() {
    let table = Arc::new(LeaseTable::with_recall_time(MOMENT));
    table.attach_client(session(1), Arc::new(Frames::default()));
    table.send_answer(session(1), table.now(), &[NODE], answer(1));
    let begun = Instant::now();
    drop(change(&table, &[NODE]));
    assert!(begun.elapsed() >= MOMENT);
    assert_eq!(table.take_overdue(), [session(1)]);
    assert!(table.take_overdue().is_empty());
}

#[test]
fn a_lost_client_is_waited_for_until_its_term_is_over() {
    let table = Arc::new(LeaseTable::with_recall_time(MOMENT));
    table.attach_client(session(1), Arc::new(Frames::default()));
    table.send_answer(session(1), table.now(), &[NODE], answer(1));
    let lost = Instant::now();
    table.detach_client(session(1));
    drop(change(&table, &[NODE]));
    assert!(lost.elapsed() >= MOMENT);
    assert!(table.take_overdue().is_empty() && !table.has_clients());
}

#[test]
fn a_client_that_is_back_is_not_waited_for() {
    let table = Arc::new(LeaseTable::with_recall_time(LONG));
    table.attach_client(session(1), Arc::new(Frames::default()));
    table.send_answer(session(1), table.now(), &[NODE], answer(1));
    table.attach_client(session(1), Arc::new(Frames::default()));
    drop(change(&table, &[NODE]));
}

#[test]
fn of_too_many_grants_the_oldest_are_recalled() {
    let table = Arc::new(LeaseTable::default());
    let frames = Arc::new(Frames::default());
    table.attach_client(session(1), frames.clone());
    for node in 0..=crate::protocol::LEASES_MAX as u64 {
        table.send_answer(session(1), table.now(), &[Lease::Node(node)], answer(1));
    }
    assert_eq!(table.count_leases(session(1)), crate::protocol::LEASES_MAX);
    for frame in frames.take() {
        if let Ok(ServerFrame::Recall { number, leases }) = ServerFrame::decode(&frame) {
            assert!(leases.contains(&Lease::Node(0)) || number > 1);
            table.note_recalled(session(1), number);
        }
    }
    assert!(table.count_leases(session(1)) < crate::protocol::LEASES_MAX);
}

#[test]
fn changes_of_one_name_follow_each_other() {
    let table = Arc::new(LeaseTable::default());
    let names = || StripeSet::of_names([(1, &b"a"[..])].into_iter());
    let first = table.take_names(names());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| drop(table.take_names(names())));
        std::thread::sleep(MOMENT);
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Two clients read and keep two values that two others change; whenever a client would answer from what it has kept, it
    /// answers what no completed change contradicts.
    #[test]
    fn nothing_stale_is_kept(steps in prop::collection::vec((0u8..4, 0u64..2), 1..200)) {
        let table = Arc::new(LeaseTable::with_recall_time(LONG));
        let values = [AtomicU64::new(0), AtomicU64::new(0)];
        let is_over = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in [1, 2] {
                let (table, values, is_over) = (&table, &values, &is_over);
                scope.spawn(move || keep_and_check(table, values, is_over, session(number)));
            }
            let changers: Vec<_> = [0, 1].map(|part| {
                let (table, values, steps) = (&table, &values, &steps);
                scope.spawn(move || {
                    for (_, place) in steps.iter().filter(|(who, _)| who % 2 == part) {
                        let change = change(table, &[Lease::Node(*place)]);
                        values[*place as usize].fetch_add(1, Ordering::SeqCst);
                        drop(change);
                    }
                })
            }).into();
            changers.into_iter().for_each(|changer| changer.join().unwrap());
            is_over.store(1, Ordering::SeqCst);
        });
    }
}

fn keep_and_check(table: &LeaseTable, values: &[AtomicU64; 2], is_over: &AtomicU64, id: SessionId) {
    let frames = Arc::new(Frames::default());
    table.attach_client(id, frames.clone());
    let mut kept: [Option<u64>; 2] = [None, None];
    while is_over.load(Ordering::SeqCst) == 0 {
        for place in [0, 1] {
            // What is kept was not recalled, so it is what there is: a change would wait for this thread.
            if let Some(kept) = kept[place] {
                assert_eq!(kept, values[place].load(Ordering::SeqCst));
                continue;
            }
            let came = table.now();
            let value = values[place].load(Ordering::SeqCst);
            table.send_answer(id, came, &[Lease::Node(place as u64)], answer(value));
            for frame in frames.take() {
                match ServerFrame::decode(&frame).unwrap() {
                    ServerFrame::Answer { is_leased: true, .. } => kept[place] = Some(value),
                    ServerFrame::Recall { number, leases } => confirm(table, id, &mut kept, number, &leases),
                    _ => {}
                }
            }
        }
        for frame in frames.take() {
            if let Ok(ServerFrame::Recall { number, leases }) = ServerFrame::decode(&frame) {
                confirm(table, id, &mut kept, number, &leases);
            }
        }
    }
    table.remove_client(id);
}

fn confirm(table: &LeaseTable, id: SessionId, kept: &mut [Option<u64>; 2], number: u64, leases: &[Lease]) {
    for (place, kept) in kept.iter_mut().enumerate() {
        if leases.contains(&Lease::Node(place as u64)) {
            *kept = None;
        }
    }
    table.note_recalled(id, number);
}

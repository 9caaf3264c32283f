//! Whether a history is linearizable: whether there is one order of its operations that agrees with their times and that a
//! sequential model explains.
//!
//! The search of Wing and Gong, with the memory of Lowe: operations are put into an order one by one, the first that no
//! completed operation precedes; where none fits, the last one is taken back. A set of operations after which the model was in
//! the same state before is not tried twice.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};

/// Most steps of a search: those of a correct filesystem take some for each operation. Each takes about 200 bytes.
const STEPS_MAX: u64 = 10_000_000;
/// Operations that are shown around the one that fits nowhere.
const SHOWN: usize = 30;

/// What a correct filesystem does, one operation after the other.
pub(super) trait SequentialModel {
    /// Its state.
    type State: Clone + Eq + Hash + Debug;

    /// The state after an operation that ended so; None if it cannot end so. With an unknown outcome it must give a state.
    fn apply(&self, state: &Self::State, event: &HistoryEvent) -> Option<Self::State>;
}

/// An end of the list of operations that are not yet in the order.
#[derive(Debug, Clone, Copy)]
struct ListEntry {
    /// The position of the operation.
    operation: usize,
    is_return: bool,
    previous: usize,
    next: usize,
}

/// Starts and ends by time, as a doubly linked list, from which operations are taken and to which they are returned.
struct PendingList {
    entries: Vec<ListEntry>,
    /// Of each operation: its start and its end in the list.
    places: Vec<(usize, usize)>,
}

/// The list's head, and what stands for its end.
const HEAD: usize = 0;
const NONE: usize = usize::MAX;

impl PendingList {
    fn new(events: &[&HistoryEvent]) -> Self {
        // At the same time a start comes first: the operations overlap.
        let mut ends: Vec<(u64, bool, usize)> = Vec::new();
        for (operation, event) in events.iter().enumerate() {
            ends.push((event.start, false, operation));
            ends.push((event.end.unwrap_or(u64::MAX), true, operation));
        }
        ends.sort_unstable();
        let mut entries = vec![ListEntry { operation: NONE, is_return: false, previous: NONE, next: NONE }];
        let mut places = vec![(NONE, NONE); events.len()];
        for (_, is_return, operation) in ends {
            let at = entries.len();
            entries[at - 1].next = at;
            entries.push(ListEntry { operation, is_return, previous: at - 1, next: NONE });
            if is_return {
                places[operation].1 = at;
            } else {
                places[operation].0 = at;
            }
        }
        Self { entries, places }
    }

    fn first(&self) -> usize {
        self.entries[HEAD].next
    }

    fn take_out(&mut self, operation: usize) {
        let (start, end) = self.places[operation];
        self.unlink(start);
        self.unlink(end);
    }

    fn put_back(&mut self, operation: usize) {
        let (start, end) = self.places[operation];
        // In the opposite order, so that their neighbours are those of then.
        self.link(end);
        self.link(start);
    }

    fn unlink(&mut self, at: usize) {
        let ListEntry { previous, next, .. } = self.entries[at];
        self.entries[previous].next = next;
        if next != NONE {
            self.entries[next].previous = previous;
        }
    }

    fn link(&mut self, at: usize) {
        let ListEntry { previous, next, .. } = self.entries[at];
        self.entries[previous].next = at;
        if next != NONE {
            self.entries[next].previous = at;
        }
    }
}

/// Which operations are in the order. Those that are, are nearly all that began before some time: what is kept is small,
/// however long the history is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OperationSet {
    /// All operations with a known outcome before this one are in it.
    complete: usize,
    /// Those behind it that are in it, in order.
    beyond: Vec<usize>,
    /// Those with an unknown outcome that are in it, in order.
    unknown: Vec<usize>,
}

impl OperationSet {
    fn insert(&mut self, operation: usize, ranks: &[OperationRank]) {
        match ranks[operation] {
            OperationRank::Unknown => insert_sorted(&mut self.unknown, operation),
            OperationRank::Known(rank) => {
                insert_sorted(&mut self.beyond, rank);
                let run =
                    self.beyond.iter().zip(self.complete..).take_while(|(rank, next)| *rank == next).count();
                self.beyond.drain(..run);
                self.complete += run;
            }
        }
    }

    fn remove(&mut self, operation: usize, ranks: &[OperationRank]) {
        match ranks[operation] {
            OperationRank::Unknown => self.unknown.retain(|other| *other != operation),
            OperationRank::Known(rank) => {
                // Those behind it that were complete with it are so no more.
                let behind = rank + 1..self.complete;
                drop(self.beyond.splice(0..0, behind));
                self.complete = self.complete.min(rank);
                self.beyond.retain(|other| *other != rank);
            }
        }
    }
}

fn insert_sorted(numbers: &mut Vec<usize>, number: usize) {
    let at = numbers.partition_point(|other| *other < number);
    numbers.insert(at, number);
}

/// The place of an operation among those whose outcome is known, by their starts.
#[derive(Debug, Clone, Copy)]
enum OperationRank {
    Known(usize),
    Unknown,
}

fn rank_operations(events: &[&HistoryEvent]) -> Vec<OperationRank> {
    let mut known: Vec<usize> = (0..events.len()).filter(|at| events[*at].end.is_some()).collect();
    known.sort_by_key(|at| events[*at].start);
    let mut ranks = vec![OperationRank::Unknown; events.len()];
    for (rank, operation) in known.into_iter().enumerate() {
        ranks[operation] = OperationRank::Known(rank);
    }
    ranks
}

/// Fails if no order of the operations explains what they returned. `what` names their object.
pub(super) fn check_linearizable<M: SequentialModel>(
    model: &M,
    initial: M::State,
    events: &[&HistoryEvent],
    what: &str,
) -> Vec<HistoryViolation> {
    let mut list = PendingList::new(events);
    let ranks = rank_operations(events);
    let mut done = OperationSet::default();
    let mut seen = HashSet::new();
    let mut order: Vec<(usize, M::State)> = Vec::new();
    let mut state = initial;
    let mut longest = 0;
    let mut stuck = None;
    let mut entry = list.first();
    for _ in 0..STEPS_MAX {
        if entry == NONE || is_last_known_done(&list, events) {
            return Vec::new();
        }
        let ListEntry { operation, is_return, next, .. } = list.entries[entry];
        if is_return {
            // This one had to be in the order before its end.
            if stuck.is_none() || order.len() > longest {
                longest = order.len();
                stuck = Some(StuckOperation { operation, state: format!("{state:?}") });
            }
            let Some((last, before)) = order.pop() else {
                return vec![describe(events, stuck, &format!("{what}: no order explains"))];
            };
            state = before;
            done.remove(last, &ranks);
            list.put_back(last);
            entry = list.entries[list.places[last].0].next;
            continue;
        }
        if let Some(after) = model.apply(&state, events[operation]) {
            done.insert(operation, &ranks);
            if seen.insert((done.clone(), after.clone())) {
                order.push((operation, std::mem::replace(&mut state, after)));
                list.take_out(operation);
                entry = list.first();
                continue;
            }
            done.remove(operation, &ranks);
        }
        entry = next;
    }
    vec![describe(events, stuck, &format!("{what}: undecided after {STEPS_MAX} steps, perhaps because of"))]
}

/// An operation that had to be in the order, and fitted nowhere.
struct StuckOperation {
    operation: usize,
    /// The model's state then.
    state: String,
}

/// Whether only operations remain of which nobody knows whether they took place.
fn is_last_known_done(list: &PendingList, events: &[&HistoryEvent]) -> bool {
    // Their ends are last, so the first end of all is one of them only if nothing else is left.
    let mut entry = list.first();
    while entry != NONE {
        let ListEntry { operation, is_return, next, .. } = list.entries[entry];
        if events[operation].end.is_some() {
            return false;
        }
        if is_return {
            return true;
        }
        entry = next;
    }
    true
}

fn describe(events: &[&HistoryEvent], stuck: Option<StuckOperation>, what: &str) -> HistoryViolation {
    let Some(StuckOperation { operation, state }) = stuck else {
        return HistoryViolation(format!("{what} it"));
    };
    let stuck = events[operation];
    let mut near: Vec<_> = events.to_vec();
    near.sort_by_key(|event| event.start);
    let position = near.iter().position(|event| std::ptr::eq(*event, stuck)).unwrap_or_default();
    let shown = &near[position.saturating_sub(SHOWN)..near.len().min(position + SHOWN / 2)];
    let lines: String = shown.iter().map(|event| format!("\n    {event}")).collect();
    HistoryViolation(format!("{what} {stuck}; the state may have been {state}. Around it:{lines}"))
}

/// The operations that a model has to explain: those that succeeded, that failed for a reason that it knows, or whose outcome
/// is unknown.
pub(super) fn relevant<'a>(events: &'a [HistoryEvent], known_errors: &[i32]) -> Vec<&'a HistoryEvent> {
    let is_relevant = |event: &&HistoryEvent| match event.outcome {
        HistoryOutcome::Failed(errno) => known_errors.contains(&errno),
        HistoryOutcome::Done(_) | HistoryOutcome::Unknown(_) => true,
    };
    events.iter().filter(is_relevant).collect()
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;
    use crate::random::TestRandom;

    /// A register whose writes return what was there: few orders explain a history.
    struct SwapModel;

    impl SequentialModel for SwapModel {
        type State = u64;

        fn apply(&self, state: &u64, event: &HistoryEvent) -> Option<u64> {
            let is_right = event.results().is_none_or(|results| results == [*state]);
            is_right.then(|| event.argument(0))
        }
    }

    /// Swaps that took place one after the other, whose times overlap those of their neighbours.
    fn overlapping_history(random: &mut TestRandom, count: u64) -> Vec<HistoryEvent> {
        let swap = |number: u64| {
            let at = 100 * number;
            let [early, late] = [random.next_below(300), random.next_below(300)];
            let log = format!(
                "I {} swap {number}\nD {} {}\n",
                (at + 300).saturating_sub(early),
                at + 301 + late,
                number - 1
            );
            parse_log(number as usize, &log)
        };
        (1..=count).flat_map(swap).collect()
    }

    fn is_linearizable(events: &[HistoryEvent]) -> bool {
        check_linearizable(&SwapModel, 0, &events.iter().collect::<Vec<_>>(), "a cell").is_empty()
    }

    #[test]
    fn an_order_is_found_if_there_is_one() {
        let mut random = TestRandom::new(1);
        for count in [0, 1, 2, 20, 3000] {
            assert!(is_linearizable(&overlapping_history(&mut random, count)), "{count}");
        }
    }

    #[test]
    fn a_swap_that_came_too_early_is_found() {
        let mut random = TestRandom::new(2);
        for _ in 0..20 {
            let mut events = overlapping_history(&mut random, 200);
            // It saw what the one long after it wrote.
            events[50].outcome = HistoryOutcome::Done(vec![60]);
            assert!(!is_linearizable(&events));
        }
    }

    #[test]
    fn each_small_history_gets_the_answer_of_trying_all_orders() {
        let mut random = TestRandom::new(3);
        let mut accepted = 0;
        for _ in 0..2000 {
            let event = |client: usize| {
                let start = random.next_below(20);
                let end = start + 1 + random.next_below(10);
                let (number, seen) = (random.next_below(3), random.next_below(3));
                let last = if random.is_one_in(5) { "U 99 5".to_owned() } else { format!("D {end} {seen}") };
                parse_log(client, &format!("I {start} swap {number}\n{last}\n")).remove(0)
            };
            let events: Vec<_> = (0..5).map(event).collect();
            let expected = explains_some_order(0, &mut events.iter().collect());
            assert_eq!(is_linearizable(&events), expected, "{events:?}");
            accepted += usize::from(expected);
        }
        assert!((100..1900).contains(&accepted), "{accepted}");
    }

    /// Tries all orders.
    fn explains_some_order(state: u64, rest: &mut Vec<&HistoryEvent>) -> bool {
        if rest.iter().all(|event| event.is_unknown()) {
            return true;
        }
        (0..rest.len()).any(|at| {
            let event = rest.remove(at);
            let is_first = !rest.iter().any(|other| other.is_before(event));
            let after = SwapModel.apply(&state, event).filter(|_| is_first);
            let is_explained = after.is_some_and(|after| explains_some_order(after, rest));
            rest.insert(at, event);
            is_explained
        })
    }
}

//! Whether a history is linearizable: whether there is one order of its operations that agrees with their times and that a
//! sequential model explains.
//!
//! Starts and ends are gone through in the order of their times, with all situations in which the filesystem may be: the
//! model's state, and which of the operations that are under way have taken place. An operation is let take place only when
//! another one, or itself, has to have done so before an end ("just in time", Lowe). So what is kept depends on how much is
//! under way at once, not on the length of the history. Three rules keep it small, and lose no order:
//!
//! - What only reads, and agrees with the state, takes place at once: later it could do nothing else.
//! - Of two situations that differ only in operations with an unknown outcome, the one in which fewer of them have taken
//!   place is enough: what has not taken place never need to.
//! - What has ended is in all situations, and is forgotten.
//!
//! **Take-overs.** If another server continued from a log ([`TakeOver`]), then at one moment of that time the filesystem may
//! have become what it was at an earlier one, but not earlier than an operation that was synced and had ended. Operations under
//! way that are lost take place again, since clients repeat them; those that had ended do not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::take_over::TakeOver;

/// Most steps of a search: those of a correct filesystem take some for each operation.
const STEPS_MAX: u64 = 30_000_000;
/// Operations that are shown around the one that fits nowhere.
const SHOWN: usize = 30;

/// What a correct filesystem does, one operation after the other.
pub(super) trait SequentialModel {
    /// Its state.
    type State: Clone + Eq + Hash + Debug;

    /// The state after an operation that ended so; None if it cannot end so. With an unknown outcome it must give a state.
    fn apply(&self, state: &Self::State, event: &HistoryEvent) -> Option<Self::State>;

    /// Whether an operation that succeeded changes nothing, whatever the state is.
    fn is_reading(&self, event: &HistoryEvent) -> bool;

    /// What an operation is when a server is lost.
    fn durability(&self, event: &HistoryEvent) -> EventDurability;
}

/// What an operation is when a server is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventDurability {
    /// It is one call, which is repeated if it was not answered.
    OneCall,
    /// It is several calls: its change may have been answered, and be lost before the last one of them.
    SeveralCalls,
    /// It returned after it was synced, and survives with all that was before it.
    Synced,
}

/// Operations, by their positions.
type OperationSet = BTreeSet<usize>;

/// A situation in which the filesystem may be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Situation<S> {
    state: S,
    /// Operations under way that have taken place, with a known outcome.
    known: OperationSet,
    /// Those that may never.
    perhaps: OperationSet,
    /// Whether the take-over has been.
    is_taken_over: bool,
}

impl<S> Situation<S> {
    /// Whether an operation has taken place.
    fn has(&self, operation: usize) -> bool {
        self.known.contains(&operation) || self.perhaps.contains(&operation)
    }
}

/// What two situations have to have in common so that one can be enough.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SituationKey<S> {
    state: S,
    known: OperationSet,
    is_taken_over: bool,
}

/// Situations, of which none makes another one superfluous.
struct SituationSet<S> {
    by_key: HashMap<SituationKey<S>, Vec<OperationSet>>,
}

impl<S: Clone + Eq + Hash> SituationSet<S> {
    fn new() -> Self {
        Self { by_key: HashMap::new() }
    }

    /// Adds one; false if it is superfluous.
    fn insert(&mut self, situation: &Situation<S>) -> bool {
        let Situation { state, known, perhaps, is_taken_over } = situation;
        let key = SituationKey { state: state.clone(), known: known.clone(), is_taken_over: *is_taken_over };
        let least = self.by_key.entry(key).or_default();
        // In the other one fewer have taken place: all that this situation can still become, that one can become, too.
        if least.iter().any(|other| other.is_subset(perhaps)) {
            return false;
        }
        least.retain(|other| !perhaps.is_subset(other));
        least.push(perhaps.clone());
        true
    }

    fn into_vec(self) -> Vec<Situation<S>> {
        let one_by_one = |(key, sets): (SituationKey<S>, Vec<OperationSet>)| {
            let SituationKey { state, known, is_taken_over } = key;
            sets.into_iter().map(move |perhaps| Situation {
                state: state.clone(),
                known: known.clone(),
                perhaps,
                is_taken_over,
            })
        };
        self.by_key.into_iter().flat_map(one_by_one).collect()
    }
}

/// A start or an end, in the order of their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HistoryMoment {
    time: u64,
    /// At the same time a start comes first: the operations overlap.
    is_end: bool,
    operation: usize,
}

fn moments_of(events: &[&HistoryEvent]) -> Vec<HistoryMoment> {
    let mut moments = Vec::new();
    for (operation, event) in events.iter().enumerate() {
        moments.push(HistoryMoment { time: event.start, is_end: false, operation });
        let end = event.end.map(|time| HistoryMoment { time, is_end: true, operation });
        moments.extend(end);
    }
    moments.sort_unstable();
    moments
}

/// A search.
struct OrderSearch<'a, M: SequentialModel> {
    model: &'a M,
    events: &'a [&'a HistoryEvent],
    take_over: Option<TakeOver>,
    /// Operations that have begun and not ended.
    under_way: OperationSet,
    /// In which the filesystem may be now.
    present: Vec<Situation<M::State>>,
    /// In which it may have been, since the last operation that was synced: as it may become once more.
    past: HashSet<Situation<M::State>>,
    /// Whether the take-over has not yet ended.
    can_be_taken_over: bool,
    steps: u64,
}

/// What is checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedObject<'a> {
    /// Its name, for messages.
    pub(super) name: &'a str,
    /// When another server may have continued without its last changes.
    pub(super) take_over: Option<TakeOver>,
}

/// Fails if no order of the operations explains what they returned.
pub(super) fn check_linearizable<M: SequentialModel>(
    model: &M,
    initial: M::State,
    events: &[&HistoryEvent],
    object: CheckedObject<'_>,
) -> Vec<HistoryViolation> {
    let first = Situation {
        state: initial,
        known: OperationSet::new(),
        perhaps: OperationSet::new(),
        is_taken_over: false,
    };
    let mut search = OrderSearch {
        model,
        events,
        take_over: object.take_over,
        under_way: OperationSet::new(),
        past: HashSet::new(),
        present: vec![first],
        can_be_taken_over: object.take_over.is_some(),
        steps: 0,
    };
    // The beginning, too: a take-over may lose all that the history has done.
    search.remember();
    for moment in moments_of(events) {
        let before: Vec<_> = search.present.iter().take(3).map(|situation| situation.state.clone()).collect();
        search.pass(moment);
        let stuck = StuckOperation { operation: moment.operation, states: format!("{before:?}") };
        if search.present.is_empty() {
            return vec![describe(events, &stuck, &format!("{}: no order explains", object.name))];
        }
        // A violation, since a test must not pass that has decided nothing.
        if search.steps > STEPS_MAX {
            let what = format!("{}: undecided after {STEPS_MAX} steps, at", object.name);
            return vec![describe(events, &stuck, &what)];
        }
    }
    Vec::new()
}

impl<M: SequentialModel> OrderSearch<'_, M> {
    /// Goes on to a moment.
    fn pass(&mut self, moment: HistoryMoment) {
        if let Some(take_over) = self.take_over
            && self.can_be_taken_over
            && moment.time >= take_over.start
        {
            // At each moment of it, since nobody knows at which one the next server continued.
            // Once more behind its end, for the time since the moment before.
            self.lose_changes();
            self.can_be_taken_over = moment.time <= take_over.end;
        }
        let operation = moment.operation;
        if moment.is_end {
            self.end(operation);
        } else {
            self.under_way.insert(operation);
            let mut situations = std::mem::take(&mut self.present);
            situations.iter_mut().for_each(|situation| self.let_readers_take_place(situation));
            self.present = situations;
        }
    }

    /// An operation has taken place by now, in whatever situation; if its outcome is unknown, or never will.
    fn end(&mut self, operation: usize) {
        let mut ended = SituationSet::new();
        for situation in std::mem::take(&mut self.present) {
            if situation.has(operation) {
                ended.insert(&without(situation, operation));
                continue;
            }
            // It need not have taken place: nobody knows what became of it, or the lost server has answered a
            // part of it.
            if self.events[operation].is_unknown() || situation.is_taken_over && self.may_be_lost(operation) {
                ended.insert(&situation);
            }
            self.let_take_place(situation, operation, &mut ended);
        }
        self.under_way.remove(&operation);
        self.present = ended.into_vec();
        if self.can_be_taken_over {
            self.forget_in_past(operation);
            self.remember();
        } else {
            // Nothing can be lost any more.
            self.past.clear();
        }
    }

    /// Whether an operation may have been answered in part by the server that was lost.
    fn may_be_lost(&self, operation: usize) -> bool {
        let event = self.events[operation];
        let is_lost = self.take_over.is_some_and(|take_over| take_over.may_lose(event));
        let is_changing =
            self.model.durability(event) == EventDurability::SeveralCalls && !self.is_reading(operation);
        is_lost && is_changing
    }

    /// All that can take place before an operation, and then it, each in any order.
    fn let_take_place(
        &mut self,
        from: Situation<M::State>,
        operation: usize,
        ended: &mut SituationSet<M::State>,
    ) {
        let mut tried = SituationSet::new();
        let mut rest = vec![from];
        while let Some(situation) = rest.pop() {
            let candidates: Vec<usize> = self.under_way.iter().copied().collect();
            for candidate in candidates {
                if situation.has(candidate) {
                    continue;
                }
                self.steps += 1;
                let Some(next) = self.take_place(&situation, candidate) else { continue };
                if self.can_be_taken_over && !next.is_taken_over {
                    // What comes in between counts as well: the next server may go on from any moment.
                    self.past.insert(next.clone());
                }
                if next.has(operation) {
                    ended.insert(&without(next, operation));
                } else if self.steps <= STEPS_MAX && tried.insert(&next) {
                    // What was reached before, in another order, is not followed again.
                    rest.push(next);
                }
            }
        }
    }

    /// A situation after an operation in it; None if the operation could not have ended as it did.
    fn take_place(&self, situation: &Situation<M::State>, operation: usize) -> Option<Situation<M::State>> {
        let event = self.events[operation];
        let state = self.model.apply(&situation.state, event)?;
        // As if it had not taken place, which is a situation already.
        if event.is_unknown() && state == situation.state {
            return None;
        }
        let mut next = Situation { state, ..situation.clone() };
        let done = if event.is_unknown() { &mut next.perhaps } else { &mut next.known };
        done.insert(operation);
        self.let_readers_take_place(&mut next);
        Some(next)
    }

    /// Lets all take place that agrees with the state and does not change it.
    fn let_readers_take_place(&self, situation: &mut Situation<M::State>) {
        for operation in &self.under_way {
            let is_right = || self.model.apply(&situation.state, self.events[*operation]).is_some();
            if self.is_reading(*operation) && is_right() {
                situation.known.insert(*operation);
            }
        }
    }

    /// Whether an operation changes nothing, whenever it takes place.
    fn is_reading(&self, operation: usize) -> bool {
        let event = self.events[operation];
        match event.outcome {
            // It certainly had no effect: errors that leave this open count as unknown.
            HistoryOutcome::Failed(_) => true,
            HistoryOutcome::Done(_) => self.model.is_reading(event),
            HistoryOutcome::Unknown(_) => false,
        }
    }

    /// Notes what is possible now as what may be once more.
    fn remember(&mut self) {
        let present = self.present.iter().filter(|situation| !situation.is_taken_over);
        self.past.extend(present.cloned());
    }

    /// An operation that has ended is not repeated, whether it is lost or not. If it was synced, it is not lost.
    fn forget_in_past(&mut self, operation: usize) {
        let event = self.events[operation];
        let is_synced = event.results().is_some() && self.model.durability(event) == EventDurability::Synced;
        let is_in = |situation: &Situation<M::State>| situation.has(operation);
        if is_synced {
            self.past.retain(is_in);
        }
        let changed: Vec<_> = self.past.iter().filter(|situation| is_in(situation)).cloned().collect();
        for situation in changed {
            self.past.remove(&situation);
            self.past.insert(without(situation, operation));
        }
    }

    /// The filesystem may be now as it was at any earlier moment.
    fn lose_changes(&mut self) {
        let mut present = SituationSet::new();
        // What reads and is under way may have been answered before, by what is lost.
        let mut answered = OperationSet::new();
        for situation in &self.present {
            // Also as it is: the take-over may still come, or may have lost nothing.
            present.insert(situation);
            if !situation.is_taken_over {
                answered.extend(situation.known.iter().filter(|operation| self.is_reading(**operation)));
            }
        }
        for situation in &self.past {
            self.steps += 1;
            let mut taken_over = Situation { is_taken_over: true, ..situation.clone() };
            taken_over.known.extend(&answered);
            self.let_readers_take_place(&mut taken_over);
            present.insert(&taken_over);
        }
        self.present = present.into_vec();
    }
}

/// A situation after the end of an operation.
fn without<S>(mut situation: Situation<S>, operation: usize) -> Situation<S> {
    situation.known.remove(&operation);
    situation.perhaps.remove(&operation);
    situation
}

/// An operation that had to take place, and fitted nowhere.
struct StuckOperation {
    operation: usize,
    /// Some of the model's states before its end.
    states: String,
}

fn describe(events: &[&HistoryEvent], stuck: &StuckOperation, what: &str) -> HistoryViolation {
    let StuckOperation { operation, states } = stuck;
    let stuck = events[*operation];
    let mut near: Vec<_> = events.to_vec();
    near.sort_by_key(|event| event.start);
    let position = near.iter().position(|event| std::ptr::eq(*event, stuck)).unwrap_or_default();
    let shown = &near[position.saturating_sub(SHOWN)..near.len().min(position + SHOWN / 2)];
    let lines: String = shown.iter().map(|event| format!("\n    {event}")).collect();
    HistoryViolation(format!("{what} {stuck}; the state may have been {states}. Around it:{lines}"))
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

        fn is_reading(&self, _event: &HistoryEvent) -> bool {
            false
        }

        fn durability(&self, event: &HistoryEvent) -> EventDurability {
            match event.argument(1) {
                0 => EventDurability::OneCall,
                1 => EventDurability::Synced,
                _ => EventDurability::SeveralCalls,
            }
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
        let object = CheckedObject { name: "a cell", take_over: None };
        check_linearizable(&SwapModel, 0, &events.iter().collect::<Vec<_>>(), object).is_empty()
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

    /// Whether swaps are explained if a server was replaced from 100 to 200.
    fn is_explained_with_loss(logs: &[&str]) -> bool {
        let take_over = Some(TakeOver { start: 100, end: 200 });
        let events: Vec<_> =
            logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        let events: Vec<_> = events.iter().collect();
        check_linearizable(&SwapModel, 0, &events, CheckedObject { name: "a cell", take_over }).is_empty()
    }

    #[test]
    fn a_take_over_loses_the_last_changes_and_no_others() {
        let three = "I 1 swap 1\nD 2 0\nI 3 swap 2\nD 4 1\nI 5 swap 3\nD 6 2\n";
        for kept in 0..=3 {
            assert!(is_explained_with_loss(&[three, &format!("I 210 swap 9\nD 220 {kept}\n")]), "{kept}");
        }
        assert!(!is_explained_with_loss(&[three, "I 210 swap 9\nD 220 4\n"]));
        // Once, and not at another time.
        let later = "I 210 swap 9\nD 220 2\nI 230 swap 10\nD 240 2\n";
        assert!(!is_explained_with_loss(&[three, later]));
        assert!(!is_explained_with_loss(&[three, "I 50 swap 9\nD 60 2\n"]));
    }

    #[test]
    fn a_take_over_does_not_lose_what_was_synced_nor_what_was_before_it() {
        let three = "I 1 swap 1\nD 2 0\nI 3 swap 2 1\nD 4 1\nI 5 swap 3\nD 6 2\n";
        for (kept, expected) in [(0, false), (1, false), (2, true), (3, true)] {
            let after = format!("I 210 swap 9\nD 220 {kept}\n");
            assert_eq!(is_explained_with_loss(&[three, &after]), expected, "{kept}");
        }
    }

    #[test]
    fn what_is_under_way_in_a_take_over_takes_place_again() {
        let one = "I 1 swap 1\nD 2 0\nI 3 swap 2\nD 300 1\n";
        // Another saw it before, what that did is lost, and it takes place after the take-over.
        assert!(is_explained_with_loss(&[one, "I 5 swap 3\nD 6 2\nI 310 swap 4\nD 320 2\n"]));
        // It has to take place.
        assert!(!is_explained_with_loss(&[one, "I 5 swap 3\nD 6 2\nI 310 swap 4\nD 320 1\n"]));
        // Unless it is several calls, of which the one that changed something was answered before.
        let several = "I 1 swap 1\nD 2 0\nI 3 swap 2 2\nD 300 1\n";
        assert!(is_explained_with_loss(&[several, "I 5 swap 3\nD 6 2\nI 310 swap 4\nD 320 1\n"]));
    }
}

//! Changes that the server has answered and that no `fsync` has made durable since.
//!
//! A server that is lost with its machine takes along what was not in its log. The next one says which of a client's
//! requests it found carried out; what was answered and is not among them is gone.
//!
//! Invariant: the first `fsync` of a node whose changes are gone fails, and so does the first one of each thread that made
//! them, instead of saying that they are durable. Programs that have one directory in common would otherwise take the error from
//! each other.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::protocol::lease::Lease;

/// Nodes of which changes are noted, a count. Of more, it is only known that there are some.
const NODES_MAX: usize = 1 << 16;
/// Changes of one node that are noted for different threads, a count. Of more, only the newest ones are.
const CHANGES_MAX: usize = 256;

/// The changes of a client.
#[derive(Debug, Default)]
pub struct UnsyncedChanges {
    /// Answers that were noted so far: the order of answers and requests in time.
    answers: u64,
    nodes: HashMap<u64, Vec<AnsweredChange>>,
    /// The newest change of a node that had no room.
    untracked: Option<AnsweredChange>,
    lost: HashMap<u64, NodeLoss>,
    /// Changes of nodes that had no room are gone: it may have been any node.
    is_any_lost: bool,
}

/// A change that was answered.
#[derive(Debug, Clone, Copy)]
struct AnsweredChange {
    /// The request.
    number: u64,
    /// Answers before and with this one.
    answers: u64,
    /// The thread that made it.
    thread: u32,
}

/// What is gone of a node.
#[derive(Debug, Default)]
struct NodeLoss {
    /// Whose changes, as far as they have not learned it.
    threads: HashSet<u32>,
    /// Whether anybody has learned it.
    is_told: bool,
}

impl UnsyncedChanges {
    /// Whether an `fsync` would make nothing durable, and none has to fail.
    pub fn is_empty(&self) -> bool {
        let is_any_lost = self.is_any_lost || !self.lost.is_empty();
        self.nodes.is_empty() && self.untracked.is_none() && !is_any_lost
    }

    /// A moment: what was answered before it, an `fsync` that is sent after it makes durable.
    pub fn now(&self) -> u64 {
        self.answers
    }

    /// A change of a thread was answered with success, whose request was added at `since`.
    pub fn record_change(&mut self, number: u64, thread: u32, changed: &[Lease], since: u64) {
        if changed.is_empty() {
            return;
        }
        self.answers += 1;
        let change = AnsweredChange { number, answers: self.answers, thread };
        for lease in changed {
            let (Lease::Node(node) | Lease::Names(node)) = *lease;
            if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
                // The newest stands for all: if that one is there, the earlier ones stand before it in the log.
                self.untracked = Some(change);
                continue;
            }
            let changes = self.nodes.entry(node).or_default();
            // An earlier one that was answered before this one was sent stands before it in the log. Others may stand
            // behind it, and be gone although this one is not.
            // Those of other threads stay all the same: only from them it is known who has to learn of a loss.
            let is_full = changes.len() >= CHANGES_MAX;
            changes.retain(|earlier| {
                let is_covered = earlier.answers <= since && (is_full || earlier.thread == thread);
                !is_covered && earlier.number != number
            });
            changes.push(change);
        }
    }

    /// An `fsync` that was added at `since` has succeeded: it has made durable what was done before, whatever it concerned.
    pub fn record_sync(&mut self, since: u64) {
        // Of all nodes, since the log has one order: durable up to a point means durable whatever stands before it.
        self.nodes.retain(|_, changes| {
            changes.retain(|change| change.answers > since);
            !changes.is_empty()
        });
        self.untracked = self.untracked.filter(|change| change.answers > since);
    }

    /// Another process serves, which found these requests carried out.
    pub fn note_other_server(&mut self, carried_out: &BTreeSet<u64>) {
        // A server keeps the marks of more requests than can be under way, and removes the oldest ones first.
        let is_gone = |change: &AnsweredChange| {
            !carried_out.contains(&change.number)
                && carried_out.first().is_none_or(|oldest| *oldest <= change.number)
        };
        let lost = &mut self.lost;
        // Who has not asked since the loss before does not mean to sync.
        lost.retain(|_, loss| !loss.is_told);
        self.nodes.retain(|node, changes| {
            let threads: HashSet<_> =
                changes.iter().filter(|change| is_gone(change)).map(|change| change.thread).collect();
            let is_lost = !threads.is_empty();
            if is_lost {
                // Noted by node, and not by file handle: any program that syncs the file has to learn it, whoever wrote.
                lost.entry(*node).or_default().threads.extend(threads);
            }
            !is_lost
        });
        if self.untracked.as_ref().is_some_and(is_gone) {
            self.untracked = None;
            self.is_any_lost = true;
        }
    }

    /// Whether an `fsync` of a node by a thread has to fail.
    pub fn is_lost(&self, node: u64, thread: u32) -> bool {
        let is_lost = |loss: &NodeLoss| !loss.is_told || loss.threads.contains(&thread);
        self.is_any_lost || self.lost.get(&node).is_some_and(is_lost)
    }

    /// The same, for the `fsync` that is about to. It does so once: a program that goes on writes again, or gives up.
    pub fn take_loss(&mut self, node: u64, thread: u32) -> bool {
        let Some(loss) = self.lost.get_mut(&node) else { return std::mem::take(&mut self.is_any_lost) };
        let is_own = loss.threads.remove(&thread);
        let fails = is_own || !loss.is_told;
        loss.is_told = true;
        if loss.threads.is_empty() {
            self.lost.remove(&node);
        }
        fails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 40;
    const FILE: [Lease; 1] = [Lease::Node(5)];
    const OTHER: [Lease; 1] = [Lease::Node(6)];
    const DIR: [Lease; 2] = [Lease::Node(1), Lease::Names(1)];

    fn marks(numbers: &[u64]) -> BTreeSet<u64> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn what_the_next_server_does_not_have_fails_once() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, THREAD, &DIR, changes.now());
        changes.record_change(4, THREAD, &FILE, changes.now());
        changes.record_change(5, THREAD, &OTHER, changes.now());
        changes.note_other_server(&marks(&[3, 4]));
        assert_eq!([1, 5, 6, 6].map(|node| changes.take_loss(node, THREAD)), [false, false, true, false]);
        // What the next one has is not durable there either.
        changes.note_other_server(&marks(&[3]));
        assert_eq!([1, 5, 6].map(|node| changes.take_loss(node, THREAD)), [false, true, false]);
    }

    #[test]
    fn what_was_synced_is_not_missed() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, THREAD, &FILE, changes.now());
        let sync = changes.now();
        changes.record_change(5, THREAD, &OTHER, sync);
        changes.record_sync(sync);
        changes.note_other_server(&marks(&[]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node, THREAD)), [false, true]);
    }

    #[test]
    fn a_request_whose_mark_was_removed_for_age_was_carried_out() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, THREAD, &FILE, 0);
        changes.record_change(200, THREAD, &OTHER, changes.now());
        changes.note_other_server(&marks(&[72, 200]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node, THREAD)), [false, false]);
    }

    #[test]
    fn of_changes_at_the_same_time_each_counts() {
        let mut changes = UnsyncedChanges::default();
        let since = changes.now();
        changes.record_change(4, THREAD, &FILE, since);
        changes.record_change(3, THREAD, &FILE, since);
        changes.note_other_server(&marks(&[3]));
        assert!(changes.take_loss(5, THREAD), "the log ended between the two");
    }

    #[test]
    fn each_thread_whose_change_is_gone_learns_it() {
        let mut changes = UnsyncedChanges::default();
        for thread in 40..44_u32 {
            changes.record_change(u64::from(thread), thread, &DIR, changes.now());
        }
        changes.note_other_server(&marks(&[40]));
        // The log had the change of the first one, which learns nothing once somebody has learned it.
        assert!(
            [41, 43, 41, 40, 42, 42].map(|thread| changes.take_loss(1, thread))
                == [true, true, false, false, true, false]
        );
        assert!(!changes.take_loss(1, 99) && changes.is_empty());
        // Another thread of the program may be the one that syncs.
        changes.record_change(50, 40, &FILE, changes.now());
        changes.note_other_server(&marks(&[]));
        assert_eq!([99, 99, 40].map(|thread| changes.take_loss(5, thread)), [true, false, true]);
    }

    #[test]
    fn changes_of_many_threads_take_bounded_room() {
        let mut changes = UnsyncedChanges::default();
        for thread in 0..1000_u32 {
            changes.record_change(u64::from(thread), thread, &FILE, changes.now());
        }
        assert!(changes.nodes[&5].len() <= CHANGES_MAX);
        changes.note_other_server(&marks(&[]));
        assert!(changes.take_loss(5, 1) && changes.take_loss(5, 999));
    }

    #[test]
    fn nodes_without_room_fail_the_next_sync_of_any() {
        let mut changes = UnsyncedChanges::default();
        for node in 0..=NODES_MAX as u64 {
            changes.record_change(node + 1, THREAD, &[Lease::Node(node)], changes.now());
        }
        let all: BTreeSet<u64> = (1..=NODES_MAX as u64).collect();
        changes.note_other_server(&all);
        assert_eq!([3, 3].map(|node| changes.take_loss(node, THREAD)), [true, false]);
    }
}

//! Changes that the server has answered and that no `fsync` has made durable since.
//!
//! A server that is lost with its machine takes along what was not in its log. The next one says which of a client's
//! requests it found carried out; what was answered and is not among them is gone.
//!
//! Invariant: `fsync` of a node whose changes are gone fails once, instead of saying that they are durable.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::protocol::lease::Lease;

/// Nodes of which changes are noted, a count. Of more, it is only known that there are some.
const NODES_MAX: usize = 1 << 16;

/// The changes of a client.
#[derive(Debug, Default)]
pub struct UnsyncedChanges {
    /// Answers that were noted so far: the order of answers and requests in time.
    answers: u64,
    nodes: HashMap<u64, Vec<AnsweredChange>>,
    /// The newest change of a node that had no room.
    untracked: Option<AnsweredChange>,
    lost: HashSet<u64>,
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

    /// A change was answered with success, whose request was added at `since`.
    pub fn record_change(&mut self, number: u64, changed: &[Lease], since: u64) {
        if changed.is_empty() {
            return;
        }
        self.answers += 1;
        let change = AnsweredChange { number, answers: self.answers };
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
            changes.retain(|earlier| earlier.answers > since && earlier.number != number);
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
        self.nodes.retain(|node, changes| {
            let is_lost = changes.iter().any(is_gone);
            if is_lost {
                // Noted by node, and not by file handle: any program that syncs the file has to learn it, whoever wrote.
                lost.insert(*node);
            }
            !is_lost
        });
        if self.untracked.as_ref().is_some_and(is_gone) {
            self.untracked = None;
            self.is_any_lost = true;
        }
    }

    /// Whether an `fsync` of a node has to fail.
    pub fn is_lost(&self, node: u64) -> bool {
        self.is_any_lost || self.lost.contains(&node)
    }

    /// The same, for the `fsync` that is about to. It does so once: a program that goes on writes again, or gives up.
    pub fn take_loss(&mut self, node: u64) -> bool {
        self.lost.remove(&node) || std::mem::take(&mut self.is_any_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: [Lease; 1] = [Lease::Node(5)];
    const OTHER: [Lease; 1] = [Lease::Node(6)];
    const DIR: [Lease; 2] = [Lease::Node(1), Lease::Names(1)];

    fn marks(numbers: &[u64]) -> BTreeSet<u64> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn what_the_next_server_does_not_have_fails_once() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &DIR, changes.now());
        changes.record_change(4, &FILE, changes.now());
        changes.record_change(5, &OTHER, changes.now());
        changes.note_other_server(&marks(&[3, 4]));
        assert_eq!([1, 5, 6, 6].map(|node| changes.take_loss(node)), [false, false, true, false]);
        // What the next one has is not durable there either.
        changes.note_other_server(&marks(&[3]));
        assert_eq!([1, 5, 6].map(|node| changes.take_loss(node)), [false, true, false]);
    }

    #[test]
    fn what_was_synced_is_not_missed() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &FILE, changes.now());
        let sync = changes.now();
        changes.record_change(5, &OTHER, sync);
        changes.record_sync(sync);
        changes.note_other_server(&marks(&[]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node)), [false, true]);
    }

    #[test]
    fn a_request_whose_mark_was_removed_for_age_was_carried_out() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &FILE, 0);
        changes.record_change(200, &OTHER, changes.now());
        changes.note_other_server(&marks(&[72, 200]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node)), [false, false]);
    }

    #[test]
    fn of_changes_at_the_same_time_each_counts() {
        let mut changes = UnsyncedChanges::default();
        let since = changes.now();
        changes.record_change(4, &FILE, since);
        changes.record_change(3, &FILE, since);
        changes.note_other_server(&marks(&[3]));
        assert!(changes.take_loss(5), "the log ended between the two");
    }

    #[test]
    fn nodes_without_room_fail_the_next_sync_of_any() {
        let mut changes = UnsyncedChanges::default();
        for node in 0..=NODES_MAX as u64 {
            changes.record_change(node + 1, &[Lease::Node(node)], changes.now());
        }
        let all: BTreeSet<u64> = (1..=NODES_MAX as u64).collect();
        changes.note_other_server(&all);
        assert_eq!([3, 3].map(|node| changes.take_loss(node)), [true, false]);
    }
}

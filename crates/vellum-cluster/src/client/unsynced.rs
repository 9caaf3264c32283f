//! Changes that the server has answered and that no `fsync` has made durable since.
//!
//! A server that is lost with its machine takes along what was not in its log. The next one says which of a client's
//! requests it found carried out; what was answered and is not among them is gone.
//!
//! Invariant: of each node whose changes are gone, the first `fsync` fails, and so does the first one of each thread and each
//! process that ran when they were lost, instead of saying that they are durable. It does not matter who made the changes:
//! programs write in one thread and sync in another, and many have one directory in common.

use std::collections::{BTreeSet, HashMap, HashSet};

use vellum_host::process::{find_process_of_thread, read_process_start, ticks_since_boot};

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
}

/// Changes of a node are gone.
#[derive(Debug)]
struct NodeLoss {
    /// When that became known, in ticks since the boot. Who started later has not made them.
    ticks: u64,
    /// Threads that have learned it.
    threads: HashSet<u32>,
    /// Processes of which a thread has learned it.
    processes: HashSet<u32>,
}

/// A thread that calls `fsync`. Starts are in ticks since the boot, and 0 if they are not known: it counts as an early one.
#[derive(Debug, Clone, Copy)]
pub struct SyncingThread {
    thread: u32,
    thread_start: u64,
    process: u32,
    process_start: u64,
}

impl SyncingThread {
    /// Reads what the kernel says of a thread.
    pub fn read(thread: u32) -> Self {
        // A thread of another PID namespace is not seen, and has the number 0.
        let process = find_process_of_thread(thread).unwrap_or(0);
        let read_start = |number| if number == 0 { 0 } else { read_process_start(number) };
        Self { thread, thread_start: read_start(thread), process, process_start: read_start(process) }
    }
}

impl NodeLoss {
    fn has_to_fail(&self, caller: &SyncingThread) -> bool {
        let thread_knows = self.threads.contains(&caller.thread) || caller.thread_start > self.ticks;
        let process_knows = self.processes.contains(&caller.process) || caller.process_start > self.ticks;
        // Only those that ran at the time learn it each by themselves: a program with a new thread for each file would otherwise
        // never succeed again.
        self.threads.is_empty() || !thread_knows || !process_knows
    }
}

impl UnsyncedChanges {
    /// Whether an `fsync` would make nothing durable, and there is no loss of which nobody has learned.
    pub fn is_empty(&self) -> bool {
        let is_any_lost = self.is_any_lost || self.lost.values().any(|loss| loss.threads.is_empty());
        self.nodes.is_empty() && self.untracked.is_none() && !is_any_lost
    }

    /// Whether an `fsync` of a node would make anything durable, or may have to fail.
    pub fn has_to_sync(&self, node: u64) -> bool {
        !self.is_empty() || self.lost.contains_key(&node)
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
        // Who has not synced since the loss before does not mean to.
        lost.retain(|_, loss| loss.threads.is_empty());
        let ticks = ticks_since_boot();
        self.nodes.retain(|node, changes| {
            let is_lost = changes.iter().any(is_gone);
            if is_lost {
                // Noted by node, and not by file handle: any program that syncs the file has to learn it, whoever wrote.
                lost.insert(*node, NodeLoss { ticks, threads: HashSet::new(), processes: HashSet::new() });
            }
            !is_lost
        });
        if self.untracked.as_ref().is_some_and(is_gone) {
            self.untracked = None;
            self.is_any_lost = true;
        }
    }

    /// Whether an `fsync` of a node by a thread has to fail.
    pub fn is_lost(&self, node: u64, caller: impl FnOnce() -> SyncingThread) -> bool {
        self.is_any_lost || self.lost.get(&node).is_some_and(|loss| loss.has_to_fail(&caller()))
    }

    /// The same, for the `fsync` that is about to. It does so once: a program that goes on writes again, or gives up.
    pub fn take_loss(&mut self, node: u64, caller: impl FnOnce() -> SyncingThread) -> bool {
        let Some(loss) = self.lost.get_mut(&node) else { return std::mem::take(&mut self.is_any_lost) };
        // Only now, since it is read from the kernel, and hardly ever is anything lost.
        let caller = caller();
        let fails = loss.has_to_fail(&caller);
        if fails {
            loss.threads.insert(caller.thread);
            loss.processes.insert(caller.process);
        }
        fails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: [Lease; 1] = [Lease::Node(5)];
    const OTHER: [Lease; 1] = [Lease::Node(6)];
    const DIR: [Lease; 2] = [Lease::Node(1), Lease::Names(1)];

    /// A thread of process 30 that has always run.
    fn caller(thread: u32) -> SyncingThread {
        SyncingThread { thread, thread_start: 1, process: 30, process_start: 1 }
    }

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
        assert_eq!(
            [1, 5, 6, 6].map(|node| changes.take_loss(node, || caller(40))),
            [false, false, true, false]
        );
        // What the next one has is not durable there either.
        changes.note_other_server(&marks(&[3]));
        assert_eq!([1, 5, 6].map(|node| changes.take_loss(node, || caller(40))), [false, true, false]);
    }

    #[test]
    fn what_was_synced_is_not_missed() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &FILE, changes.now());
        let sync = changes.now();
        changes.record_change(5, &OTHER, sync);
        changes.record_sync(sync);
        changes.note_other_server(&marks(&[]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node, || caller(40))), [false, true]);
    }

    #[test]
    fn a_request_whose_mark_was_removed_for_age_was_carried_out() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &FILE, 0);
        changes.record_change(200, &OTHER, changes.now());
        changes.note_other_server(&marks(&[72, 200]));
        assert_eq!([5, 6].map(|node| changes.take_loss(node, || caller(40))), [false, false]);
    }

    #[test]
    fn of_changes_at_the_same_time_each_counts() {
        let mut changes = UnsyncedChanges::default();
        let since = changes.now();
        changes.record_change(4, &FILE, since);
        changes.record_change(3, &FILE, since);
        changes.note_other_server(&marks(&[3]));
        assert!(changes.take_loss(5, || caller(40)), "the log ended between the two");
    }

    #[test]
    fn each_thread_and_process_that_ran_learns_of_a_loss() {
        let mut changes = UnsyncedChanges::default();
        changes.record_change(3, &DIR, changes.now());
        changes.note_other_server(&marks(&[]));
        let late = |thread, process, process_start| SyncingThread {
            thread,
            thread_start: u64::MAX,
            process,
            process_start,
        };
        assert!(changes.take_loss(1, || late(90, 90, u64::MAX)), "the first one fails, whoever it is");
        // Threads that ran at that time, of one process; then the same again.
        assert_eq!(
            [41, 43, 41, 40, 43].map(|thread| changes.take_loss(1, || caller(thread))),
            [true, true, false, true, false]
        );
        // A new thread of a process that knows, one of a process that does not, and then another one of that.
        assert_eq!(
            [(50, 30), (51, 31), (52, 31)].map(|(thread, own)| changes.take_loss(1, || late(thread, own, 1))),
            [false, true, false]
        );
        assert!(!changes.take_loss(1, || late(91, 91, u64::MAX)), "it started when the loss was known");
        assert!(changes.is_empty() && changes.has_to_sync(1) && !changes.has_to_sync(5));
    }

    #[test]
    fn a_thread_is_told_by_what_the_kernel_says_of_it() {
        let own = SyncingThread::read(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        assert_eq!(own.process, std::process::id());
        assert!(own.process_start > 0 && own.process_start <= own.thread_start);
        assert!(own.thread_start <= ticks_since_boot());
        let unseen = SyncingThread::read(0);
        assert_eq!((unseen.process, unseen.thread_start, unseen.process_start), (0, 0, 0));
    }

    #[test]
    fn nodes_without_room_fail_the_next_sync_of_any() {
        let mut changes = UnsyncedChanges::default();
        for node in 0..=NODES_MAX as u64 {
            changes.record_change(node + 1, &[Lease::Node(node)], changes.now());
        }
        let all: BTreeSet<u64> = (1..=NODES_MAX as u64).collect();
        changes.note_other_server(&all);
        assert_eq!([3, 3].map(|node| changes.take_loss(node, || caller(40))), [true, false]);
    }
}

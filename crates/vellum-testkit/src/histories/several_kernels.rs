//! What kernels answer by themselves, without asking the filesystem, where several machines mount it.
//!
//! **Renames without an effect.** Before a rename, Linux looks up both names, one after the other. If both are the same file,
//! POSIX wants success and no effect, and Linux gives it by itself. If the machine beside it moves the file from the one name to
//! the other between the two lookups, the kernel finds the same file twice. Nothing that the filesystem does can prevent that,
//! on any network filesystem. On one kernel it cannot happen: lookups and renames of one directory exclude each other there.
//!
//! **Renames that may not replace.** For the same reason a kernel answers by itself that the target exists, where the source was
//! moved to it between the two lookups: each of the two was there when it was looked up, and never both at once.
//!
//! **Moves of directories that are refused.** Whether a directory would be moved into itself, Linux judges by the tree that it
//! has in memory, in which a directory stands where it was looked up last on this machine. And where it finds a directory at
//! another place than before, it moves it there in its memory first, which it refuses while a rename on the same machine holds
//! the locks that this takes, or if in its memory that would make a circle.

use super::HistoryKind;
use super::event::{HistoryEvent, HistoryOutcome};

/// The events, with those renames as unknown that may have had no effect: another client renamed something to their
/// target meanwhile. All others stay as they are.
pub(super) fn doubt_idle_renames(kind: HistoryKind, events: &[HistoryEvent]) -> Vec<HistoryEvent> {
    let mut doubted = events.to_vec();
    for event in &mut doubted {
        let is_idle = |other: &HistoryEvent| {
            other.client != event.client
                && !other.is_before(event)
                && !event.is_before(other)
                && is_moved_to_target(kind, event, other)
        };
        if event.results().is_some() && events.iter().any(is_idle) {
            // It keeps its end: it has its effect until then, or none.
            event.outcome = HistoryOutcome::Unknown(None);
        }
    }
    doubted
}

/// The events, with what a kernel saw of two names one after the other, instead of a move that failed because its target
/// exists.
pub(super) fn split_refused_moves(kind: HistoryKind, events: Vec<HistoryEvent>) -> Vec<HistoryEvent> {
    let split = |event: HistoryEvent| {
        let is_refused = event.name == "move" && event.outcome == HistoryOutcome::Failed(libc::EEXIST);
        if kind != HistoryKind::Directory || !is_refused {
            return vec![event];
        }
        let seen = |name: u64| HistoryEvent {
            name: "present".into(),
            arguments: vec![name],
            outcome: HistoryOutcome::Done(Vec::new()),
            ..event.clone()
        };
        event.arguments.iter().map(|name| seen(*name)).collect()
    };
    events.into_iter().flat_map(split).collect()
}

/// Errors by which a kernel refuses to move a directory into itself, as far as it knows the tree.
const REFUSED_CIRCLES: [i32; 3] = [libc::EINVAL, libc::ENOTEMPTY, libc::ELOOP];
/// Errors of a lookup of a directory that the kernel knows at another place.
const REFUSED_LOOKUPS: [i32; 4] = [libc::ESTALE, libc::ELOOP, libc::ENOENT, libc::EBUSY];

/// The events without the moves and looks that a kernel has refused by itself: they had no effect, and say nothing about the
/// filesystem. All others stay, and have to be explained: also a move that failed while nobody else moved anything.
pub(super) fn leave_out_misjudged_moves(kind: HistoryKind, events: Vec<HistoryEvent>) -> Vec<HistoryEvent> {
    if kind != HistoryKind::Moves {
        return events;
    }
    let is_misjudged = |event: &HistoryEvent| {
        let (HistoryOutcome::Failed(errno) | HistoryOutcome::Unknown(Some(errno))) = event.outcome else {
            return false;
        };
        let is_moved_meanwhile = |other: &HistoryEvent| {
            other.name == "move"
                && other.client != event.client
                && !other.is_before(event)
                && !event.is_before(other)
        };
        // The kernel's tree may have been out of date for any time, so that no other move need be under way.
        let is_circle = event.name == "move" && REFUSED_CIRCLES.contains(&errno);
        let is_lookup = REFUSED_LOOKUPS.contains(&errno);
        is_circle || (is_lookup && events.iter().any(is_moved_meanwhile))
    };
    let misjudged: Vec<bool> = events.iter().map(is_misjudged).collect();
    events
        .into_iter()
        .zip(misjudged)
        .filter(|(_, is_misjudged)| !is_misjudged)
        .map(|(event, _)| event)
        .collect()
}

/// Whether `event` is a rename whose target may have become its source's file by `other`.
fn is_moved_to_target(kind: HistoryKind, event: &HistoryEvent, other: &HistoryEvent) -> bool {
    match kind {
        HistoryKind::Directory => {
            // `move` refuses a target that exists.
            let is_rename = ["rename", "exchange"].contains(&event.name.as_str());
            let moves_to = |name| match other.name.as_str() {
                "rename" | "move" => other.argument(1) == name,
                "exchange" => other.arguments.contains(&name),
                _ => false,
            };
            is_rename && moves_to(event.argument(1))
        }
        HistoryKind::Moves => {
            let is_same = event.argument(0) == other.argument(0) && event.argument(2) == other.argument(2);
            event.name == "move" && other.name == "move" && is_same
        }
        HistoryKind::Register
        | HistoryKind::Append
        | HistoryKind::Counter
        | HistoryKind::Durable
        | HistoryKind::Visible
        | HistoryKind::Held
        | HistoryKind::Ranges
        | HistoryKind::Snapshots => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn is_found(several_kernels: bool, logs: &[&str]) -> bool {
        let kind = HistoryKind::Directory;
        let events: Vec<_> =
            logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        let events = if several_kernels {
            split_refused_moves(kind, doubt_idle_renames(kind, &events))
        } else {
            events
        };
        !kind.check(&events, None).is_empty()
    }

    #[test]
    fn a_rename_beside_another_one_to_its_target_may_have_no_effect() {
        let made = "I 1 symlink 2 77\nD 2\n";
        let logs = [made, "I 10 move 2 3\nD 20\n", "I 11 exchange 2 3\nD 19\nI 21 look 3\nD 22 77\n"];
        assert!(!is_found(true, &logs));
        assert!(is_found(false, &logs));
    }

    #[test]
    fn the_names_of_a_refused_move_may_have_been_there_one_after_the_other() {
        let made = "I 1 symlink 2 77\nD 2\n";
        let logs = [made, "I 10 rename 2 3\nD 20\n", "I 11 move 2 3\nF 19 17\n"];
        assert!(!is_found(true, &logs));
        assert!(is_found(false, &logs));
        // Both have to have been there.
        assert!(is_found(true, &[made, "I 10 unlink 2\nD 20\n", "I 11 move 2 3\nF 19 17\n"]));
    }

    #[test]
    fn an_exchange_beside_another_one_may_have_no_effect() {
        let made = "I 1 symlink 2 77\nD 2\nI 3 symlink 3 78\nD 4\n";
        let logs = [made, "I 10 exchange 2 3\nD 20\n", "I 11 exchange 2 3\nD 19\nI 21 look 3\nD 22 77\n"];
        assert!(!is_found(true, &logs));
        assert!(is_found(false, &logs));
    }

    #[test]
    fn a_rename_by_itself_has_its_effect() {
        let made = "I 1 symlink 2 77\nD 2\nI 3 move 2 3\nD 4\n";
        assert!(is_found(true, &[made, "I 11 exchange 2 3\nD 19\n"]));
        // What is renamed meanwhile goes elsewhere.
        let elsewhere = "I 1 symlink 2 77\nD 2\nI 5 symlink 0 78\nD 6\nI 10 move 0 1\nD 20\n";
        assert!(is_found(true, &[elsewhere, "I 11 exchange 2 3\nD 19\n"]));
    }

    fn kept(logs: &[&str]) -> usize {
        let events = logs.iter().enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        leave_out_misjudged_moves(HistoryKind::Moves, events).len()
    }

    #[test]
    fn moves_that_a_kernel_refuses_by_itself_say_nothing() {
        // By a tree that it does not know any better.
        assert_eq!(kept(&["I 1 move 0 6 1\nF 2 22\n"]), 0);
        // While another machine moves something.
        let other = "I 3 move 2 6 1\nD 5\n";
        assert_eq!(kept(&["I 1 move 0 6 1\nF 4 2\nI 4 look 0 6\nU 6 116\n", other]), 1);
    }

    #[test]
    fn moves_that_fail_by_themselves_have_to_be_explained() {
        let before = "I 1 move 2 6 1\nD 2\n";
        assert_eq!(kept(&["I 3 move 0 6 1\nF 4 2\nI 5 look 0 6\nU 6 116\n", before]), 3);
        // Not of another machine, and not without effect.
        assert_eq!(kept(&["I 1 move 0 6 1\nU 4 5\n", "I 3 move 2 6 1\nD 5\n"]), 2);
    }
}

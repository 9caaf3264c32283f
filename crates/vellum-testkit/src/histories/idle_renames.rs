//! Renames that a kernel reports as done without asking the filesystem.
//!
//! Before a rename, Linux looks up both names, one after the other. If both are the same file, POSIX wants success and no
//! effect, and Linux gives it by itself. If the machine beside it moves the file from the one name to the other between the
//! two lookups, the kernel finds the same file twice. Nothing that the filesystem does can prevent that, on any network
//! filesystem. On one kernel it cannot happen: lookups and renames of one directory exclude each other there.

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
            // It keeps its end: it has its effect until then, or where it cannot have one, none.
            event.outcome = HistoryOutcome::Unknown(None);
        }
    }
    doubted
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
        | HistoryKind::Visible => false,
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
        let events = if several_kernels { doubt_idle_renames(kind, &events) } else { events };
        !kind.check(&events).is_empty()
    }

    #[test]
    fn a_rename_beside_another_one_to_its_target_may_have_no_effect() {
        let made = "I 1 symlink 2 77\nD 2\n";
        let logs = [made, "I 10 move 2 3\nD 20\n", "I 11 exchange 2 3\nD 19\nI 21 look 3\nD 22 77\n"];
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
}

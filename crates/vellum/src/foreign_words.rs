//! Words of other tools that are no commands of Vellum, and the commands that do the same here.
//!
//! Invariant: a word here is never the name of a command; a test runs each command that is named.

/// A word, and how Vellum does it.
const WORDS: [(&str, &str); 33] = [
    ("add", "'vellum snapshot' records everything in the directory; '.vellumignore' has exceptions"),
    ("backup", "'vellum snapshot' records the directory; 'vellum push' sends snapshots to another store"),
    ("blame", "'vellum find NAME' shows which snapshots have a file, and 'vellum diff' what changed in it"),
    ("branch", "'vellum fork NAME --to DIR' starts a line of its own; 'vellum worktree list' shows all"),
    ("check", "'vellum verify' checks snapshots; '--all' reads every byte"),
    (
        "checkout",
        "'vellum restore SNAP' goes to a snapshot; 'vellum fork NAME --to DIR' starts a line of its own",
    ),
    ("clean", "'vellum gc run' deletes what no snapshot needs"),
    ("commit", "'vellum snapshot -m TEXT' records the directory"),
    ("copy", "'vellum push' sends snapshots to another store; 'vellum sync' copies directories"),
    ("create", "'vellum snapshot' records the directory; 'vellum init' makes a volume"),
    ("delete", "'vellum forget SNAP' takes a snapshot out of the history"),
    (
        "du",
        "'vellum usage' shows what snapshots, worktrees and paths take; 'vellum info' how large the store is",
    ),
    ("extract", "'vellum export SNAP --to DIR' writes a snapshot to a directory"),
    ("fetch", "'vellum pull' gets the snapshots of a remote"),
    ("format", "'vellum init' makes a volume"),
    ("fsck", "'vellum verify --all' reads and checks every byte"),
    ("list", "'vellum history' lists snapshots; 'vellum ls SNAP' lists files"),
    ("log", "'vellum history' lists snapshots"),
    (
        "prune",
        "'vellum forget --keep-daily 7' takes snapshots out of the history; 'vellum gc run' frees their space",
    ),
    ("rebase", "'vellum merge' brings two lines together"),
    ("receive", "'vellum pull' gets the snapshots of a remote"),
    (
        "recover",
        "'vellum verify' says what is missing; 'vellum snapshot' stores again what the directory has of it",
    ),
    ("reset", "'vellum restore SNAP' goes to a snapshot; it keeps what no snapshot holds in one of its own"),
    ("revert", "'vellum restore SNAP PATH' brings back what a snapshot has"),
    (
        "rollback",
        "'vellum restore SNAP' goes to a snapshot; it keeps what no snapshot holds in one of its own",
    ),
    ("save", "'vellum snapshot' records the directory"),
    ("scrub", "'vellum verify --all' reads and checks every byte"),
    ("send", "'vellum push' sends snapshots to a remote"),
    ("snapshots", "'vellum history' lists snapshots"),
    (
        "stash",
        "'vellum snapshot' keeps what there is, and 'vellum restore HEAD~1' goes back to what was before",
    ),
    (
        "switch",
        "'vellum restore SNAP' goes to a snapshot; 'vellum fork NAME --to DIR' starts a line of its own",
    ),
    ("unmount", "'vellum umount DIR' ends a mount"),
    ("workspace", "'vellum worktree list' shows worktrees; 'vellum fork NAME --to DIR' makes one"),
];

/// How Vellum does what another tool has this word for.
pub fn find_own_way(word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(foreign, _)| *foreign == word).map(|(_, way)| *way)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use clap::{CommandFactory, Parser, error::ErrorKind};

    use super::*;
    use crate::cli::CommandLine;

    #[test]
    fn no_word_hides_a_command() {
        for (word, _) in WORDS {
            assert!(CommandLine::command().find_subcommand(word).is_none(), "{word}");
        }
    }

    #[test]
    fn what_is_recommended_is_understood() {
        for (word, way) in WORDS {
            let commands: Vec<_> = way.split('\'').filter(|part| part.starts_with("vellum ")).collect();
            assert!(!commands.is_empty(), "{word}");
            for command in commands {
                let parsed = CommandLine::try_parse_from(command.split(' '));
                // What is named alone may need more words, which its help tells.
                let is_known =
                    parsed.is_ok() || parsed.unwrap_err().kind() == ErrorKind::MissingRequiredArgument;
                assert!(is_known, "{word}: {command}");
            }
        }
    }

    #[test]
    fn the_page_for_users_of_other_tools_names_commands_that_exist() {
        let page = include_str!("../../../docs/coming-from.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix('|')?.split_once(" | "));
        let commands: Vec<_> =
            rows.flat_map(|(_, ours)| ours.split('`').filter(|part| part.starts_with("vellum "))).collect();
        assert!(commands.len() > 40, "{commands:?}");
        for command in commands {
            let parsed = CommandLine::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
    }
}

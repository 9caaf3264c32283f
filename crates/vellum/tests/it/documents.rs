//! Examples of documents that are run as they are written. (That all others are understood is a test of the parser.)

use crate::world::World;

const SETTINGS: &str = include_str!("../../../../docs/settings.md");
const RETENTION: &str = include_str!("../../../../docs/retention.md");
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// The first block of commands below a heading, or of the whole document.
fn find_block<'d>(document: &'d str, heading: &str) -> &'d str {
    let (_, below) = document.split_once(heading).unwrap();
    below.split("```\n").nth(1).unwrap()
}

/// Runs the commands of a block; gives them and what they printed.
fn run_block(world: &World, block: &str) -> String {
    let has_prompt = block.starts_with("$ ");
    let typed =
        block.lines().filter_map(|line| if has_prompt { line.strip_prefix("$ ") } else { Some(line) });
    let mut printed = String::new();
    for line in typed {
        let command = line.split(" #").next().unwrap();
        let words: Vec<_> = command.split_whitespace().skip(1).collect();
        printed += &format!("$ {line}\n{}", world.run_at_home(&words).ok().out);
    }
    printed
}

#[test]
fn settings_are_set_and_shown_as_the_document_says() {
    let world = World::new();
    let block = find_block(SETTINGS, "# Settings\n");
    assert_eq!(run_block(&world, block), block);
}

#[test]
fn a_policy_is_set_and_applied_as_the_document_says() {
    let world = World::with_snapshot();
    let block = find_block(RETENTION, "\n## A policy of the volume\n");
    let printed = run_block(&world, block);
    assert!(block.lines().all(|line| printed.contains(line)), "{printed}");
}

#[test]
fn operations_are_listed_with_the_commands_of_the_document() {
    let world = World::with_snapshot();
    let printed = run_block(&world, find_block(OPERATIONS, "# Operations\n"));
    assert!(printed.contains("snapshot -q -m first"), "{printed}");
}

//! Pager, colours and the width of the terminal.

use std::fs;

use crate::terminal::Terminal;
use crate::world::{Ran, World};

/// More files than a terminal has lines.
const FILES: usize = 40;

fn world_with_files() -> World {
    let world = World::new();
    for number in 0..FILES {
        world.write(&format!("{number:02}.txt"), "text\n");
    }
    world.snapshot("first");
    world
}

/// What a terminal shows that is `xterm`, unless the environment says otherwise.
fn shown(world: &World, args: &[&str], environment: &[(&str, &str)]) -> String {
    let environment = [&[("TERM", "xterm")], environment].concat();
    let (code, text) = Terminal::start_with(world, args, &environment).end();
    assert_eq!(code, Some(0), "{text}");
    text
}

#[test]
fn what_does_not_fit_on_the_terminal_is_shown_by_the_pager() {
    let world = world_with_files();
    let pager = ("VELLUM_PAGER", "sed s/^/PAGED/");
    let paged = |args: &[&str], environment: &[(&str, &str)]| {
        shown(&world, args, environment).matches("PAGED").count()
    };
    assert_eq!(paged(&["find", "*.txt"], &[pager]), FILES);
    assert_eq!(paged(&["find", "*.txt"], &[("PAGER", "sed s/^/PAGED/")]), FILES);
    // A shell, for what only a shell understands.
    assert_eq!(paged(&["find", "*.txt"], &[("VELLUM_PAGER", "cat | sed 's/^/PAGED/'")]), FILES);
    assert_eq!(paged(&["find", "0*.txt"], &[pager]), 0, "it fits");
    assert_eq!(paged(&["find", "*.txt", "--no-pager"], &[pager]), 0);
    assert_eq!(paged(&["find", "*.txt"], &[("PAGER", "sed s/^/PAGED/"), ("VELLUM_PAGER", "")]), 0);
    assert_eq!(paged(&["find", "*.txt"], &[pager, ("TERM", "dumb")]), 0);
    assert_eq!(paged(&["find", "*.txt", "--json"], &[pager]), 0);
    assert_eq!(paged(&["ls", "first"], &[pager]), 0, "only what is read like a list of changes");
}

#[test]
fn a_pager_that_does_not_exist_takes_nothing_away() {
    let world = world_with_files();
    let text = shown(&world, &["find", "*.txt"], &[("VELLUM_PAGER", "no-such-pager")]);
    assert_eq!(text.matches(".txt").count(), FILES);
}

#[test]
fn a_pager_that_is_left_early_is_no_error() {
    let world = world_with_files();
    world.write("large", "a line\n".repeat(1 << 18));
    let id = world.snapshot("second");
    world.write("large", "another line\n".repeat(1 << 18));
    world.snapshot("third");
    let pager = ("VELLUM_PAGER", "head -n 1");
    let (code, text) =
        Terminal::start_with(&world, &["diff", "--patch", &id, "third"], &[("TERM", "xterm"), pager]).end();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// The output in a pipe, with this in the environment.
fn piped(world: &World, args: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = world.command_at_home(args);
    command.envs(environment.iter().copied());
    Ran::of(args, command.output().unwrap()).ok().out
}

#[test]
fn colours_are_where_the_user_wants_them() {
    let world = World::with_snapshot();
    let is_coloured = |text: String| text.contains("\x1b[");
    let history = ["history"];
    assert!(!is_coloured(piped(&world, &history, &[])));
    assert!(is_coloured(piped(&world, &["history", "--color", "always"], &[("NO_COLOR", "1")])));
    assert!(is_coloured(piped(&world, &history, &[("CLICOLOR_FORCE", "1")])));
    assert!(!is_coloured(piped(&world, &history, &[("CLICOLOR_FORCE", "0")])));
    assert!(!is_coloured(piped(&world, &history, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")])));
    assert!(is_coloured(shown(&world, &history, &[])));
    assert!(!is_coloured(shown(&world, &["history", "--color", "never"], &[])));
    assert!(!is_coloured(shown(&world, &history, &[("NO_COLOR", "1")])));
    world.run(&["history", "--color", "sometimes"]).code(3);
}

#[test]
fn a_history_fits_on_a_narrow_terminal() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed\n");
    world
        .run(&["snapshot", "-m", "a note that is longer than a narrow terminal is wide", "--tag", "v1"])
        .ok();
    for columns in ["60", "72", "80"] {
        let text = shown(&world, &["history"], &[("COLUMNS", columns), ("NO_COLOR", "1")]);
        let width: usize = columns.parse().unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.contains("… [HEAD, v1]"), "{text}");
    }
}

/// Fails if a line of what a command shows is wider than the terminal.
pub fn assert_fits(world: &World, args: &[&str], columns: usize) {
    let width = columns.to_string();
    let environment =
        [("COLUMNS", width.as_str()), ("NO_COLOR", "1"), ("VELLUM_PAGER", ""), ("TERM", "xterm")];
    let (_, text) = Terminal::start_with(world, args, &environment).end();
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "{args:?}: {line:?} of {text}");
    }
    assert!(!text.trim().is_empty(), "{args:?}");
}

#[test]
fn lists_fit_on_a_narrow_terminal() {
    let world = World::with_snapshot();
    let long = format!("a directory/{}.txt", "x".repeat(50));
    world.write(&long, "one\n");
    world.run(&["snapshot", "-m", &"a long note ".repeat(5), "--tag", "a-long-tag-of-the-second"]).ok();
    std::fs::rename(world.tree().join(&long), world.tree().join("short.txt")).unwrap();
    world.snapshot("third");
    world.run(&["pin", "third", "--until", "30d", "--reason", &"a long reason ".repeat(4)]).ok();
    world.run(&["pin", "first"]).ok();
    let fork = world.path(&"fork ".repeat(8));
    world.run(&["fork", "another-worktree", "--to", fork.to_str().unwrap()]).ok();
    for args in [
        &["find", "*.txt"][..],
        &["find", "*.txt", "--content-changed"],
        &["history"],
        &["history", "short.txt"],
        &["usage"],
        &["usage", "third", "first"],
        &["operations"],
        &["worktree", "list"],
        &["tag", "list"],
        &["pins"],
        &["forget", "--keep-last", "1", "-n"],
    ] {
        assert_fits(&world, args, 60);
    }
    let narrow =
        |args: &[&str]| shown(&world, args, &[("COLUMNS", "60"), ("NO_COLOR", "1"), ("VELLUM_PAGER", "")]);
    let forget = narrow(&["forget", "--keep-last", "1", "-n"]);
    assert!(
        forget.contains("worktree another-worktree") && !forget.contains(':'),
        "the time goes first: {forget}"
    );
    let operations = narrow(&["operations"]);
    let whole = "tag a-long-tag-of-the-second: added at ";
    assert!(operations.contains(whole), "the time goes first: {operations}");
    let shown = shown(&world, &["find", "*x.txt"], &[("COLUMNS", "60"), ("NO_COLOR", "1")]);
    assert!(shown.contains('…') && shown.contains("xx.txt"), "the end of a path stays: {shown}");
}

#[test]
fn owners_have_names_where_they_are_known() {
    let world = World::with_snapshot();
    world.run(&["ls", "first", "-l"]).ok().says(" root  root ");
    world.run(&["show", "first", "a.txt"]).ok().says("user 0 (root), group 0 (root)");
    fs::write(world.tree().join("other"), "").unwrap();
    std::os::unix::fs::chown(world.tree().join("other"), Some(4_000_000), Some(4_000_001)).unwrap();
    world.snapshot("second");
    world.run(&["ls", "second", "-l"]).ok().says(" 4000000  4000001 ");
}

//! `vellum sync --two-way --conflict ask`, on a terminal.

use std::fs;

use crate::terminal::Terminal;
use crate::world::World;

/// What ends each question.
const PROMPT: &str = "[s]kip? ";

/// Both sides have changed `f0`, `f1` and so on, and are brought together.
fn start(world: &World) -> Terminal {
    Terminal::start(world, &["sync", "--two-way", "--conflict", "ask", "a", "b"])
}

/// Presses keys when the question has been asked for the so-manieth time.
fn press(terminal: &mut Terminal, question: usize, keys: &str) {
    terminal.wait(PROMPT, question);
    terminal.press(keys);
}

/// Both sides agreed on so many files, and have changed all of them since.
fn disagreed(files: usize) -> World {
    let world = World::empty();
    let write = |side: &str, text: &str| {
        for number in 0..files {
            world.write(&format!("{side}/f{number}"), text);
        }
    };
    write("a", "agreed\n");
    fs::create_dir(world.tree().join("b")).unwrap();
    world.run_at_home(&["sync", "--two-way", "a", "b"]).ok();
    write("a", "of the first\n");
    write("b", "of the second side\n");
    world
}

fn names(world: &World, side: &str) -> Vec<String> {
    let entries = fs::read_dir(world.tree().join(side)).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

#[test]
fn every_answer_is_heeded() {
    let world = disagreed(4);
    let mut terminal = start(&world);
    terminal.wait("'f0' was changed on both sides", 1);
    press(&mut terminal, 1, "1\n");
    press(&mut terminal, 2, "what?\n");
    press(&mut terminal, 3, "2\n");
    press(&mut terminal, 4, " b \n");
    press(&mut terminal, 5, "s\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(1), "one is left: {text}");
    let both = |name: &str| [world.read(&format!("a/{name}")), world.read(&format!("b/{name}"))];
    assert_eq!(both("f0"), ["of the first\n", "of the first\n"], "{text}");
    assert_eq!(both("f1"), ["of the second side\n", "of the second side\n"], "{text}");
    assert_eq!(both("f3"), ["of the first\n", "of the second side\n"], "{text}");
    let names = [names(&world, "a"), names(&world, "b")];
    assert_eq!(names[0], names[1]);
    let kept = names[0].iter().find(|name| name.starts_with("f2.conflict-")).expect(&text);
    let versions: std::collections::BTreeSet<String> = both("f2").into_iter().chain(both(kept)).collect();
    assert_eq!(versions.len(), 2, "{versions:?}");
    // What was skipped is asked about again, and nothing else.
    let mut terminal = start(&world);
    press(&mut terminal, 1, "2\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(both("f3"), ["of the second side\n", "of the second side\n"]);
}

#[test]
fn the_end_of_input_skips_the_rest() {
    let world = disagreed(3);
    let mut terminal = start(&world);
    press(&mut terminal, 1, "1\n");
    press(&mut terminal, 2, "\x04");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(world.read("b/f0"), "of the first\n");
    assert_eq!(
        (world.read("a/f1"), world.read("b/f1")),
        ("of the first\n".into(), "of the second side\n".into())
    );
    assert_eq!(world.read("b/f2"), "of the second side\n");
}

#[test]
fn ctrl_c_at_a_question_leaves_all_as_it_is() {
    let world = disagreed(2);
    let mut terminal = start(&world);
    press(&mut terminal, 1, "1\n");
    press(&mut terminal, 2, "\x03");
    let (code, text) = terminal.end();
    assert!(code.is_some_and(|code| code != 0), "{text}");
    assert!(text.contains("nothing was done"), "{text}");
    assert_eq!(world.read("b/f0"), "of the second side\n");
    // Nothing holds the pair any more.
    let mut terminal = start(&world);
    press(&mut terminal, 1, "s\n");
    press(&mut terminal, 2, "s\n");
    assert_eq!(terminal.end().0, Some(1));
}

#[test]
fn without_a_terminal_it_is_refused() {
    let world = disagreed(1);
    let args = ["sync", "--two-way", "--conflict", "ask", "a", "b"];
    world.run_at_home(&args).code(3).remarks("asks on a terminal").remarks("keep-both");
    assert_eq!(world.read("b/f0"), "of the second side\n");
}

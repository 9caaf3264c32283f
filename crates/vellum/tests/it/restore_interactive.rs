//! `vellum restore --interactive`, on a terminal

use crate::terminal::Terminal;
use crate::world::World;

/// Forty numbered lines, of which some were edited: far enough apart to be changes of their own.
fn lines(edited: &[usize]) -> String {
    let line = |n: usize| if edited.contains(&n) { format!("edited {n}\n") } else { format!("line {n}\n") };
    (0..40).map(line).collect()
}

fn world() -> World {
    let world = World::new();
    world.write("text", lines(&[]));
    world.write("binary", [0, 1, 2]);
    world.write("gone", "gone");
    world.snapshot("first");
    world.write("text", lines(&[3, 20, 35]));
    world.write("binary", [0, 9, 9]);
    world.remove("gone");
    world.write("new", "new");
    world
}

/// Answers one question after another; gives the exit code and what was shown.
fn answer(world: &World, args: &[&str], answers: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut terminal = Terminal::start(world, &[&["restore", "-i"], args].concat());
    for (question, keys) in answers {
        terminal.wait(question, 1);
        terminal.press(&format!("{keys}\n"));
    }
    terminal.end()
}

#[test]
fn changes_are_chosen_one_by_one() {
    let world = world();
    let (code, text) = answer(
        &world,
        &["first"],
        &[
            ("Restore 'binary'", "y"),
            ("Bring back 'gone'", "n"),
            ("Delete 'new'", "n"),
            ("(1/3) Restore this change", "n"),
            ("(2/3) Restore this change", "y"),
            ("(3/3) Restore this change", "n"),
        ],
    );
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(world.read("text"), lines(&[3, 35]));
    assert_eq!(std::fs::read(world.tree().join("binary")).unwrap(), [0, 1, 2]);
    assert!(!world.has("gone") && world.has("new"));
    // What went is in a snapshot.
    world.run(&["restore", "latest"]).ok();
    assert_eq!(world.read("text"), lines(&[3, 20, 35]));
}

#[test]
fn one_answer_is_for_the_rest_of_a_file_or_for_everything() {
    let world = world();
    let asked = [("Restore 'binary'", "n"), ("Bring back 'gone'", "y"), ("Delete 'new'", "n")];
    let (code, _) = answer(&world, &["first"], &[&asked[..], &[("(1/3)", "n"), ("(2/3)", "a")]].concat());
    assert_eq!(code, Some(0));
    assert_eq!(world.read("text"), lines(&[3]));
    assert_eq!(world.read("gone"), "gone");
    world.write("text", lines(&[3, 20, 35]));
    let (code, _) = answer(&world, &["first", "text"], &[("(1/3)", "y"), ("(2/3)", "d")]);
    assert_eq!(code, Some(0));
    assert_eq!(world.read("text"), lines(&[20, 35]));
    world.write("text", lines(&[3, 20, 35]));
    let (code, _) = answer(&world, &["first", "text"], &[("(1/3)", "y"), ("(2/3)", "q")]);
    assert_eq!(code, Some(0));
    assert_eq!(world.read("text"), lines(&[20, 35]));
}

#[test]
fn all_of_a_file_is_the_file_as_it_was() {
    let world = world();
    world.chmod("text", 0o600);
    let (code, text) = answer(&world, &["first", "text"], &[("(1/3)", "a")]);
    assert_eq!(code, Some(0), "{text}");
    world.run(&["diff", "first", "--name-status", "text"]).ok();
}

#[test]
fn a_question_mark_explains_and_the_end_of_input_changes_nothing() {
    let world = world();
    let mut terminal = Terminal::start(&world, &["restore", "-i", "first"]);
    terminal.wait("Restore 'binary' [y,n,a,d,q,?]? ", 1);
    terminal.press("?\n");
    terminal.wait("leave this and everything that follows", 1);
    terminal.wait("Restore 'binary' [y,n,a,d,q,?]? ", 2);
    terminal.press("y\n");
    terminal.wait("Bring back 'gone'", 1);
    terminal.press("\u{4}");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(2), "{text}");
    assert_eq!(std::fs::read(world.tree().join("binary")).unwrap(), [0, 9, 9]);
    let (code, _) = answer(&world, &["first"], &[("Restore 'binary'", "q")]);
    assert_eq!(code, Some(0));
    assert_eq!(world.json(&["info"])["snapshots"], 1);
}

#[test]
fn a_file_that_changes_while_the_question_stands_is_not_overwritten() {
    let world = world();
    let mut terminal = Terminal::start(&world, &["restore", "-i", "first", "text"]);
    terminal.wait("(1/3)", 1);
    terminal.press("y\n");
    terminal.wait("(2/3)", 1);
    world.write("text", "written meanwhile");
    terminal.press("q\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("'text' has changed since its changes were shown"), "{text}");
    assert_eq!(world.read("text"), "written meanwhile");
}

#[test]
fn directories_are_one_question() {
    let world = World::with_snapshot();
    std::fs::remove_dir_all(world.tree().join("dir")).unwrap();
    world.write("added/one", "1");
    world.write("added/two", "2");
    let (code, text) = answer(
        &world,
        &["first"],
        &[("Delete the directory 'added' with all", "y"), ("Bring back the directory 'dir' with all", "y")],
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(!world.has("added") && world.has("dir/deep/c.bin"));
    world.run(&["diff", "first", "--name-status"]).ok();
}

#[test]
fn without_a_terminal_nothing_is_asked() {
    let world = World::with_snapshot();
    world.run(&["restore", "-i", "first"]).code(3).remarks("asks on a terminal");
}

//! `vellum sync --two-way --conflict ask`, on a terminal.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::World;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// What ends each question.
const PROMPT: &str = "[s]kip? ";

/// A run on a terminal of its own.
struct Terminal {
    child: Child,
    keys: fs::File,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    /// Both sides have changed `f0`, `f1` and so on, and are brought together.
    fn start(world: &World) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.as_bytes());
        let slave = || fs::File::options().read(true).write(true).open(name).unwrap();
        // The terminal is the session's, so that its keys are signals.
        let child = Command::new("setsid")
            .args(["-c", env!("CARGO_BIN_EXE_vellum"), "sync", "--two-way", "--conflict", "ask", "a", "b"])
            .current_dir(world.tree())
            .env("XDG_STATE_HOME", world.path("state"))
            .env("TERM", "dumb")
            .stdin(slave())
            .stdout(Stdio::from(slave()))
            .stderr(slave())
            .spawn()
            .unwrap();
        let keys = fs::File::from(master);
        let (tell, shown) = channel();
        let mut screen = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // When nobody has the other end any more, reading fails.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                if tell.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, shown, text: String::new() }
    }

    /// Waits until a text has been shown so many times.
    fn wait(&mut self, text: &str, times: usize) {
        while self.text.matches(text).count() < times {
            match self.shown.recv_timeout(PATIENCE) {
                Ok(more) => self.text += &String::from_utf8_lossy(&more),
                Err(_) => panic!("{text:?} is not shown {times} times: {}", self.text),
            }
        }
    }

    /// Presses keys when the question has been asked for the so-manieth time.
    fn press(&mut self, question: usize, keys: &str) {
        self.wait(PROMPT, question);
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code, and all that was shown.
    fn end(mut self) -> (Option<i32>, String) {
        while let Ok(more) = self.shown.recv_timeout(PATIENCE) {
            self.text += &String::from_utf8_lossy(&more);
        }
        (self.child.wait().unwrap().code(), self.text.clone())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    let mut terminal = Terminal::start(&world);
    terminal.wait("'f0' was changed on both sides", 1);
    terminal.press(1, "1\n");
    terminal.press(2, "what?\n");
    terminal.press(3, "2\n");
    terminal.press(4, " b \n");
    terminal.press(5, "s\n");
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
    let mut terminal = Terminal::start(&world);
    terminal.press(1, "2\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(both("f3"), ["of the second side\n", "of the second side\n"]);
}

#[test]
fn the_end_of_input_skips_the_rest() {
    let world = disagreed(3);
    let mut terminal = Terminal::start(&world);
    terminal.press(1, "1\n");
    terminal.press(2, "\x04");
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
    let mut terminal = Terminal::start(&world);
    terminal.press(1, "1\n");
    terminal.press(2, "\x03");
    let (code, text) = terminal.end();
    assert!(code.is_some_and(|code| code != 0), "{text}");
    assert!(text.contains("nothing was done"), "{text}");
    assert_eq!(world.read("b/f0"), "of the second side\n");
    // Nothing holds the pair any more.
    let mut terminal = Terminal::start(&world);
    terminal.press(1, "s\n");
    terminal.press(2, "s\n");
    assert_eq!(terminal.end().0, Some(1));
}

#[test]
fn without_a_terminal_it_is_refused() {
    let world = disagreed(1);
    let args = ["sync", "--two-way", "--conflict", "ask", "a", "b"];
    world.run_at_home(&args).code(3).remarks("asks on a terminal").remarks("keep-both");
    assert_eq!(world.read("b/f0"), "of the second side\n");
}

//! The binary on a terminal of its own.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::world::World;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command on a terminal of its own.
pub struct Terminal {
    child: Child,
    keys: fs::File,
    shown: Receiver<Vec<u8>>,
    /// The terminal's settings can be asked for as long as somebody has it open.
    other_end: fs::File,
    text: String,
}

impl Terminal {
    /// Runs the binary in the worktree.
    pub fn start(world: &World, args: &[&str]) -> Self {
        Self::start_with(world, args, &[("TERM", "dumb")])
    }

    /// Runs the binary in the worktree, with more in its environment.
    pub fn start_with(world: &World, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_program(world, env!("CARGO_BIN_EXE_vellum"), args, environment)
    }

    /// Runs the binary in a directory.
    pub fn start_in(world: &World, dir: &Path, args: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_vellum");
        Self::start_program_in(world, dir, &[&[program], args].concat(), &[("TERM", "dumb")])
    }

    /// Runs a program in the worktree, with more in its environment.
    pub fn start_program(world: &World, program: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_program_in(world, &world.tree(), &[&[program], args].concat(), environment)
    }

    fn start_program_in(world: &World, dir: &Path, command: &[&str], environment: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        if let Some((_, columns)) = environment.iter().find(|(name, _)| *name == "COLUMNS") {
            let size = Winsize { ws_col: columns.parse().unwrap(), ws_row: 0, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&master, size).unwrap();
        }
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.as_bytes());
        let slave = || fs::File::options().read(true).write(true).open(name).unwrap();
        let other_end = slave();
        // The terminal is the session's, so that its keys are signals.
        let child = Command::new("setsid")
            .args(["-w", "-c"])
            .args(command)
            .current_dir(dir)
            .env("XDG_STATE_HOME", world.path("state"))
            .envs(environment.iter().copied())
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
        Self { child, keys, shown, other_end, text: String::new() }
    }

    /// Waits until a text has been shown so many times.
    pub fn wait(&mut self, text: &str, times: usize) {
        while self.text.matches(text).count() < times {
            match self.shown.recv_timeout(PATIENCE) {
                Ok(more) => self.text += &String::from_utf8_lossy(&more),
                Err(_) => panic!("{text:?} is not shown {times} times: {}", self.text),
            }
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code, all that was shown, and whether the terminal echoes what is typed then.
    pub fn end_with_echo(mut self) -> (Option<i32>, String, bool) {
        let code = self.child.wait().unwrap().code();
        let echoes = tcgetattr(&self.other_end).unwrap().local_modes.contains(LocalModes::ECHO);
        self.other_end = fs::File::open("/dev/null").unwrap();
        while let Ok(more) = self.shown.recv_timeout(PATIENCE) {
            self.text += &String::from_utf8_lossy(&more);
        }
        (code, self.text.clone(), echoes)
    }

    /// The exit code, and all that was shown.
    pub fn end(self) -> (Option<i32>, String) {
        let (code, text, _) = self.end_with_echo();
        (code, text)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

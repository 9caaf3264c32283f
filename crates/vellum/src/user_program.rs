//! Programs of the user that commands run: hooks and merge tools.
//!
//! Invariants: a program ends: after its time it is killed, with all processes of its group. What it prints cannot control
//! a terminal. One that is handed the terminal is the exception: nobody but the user ends it.

use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use vellum_host::escape::EscapedPath;

use crate::error::Result;
use crate::interrupt;

/// The end of a program, and a request to stop it, are noticed within this time.
const LOOK_TIME: Duration = Duration::from_millis(10);
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A longer line of its output is shown as several, bytes.
const LINE_MAX: usize = 4096;

/// A program that is to run.
pub struct UserProgram {
    command: Command,
    /// How long it may run.
    pub limit: Duration,
}

/// How a program ended.
pub enum ProgramEnd {
    /// By itself.
    Exited(ExitStatus),
    /// It took too long, and was killed.
    TimedOut,
    /// It was killed because the command is to stop.
    Stopped,
    /// It cannot be started, or not be waited for.
    Failed(io::Error),
}

impl UserProgram {
    /// A program that may run for `limit`.
    pub fn new(mut command: Command, limit: Duration) -> Self {
        // A group of its own, which is killed as a whole.
        command.stdin(Stdio::null()).process_group(0);
        Self { command, limit }
    }

    /// Runs it where nobody can answer it, and hands each line that it prints to `print`, fit to be shown. It is killed when
    /// its time is over and when `is_stopped` says so.
    pub fn run(
        &mut self,
        print: &mut dyn FnMut(&str) -> Result<()>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<ProgramEnd> {
        let started = io::pipe().and_then(|(reader, writer)| {
            let output = ProgramOutput::new(reader)?;
            // Standard output is for the result of the command, which programs read.
            self.command.stdout(writer.try_clone()?).stderr(writer);
            let child = self.command.spawn()?;
            // This process keeps no writer: the end of the last one is the end of the output.
            self.command.stdout(Stdio::null()).stderr(Stdio::null());
            Ok((child, output))
        });
        let (mut child, mut output) = match started {
            Ok(started) => started,
            Err(error) => return Ok(ProgramEnd::Failed(error)),
        };
        let begun = Instant::now();
        loop {
            // In this order: all that was printed before the end is read after it.
            let ended = child.try_wait();
            if let Err(error) = output.print_lines(print) {
                kill_group(&mut child);
                return Err(error);
            }
            match ended {
                Ok(None) => {}
                Ok(Some(status)) => {
                    return output.print_rest(print).map(|()| ProgramEnd::Exited(status));
                }
                Err(error) => return Ok(ProgramEnd::Failed(error)),
            }
            let is_late = begun.elapsed() >= self.limit;
            if is_late || is_stopped() {
                kill_group(&mut child);
                output.print_lines(print)?;
                output.print_rest(print)?;
                return Ok(if is_late { ProgramEnd::TimedOut } else { ProgramEnd::Stopped });
            }
            output.wait();
        }
    }
}

/// Runs a program that has the terminal, for as long as the user likes. What it prints to standard output goes to standard
/// error: the result of the command stays alone.
pub fn run_on_terminal(command: &mut Command, stop_flag: &AtomicBool) -> ProgramEnd {
    let spawned = io::stderr().as_fd().try_clone_to_owned().and_then(|stderr| {
        // In this process's group, which is the one that may read the terminal.
        command.stdin(Stdio::inherit()).stdout(stderr).stderr(Stdio::inherit()).spawn()
    });
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return ProgramEnd::Failed(error),
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ProgramEnd::Exited(status),
            Ok(None) => {}
            Err(error) => return ProgramEnd::Failed(error),
        }
        // Ctrl-C reaches the program, too, which may mean something else by it than to end.
        interrupt::forget_ctrl_c(stop_flag);
        if interrupt::is_stop_requested(stop_flag) {
            // An editor keeps what was typed when it is asked to end.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
            return ProgramEnd::Stopped;
        }
        std::thread::sleep(LOOK_TIME);
    }
}

fn kill_group(child: &mut Child) {
    // The group may have ended just now.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    // Collected, because a killed child stays in the table of processes until then.
    let _ = child.wait();
}

/// How a program ended by itself, in words.
pub fn describe_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".into(),
    }
}

/// What a program prints. Processes that it leaves behind may hold it open: nobody waits for its end.
struct ProgramOutput {
    reader: PipeReader,
    /// The line that is not complete.
    line: Vec<u8>,
    is_at_end: bool,
}

impl ProgramOutput {
    fn new(reader: PipeReader) -> io::Result<Self> {
        // A read must not block: a process that was left behind can hold the pipe open without writing.
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Self { reader, line: Vec::new(), is_at_end: false })
    }

    /// Waits until there is more, for a short time.
    fn wait(&self) {
        // A pipe at its end is always ready: `poll` would return at once, and the loop would spin.
        if self.is_at_end {
            std::thread::sleep(LOOK_TIME);
            return;
        }
        // A wait that ends early does no harm.
        let _ = poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&LOOK_EVERY));
    }

    /// Prints the lines that are there. A process that prints without end does not keep it here.
    fn print_lines(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        /// As much as a pipe holds.
        const ROUND: usize = 64 << 10;
        let mut bytes = vec![0; ROUND];
        // An error mostly says that there is nothing at the moment (EAGAIN): the next round reads again.
        let Ok(count) = self.reader.read(&mut bytes) else { return Ok(()) };
        self.is_at_end = count == 0;
        for byte in &bytes[..count] {
            // A program that prints no newline must not make this process take memory without limit.
            if *byte == b'\n' || self.line.len() == LINE_MAX {
                self.print_line(print)?;
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
        Ok(())
    }

    /// Prints the end of the last line, if it has no end.
    fn print_rest(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        if self.line.is_empty() { Ok(()) } else { self.print_line(print) }
    }

    fn print_line(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let shown = EscapedPath(&self.line).to_string();
        self.line.clear();
        print(&shown)
    }
}

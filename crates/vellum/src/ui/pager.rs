//! Where results go: to standard output, or to a pager as soon as they do not fit on the terminal.
//!
//! Invariant: what is printed appears in its order, and none of it is lost if there is no pager.

use std::io::{self, Stdout, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;

/// Lines of a terminal that does not report how many it has.
const LINES: usize = 24;
/// What `less` is told unless the user has told it something: end if all fits, show colours, leave the screen as it is.
const LESS: &str = "FRX";

/// A stream of results.
pub enum ResultStream {
    /// To standard output.
    Direct(Stdout),
    /// To a pager if need be.
    Paged(PagedStream),
}

/// A stream that is held back until it is known whether it fits on the terminal.
pub struct PagedStream {
    command: String,
    lines: usize,
    held: Vec<u8>,
    state: PagerState,
}

enum PagerState {
    /// All that was printed so far fits.
    Waiting,
    /// The pager shows it.
    Running(Child),
    /// There is no pager.
    Unavailable,
}

impl ResultStream {
    /// To standard output, or to the pager with this command line.
    pub fn new(pager: Option<String>) -> Self {
        match pager {
            None => Self::Direct(io::stdout()),
            Some(command) => {
                let rows =
                    rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
                let lines = if rows > 0 { rows } else { LINES };
                Self::Paged(PagedStream { command, lines, held: Vec::new(), state: PagerState::Waiting })
            }
        }
    }

    /// Whether a pager has the terminal.
    pub fn has_pager(&self) -> bool {
        matches!(self, Self::Paged(PagedStream { state: PagerState::Running(_), .. }))
    }

    /// Waits until the user has left the pager. Everything must have been flushed.
    pub fn wait_for_pager(&mut self) {
        if let Self::Paged(PagedStream { state, .. }) = self
            && let PagerState::Running(mut pager) = std::mem::replace(state, PagerState::Unavailable)
        {
            // It learns that there is nothing more.
            drop(pager.stdin.take());
            // How it ended says nothing about the command.
            let _ = pager.wait();
        }
    }
}

impl Write for ResultStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Direct(out) => out.write(bytes),
            Self::Paged(paged) => paged.write_bytes(bytes).map(|()| bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Direct(out) => out.flush(),
            Self::Paged(paged) => paged.flush_held(),
        }
    }
}

impl PagedStream {
    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.state {
            PagerState::Running(pager) => write_to_pager(pager, bytes),
            PagerState::Unavailable => io::stdout().write_all(bytes),
            PagerState::Waiting => {
                self.held.extend_from_slice(bytes);
                // The shell's prompt takes a line, too.
                if self.held.iter().filter(|byte| **byte == b'\n').count() < self.lines {
                    return Ok(());
                }
                let held = std::mem::take(&mut self.held);
                // Without a pager the output goes where it would go anyway: a program that is missing must not cost the
                // result.
                self.state = start_pager(&self.command).map_or(PagerState::Unavailable, PagerState::Running);
                self.write_bytes(&held)
            }
        }
    }

    /// What is held back is shown, because something else is about to be: it fits.
    fn flush_held(&mut self) -> io::Result<()> {
        if let PagerState::Running(pager) = &mut self.state {
            return pager.stdin.as_mut().map_or(Ok(()), Write::flush);
        }
        let mut out = io::stdout().lock();
        out.write_all(&std::mem::take(&mut self.held))?;
        out.flush()
    }
}

fn write_to_pager(pager: &mut Child, bytes: &[u8]) -> io::Result<()> {
    let input = pager.stdin.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
    input.write_all(bytes)
}

/// Starts the pager; none if the system has no such program.
fn start_pager(command: &str) -> Option<Child> {
    let mut words = command.split_whitespace();
    // A shell is needed only for what a shell alone understands. Without one, a program that is missing is noticed.
    let mut process =
        if command.contains(['|', '&', ';', '<', '>', '(', ')', '$', '`', '\\', '"', '\'', '*', '?', '=']) {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]);
            shell
        } else {
            let mut program = Command::new(words.next()?);
            program.args(words);
            program
        };
    if std::env::var_os("LESS").is_none() {
        process.env("LESS", LESS);
    }
    let pager = process.stdin(Stdio::piped()).spawn().ok()?;
    // Ctrl-C belongs to the pager from now on: the terminal must not lose whoever waits for it. A command that is still at
    // work ends when the pager is left, because nobody reads any more.
    let _ = signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)));
    Some(pager)
}

//! Lines about requests, for whoever reads the pipe that `.vellum/accesslog` leads to.
//!
//! A pipe, because the kernel asks nothing when a file of the mount is opened: so one process reads at a time. Lines
//! are made only while somebody does.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;

use super::line::Noted;

/// Lines that wait for a slow reader, about two hundred bytes each; what comes after is dropped, and the reader is told.
const WAITING_MAX: usize = 1 << 14;

/// What a reader gets in place of lines that it was too slow for.
const DROPPED: &str = "# lines were dropped\n";

/// For so long lines are gathered before they are handed on: a thread that is woken for each of them would cost the
/// requests more than the lines do.
const GATHER: Duration = Duration::from_millis(5);

/// How often it is looked whether the reader is still there, while nothing happens.
const LOOK: Duration = Duration::from_secs(1);

/// The log.
#[derive(Debug, Default)]
pub struct AccessLog {
    is_read: AtomicBool,
    ended: AtomicBool,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<Noted>,
    /// The next ones were dropped.
    dropped: bool,
}

/// The pipe; it goes when this is dropped.
#[derive(Debug)]
pub struct Pipe {
    log: Arc<AccessLog>,
    path: PathBuf,
}

impl AccessLog {
    /// Whether lines are wanted.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Hands a line to the reader.
    pub fn append(&self, line: Noted) {
        let mut waiting = self.lock();
        let first = waiting.lines.is_empty();
        if waiting.lines.len() < WAITING_MAX {
            waiting.lines.push(line);
        } else {
            waiting.dropped = true;
        }
        drop(waiting);
        if first {
            self.arrived.notify_one();
        }
    }

    /// Makes the pipe, which only its owner can read, and a thread that writes to it.
    pub fn serve(self: &Arc<Self>, path: &Path) -> io::Result<Pipe> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // A process that was killed leaves its pipe.
            Ok(()) | Err(_) => {}
        }
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let pipe = Pipe { log: self.clone(), path: path.into() };
        let (log, path) = (self.clone(), path.to_path_buf());
        std::thread::Builder::new().name("vellum-accesslog".into()).spawn(move || log.write_to(&path))?;
        Ok(pipe)
    }

    fn write_to(&self, path: &Path) {
        while !self.ended.load(Ordering::Acquire) {
            // Waits for a reader. Without its pipe the log has come to its end.
            let Ok(pipe) = File::options().write(true).open(path) else { return };
            *self.lock() = Waiting::default();
            self.is_read.store(true, Ordering::Relaxed);
            while let Some(lines) = self.next(&pipe) {
                if (&pipe).write_all(lines.as_bytes()).is_err() {
                    break;
                }
            }
            self.is_read.store(false, Ordering::Relaxed);
        }
    }

    /// The next lines; none if nobody reads any more.
    fn next(&self, pipe: &File) -> Option<String> {
        loop {
            let empty = |waiting: &mut Waiting| waiting.lines.is_empty();
            let (waiting, _) = self
                .arrived
                .wait_timeout_while(self.lock(), LOOK, empty)
                .unwrap_or_else(PoisonError::into_inner);
            let nothing = waiting.lines.is_empty();
            drop(waiting);
            if !nothing {
                std::thread::sleep(GATHER);
                let mut waiting = self.lock();
                // Room for as many again, so that whoever is served does not wait for it.
                let lines = Vec::with_capacity(waiting.lines.len());
                let full = std::mem::replace(&mut *waiting, Waiting { lines, dropped: false });
                drop(waiting);
                return Some(text(full));
            }
            if self.ended.load(Ordering::Acquire) || !is_open(pipe) {
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text(waiting: Waiting) -> String {
    let mut text = String::new();
    for line in waiting.lines {
        // Writing to a string cannot fail.
        let _ = write!(text, "{line}");
    }
    if waiting.dropped {
        text += DROPPED;
    }
    text
}

/// Whether somebody has the other end of a pipe open.
fn is_open(pipe: &File) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&at_once)) {
        Ok(_) | Err(Errno::INTR) => polled.iter().all(|end| !end.revents().contains(PollFlags::ERR)),
        Err(_) => false,
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.log.ended.store(true, Ordering::Release);
        // Who waits for a reader finds one, and then that all has ended.
        let woken = rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        // One that cannot be removed is replaced by the next mount.
        let _ = std::fs::remove_file(&self.path);
        drop(woken);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;
    use crate::tally::{Asked, Op};
    use crate::wire::{Header, Operation};

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A line of an inode.
    fn noted(node: u64) -> Noted {
        let head = Header { opcode: 3, unique: 0, node, uid: 0, gid: 0, pid: 1 };
        let asked = Asked { op: Op::Getattr, head: &head, what: &Operation::Getattr };
        Noted::new(asked, Duration::ZERO, &Ok(()))
    }

    fn next(reader: &mut impl BufRead) -> String {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn lines_reach_one_reader_after_the_other_and_none_is_made_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (log, path) = (Arc::new(AccessLog::default()), dir.path().join("pipe"));
        let pipe = log.serve(&path).unwrap();
        assert!(!log.is_read());
        for node in [7, 8] {
            let reader = File::open(&path).unwrap();
            until(|| log.is_read());
            log.append(noted(node));
            let line = next(&mut BufReader::new(reader));
            assert!(line.ends_with(&format!("getattr ({node}): ok <0.000000>\n")), "{line}");
            until(|| !log.is_read());
        }
        drop(pipe);
        assert!(!path.exists());
    }

    #[test]
    fn a_slow_reader_is_told_once_that_lines_were_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (log, path) = (Arc::new(AccessLog::default()), dir.path().join("pipe"));
        let _pipe = log.serve(&path).unwrap();
        let mut reader = BufReader::new(File::open(&path).unwrap());
        until(|| log.is_read());
        // The first lines fill the pipe, so that the next ones wait.
        (0..WAITING_MAX).for_each(|_| log.append(noted(1)));
        until(|| log.lock().lines.is_empty());
        (0..WAITING_MAX + 2).for_each(|_| log.append(noted(2)));
        for node in [1, 2] {
            for _ in 0..WAITING_MAX {
                let line = next(&mut reader);
                assert!(line.contains(&format!("getattr ({node}): ok")), "{line}");
            }
        }
        assert_eq!(next(&mut reader), DROPPED);
        log.append(noted(3));
        assert!(next(&mut reader).contains("getattr (3): ok"));
    }
}

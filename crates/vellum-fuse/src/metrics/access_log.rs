//! The access log: lines about requests, for the process that reads the pipe to which `.vellum/accesslog` points.
//!
//! It is a pipe because the kernel does not report when a file of the mount is opened; so one process can read at a
//! time. Lines are recorded only while one does.
//!
//! A thread that serves a request leaves a note and continues; it wakes no other thread unless there are very many
//! notes. A thread with low priority collects them from time to time. If this thread and the reader wanted a processor
//! every few milliseconds, requests would lose more time by that than by all notes.
//!
//! Invariant: no more notes wait than [`WAITING_MAX`].

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::nice;
use vellum_types::LookupResult;

use super::line::{ClockPair, LineNote};

/// Notes that wait for a slow reader, about 200 bytes each. Further ones are dropped, and a line reports that to the
/// reader.
const WAITING_MAX: usize = 1 << 15;

/// If this many notes wait, the thread that writes them is woken: as many may still arrive before it gets a processor.
const MANY: usize = WAITING_MAX / 2;

/// The line that a reader gets in place of those that were dropped.
const DROPPED: &str = "# lines were dropped\n";

/// How often notes are collected, and the reader is checked: often enough for a person who watches the log.
const GATHER: Duration = Duration::from_millis(100);

/// The capacity of the pipe, bytes: nearly the text of [`MANY`] notes, so that writing does not wait for the reader,
/// and wakes it once for all of them. It is the most that a process without privileges may ask for.
const PIPE_SIZE: usize = 1 << 20;

/// Added to the niceness of the thread that writes the log: requests are more important.
const NICENESS: i32 = 10;

/// The access log of a mount.
#[derive(Debug, Default)]
pub struct AccessLog {
    is_read: AtomicBool,
    ended: AtomicBool,
    waiting: Mutex<PendingNotes>,
    arrived: Condvar,
}

/// Notes, oldest first.
#[derive(Debug, Default)]
struct PendingNotes {
    lines: Vec<LineNote>,
    /// Whether later notes were dropped.
    dropped: bool,
}

/// The pipe. It is removed when this is dropped.
#[derive(Debug)]
pub struct AccessLogPipe {
    log: Arc<AccessLog>,
    path: PathBuf,
}

impl AccessLog {
    /// Whether a process reads the log.
    #[must_use]
    pub fn has_reader(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Adds a note for the reader.
    pub fn append_note(&self, line: LineNote) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() < WAITING_MAX {
            waiting.lines.push(line);
        } else {
            waiting.dropped = true;
        }
        // Only when the number is reached: later notes would wake a thread that is on its way.
        let many = waiting.lines.len() == MANY;
        drop(waiting);
        if many {
            self.arrived.notify_one();
        }
    }

    /// Creates the pipe, which only its owner can read, and starts the thread that writes to it.
    pub fn serve_pipe(self: &Arc<Self>, path: &Path) -> io::Result<AccessLogPipe> {
        // A process that was killed has left its pipe behind.
        std::fs::remove_file(path).ignore_missing()?;
        // For its owner only: lines contain the names of all users' files.
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let pipe = AccessLogPipe { log: self.clone(), path: path.into() };
        let log = self.clone();
        let path = path.to_path_buf();
        std::thread::Builder::new()
            .name("vellum-accesslog".into())
            .spawn(move || log.write_to_pipe(&path))?;
        Ok(pipe)
    }

    fn write_to_pipe(&self, path: &Path) {
        // If it fails, the log takes more time from requests.
        let _ = nice(NICENESS);
        while !self.is_finished() {
            // Waits for a reader. It fails if the pipe was removed, and with it the log has ended.
            let Ok(pipe) = File::options().write(true).open(path) else { return };
            // Fails if the administrator has lowered `fs.pipe-max-size`. A smaller pipe only wakes the reader more
            // often.
            let _ = fcntl_setpipe_size(&pipe, PIPE_SIZE);
            // Notes that no process has read belong to the time before this reader.
            *self.waiting.lock() = PendingNotes::default();
            // Requests begin to leave notes from here on.
            self.is_read.store(true, Ordering::Relaxed);
            self.write_until_closed(&pipe);
            self.is_read.store(false, Ordering::Relaxed);
        }
    }

    /// Writes notes until the reader closes the pipe.
    fn write_until_closed(&self, mut pipe: &File) {
        let mut taken = PendingNotes::default();
        let mut text = String::new();
        while self.take_notes(&mut taken, pipe) {
            text.clear();
            // Read each time, since the time of day may be set.
            let clock = ClockPair::now();
            for line in taken.lines.drain(..) {
                // Writing to a string cannot fail.
                let _ = write!(text, "{}", line.to_log_line(&clock));
            }
            if std::mem::take(&mut taken.dropped) {
                text += DROPPED;
            }
            // `EPIPE`: the reader has closed its end.
            if pipe.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Waits for notes, and swaps them with `taken`, which is empty: the threads that add notes then find a buffer that
    /// is already allocated. Returns false if the reader has closed the pipe.
    fn take_notes(&self, taken: &mut PendingNotes, pipe: &File) -> bool {
        loop {
            let few = |waiting: &mut PendingNotes| waiting.lines.len() < MANY && !self.is_finished();
            let mut waiting = self.waiting.lock();
            self.arrived.wait_while_for(&mut waiting, few, GATHER);
            if !waiting.lines.is_empty() {
                std::mem::swap(&mut *waiting, taken);
                return true;
            }
            drop(waiting);
            if self.is_finished() || !has_pipe_reader(pipe) {
                return false;
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Whether a process has the other end of a pipe open.
fn has_pipe_reader(pipe: &File) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&at_once)) {
        // A pipe without readers reports `POLLERR` to its writer, whatever was asked for.
        Ok(_) | Err(Errno::INTR) => polled.iter().all(|end| !end.revents().contains(PollFlags::ERR)),
        Err(_) => false,
    }
}

impl Drop for AccessLogPipe {
    fn drop(&mut self) {
        // Under the lock, so that the thread cannot miss it between its look and its wait.
        let waiting = self.log.waiting.lock();
        self.log.ended.store(true, Ordering::Release);
        drop(waiting);
        self.log.arrived.notify_one();
        // The thread may wait for a reader: it finds this one, and then sees that the log has ended.
        let woken = rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        // If it cannot be removed, the next mount replaces it.
        let _ = std::fs::remove_file(&self.path);
        drop(woken);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::Instant;

    use super::*;
    use crate::metrics::{RequestKind, ServedRequest};
    use crate::wire::{FuseOperation, RequestHeader};

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A line of an inode.
    fn noted(node: u64) -> LineNote {
        let head = RequestHeader { opcode: 3, unique: 0, node, uid: 0, gid: 0, pid: 1 };
        let request = ServedRequest { head: &head, operation: &FuseOperation::Getattr };
        LineNote::new(RequestKind::Getattr, request, Instant::now(), Duration::ZERO, &Ok(()))
    }

    fn next(reader: &mut impl BufRead) -> String {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn lines_reach_one_reader_after_the_other_and_none_is_made_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(AccessLog::default());
        let path = dir.path().join("pipe");
        let pipe = log.serve_pipe(&path).unwrap();
        assert!(!log.has_reader());
        for node in [7, 8] {
            let reader = File::open(&path).unwrap();
            until(|| log.has_reader());
            log.append_note(noted(node));
            let line = next(&mut BufReader::new(reader));
            assert!(line.ends_with(&format!("getattr ({node}): ok <0.000000>\n")), "{line}");
            until(|| !log.has_reader());
        }
        drop(pipe);
        assert!(!path.exists());
    }

    #[test]
    fn a_slow_reader_is_told_once_that_lines_were_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(AccessLog::default());
        let path = dir.path().join("pipe");
        let _pipe = log.serve_pipe(&path).unwrap();
        let mut reader = BufReader::new(File::open(&path).unwrap());
        until(|| log.has_reader());
        // The first lines fill the pipe, so that the next ones wait.
        let early = u64::MAX;
        let late = u64::MAX - 1;
        let of_one =
            "1700000000.250000 [uid:0,gid:0,pid:1] getattr (18446744073709551615): ok <0.000000>\n".len();
        assert!(MANY * of_one > PIPE_SIZE, "they would fit");
        (0..MANY).for_each(|_| log.append_note(noted(early)));
        until(|| log.waiting.lock().lines.is_empty());
        (0..WAITING_MAX + 2).for_each(|_| log.append_note(noted(late)));
        for (node, count) in [(early, MANY), (late, WAITING_MAX)] {
            for _ in 0..count {
                let line = next(&mut reader);
                assert!(line.contains(&format!("getattr ({node}): ok")), "{line}");
            }
        }
        assert_eq!(next(&mut reader), DROPPED);
        log.append_note(noted(3));
        assert!(next(&mut reader).contains("getattr (3): ok"));
    }
}

//! Lines about requests, for whoever reads the pipe that `.vellum/accesslog` leads to.
//!
//! A pipe, because the kernel asks nothing when a file of the mount is opened: so one process reads at a time. Lines
//! are made only while somebody does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;

/// Bytes that wait for a slow reader; what comes after is dropped, and the reader is told.
const WAITING_MAX: usize = 1 << 20;

/// What a reader gets in place of lines that it was too slow for.
const DROPPED: &[u8] = b"# lines were dropped\n";

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
    bytes: VecDeque<u8>,
    dropping: bool,
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
    pub fn append(&self, line: &[u8]) {
        let mut waiting = self.lock();
        let first = waiting.bytes.is_empty();
        if waiting.bytes.len() + line.len() <= WAITING_MAX {
            waiting.bytes.extend(line);
            waiting.dropping = false;
        } else if !waiting.dropping {
            waiting.bytes.extend(DROPPED);
            waiting.dropping = true;
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
                if (&pipe).write_all(&lines).is_err() {
                    break;
                }
            }
            self.is_read.store(false, Ordering::Relaxed);
        }
    }

    /// The next bytes; none if nobody reads any more.
    fn next(&self, pipe: &File) -> Option<Vec<u8>> {
        loop {
            let empty = |waiting: &mut Waiting| waiting.bytes.is_empty();
            let (waiting, _) = self
                .arrived
                .wait_timeout_while(self.lock(), LOOK, empty)
                .unwrap_or_else(PoisonError::into_inner);
            let nothing = waiting.bytes.is_empty();
            drop(waiting);
            if !nothing {
                std::thread::sleep(GATHER);
                return Some(std::mem::take(&mut self.lock().bytes).into());
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
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn lines_reach_one_reader_after_the_other_and_none_is_made_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (log, path) = (Arc::new(AccessLog::default()), dir.path().join("pipe"));
        let pipe = log.serve(&path).unwrap();
        assert!(!log.is_read());
        for name in ["first", "second"] {
            let reader = File::open(&path).unwrap();
            until(|| log.is_read());
            log.append(format!("{name}\n").as_bytes());
            let mut line = String::new();
            BufReader::new(reader).read_line(&mut line).unwrap();
            assert_eq!(line, format!("{name}\n"));
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
        let mut reader = File::open(&path).unwrap();
        until(|| log.is_read());
        // The first lines fill the pipe, so that the next ones wait.
        log.append(&vec![b'x'; WAITING_MAX]);
        until(|| log.lock().bytes.is_empty());
        log.append(&vec![b'y'; WAITING_MAX]);
        log.append(b"lost\n");
        log.append(b"lost\n");
        let mut text = vec![0; 2 * WAITING_MAX + DROPPED.len()];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text[2 * WAITING_MAX..], DROPPED);
        log.append(b"heard\n");
        let mut line = [0; 6];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"heard\n");
    }
}

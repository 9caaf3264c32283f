//! Lines about requests, for whoever has `.vellum/accesslog` open: each reader gets all that come while it reads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Bytes that wait for a slow reader; what comes after is dropped, and the reader is told.
const WAITING_MAX: usize = 1 << 20;

/// What a reader gets where nothing happened for a while: its process must be able to end.
const SILENCE: &[u8] = b"#\n";

/// What a reader gets in place of lines that it was too slow for.
const DROPPED: &[u8] = b"# lines were dropped\n";

/// The log.
#[derive(Debug, Default)]
pub struct AccessLog {
    open: AtomicUsize,
    readers: Mutex<Vec<Weak<Reader>>>,
}

/// Somebody who reads the log.
#[derive(Debug, Default)]
pub struct Reader {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: VecDeque<u8>,
    dropping: bool,
}

impl AccessLog {
    /// Whether lines are wanted.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// A new reader.
    pub fn open(&self) -> Arc<Reader> {
        let reader = Arc::new(Reader::default());
        let mut readers = self.lock();
        readers.push(Arc::downgrade(&reader));
        self.open.store(readers.len(), Ordering::Relaxed);
        reader
    }

    /// Hands a line to all readers.
    pub fn append(&self, line: &[u8]) {
        let mut readers = self.lock();
        readers.retain(|reader| reader.upgrade().is_some_and(|reader| reader.take(line)));
        self.open.store(readers.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Reader>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    fn take(&self, line: &[u8]) -> bool {
        let mut waiting = self.lock();
        if waiting.bytes.len() + line.len() <= WAITING_MAX {
            waiting.bytes.extend(line);
            waiting.dropping = false;
        } else if !waiting.dropping {
            waiting.bytes.extend(DROPPED);
            waiting.dropping = true;
        }
        self.arrived.notify_one();
        true
    }

    /// The next bytes, `size` at most; waits for some, `patience` at most.
    #[must_use]
    pub fn next(&self, size: usize, patience: Duration) -> Vec<u8> {
        let empty = |waiting: &mut Waiting| waiting.bytes.is_empty();
        let (mut waiting, _) = self
            .arrived
            .wait_timeout_while(self.lock(), patience, empty)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes.is_empty() {
            return SILENCE.get(..size.min(SILENCE.len())).unwrap_or_default().to_vec();
        }
        let len = size.min(waiting.bytes.len());
        waiting.bytes.drain(..len).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_costs_nothing() {
        let log = AccessLog::default();
        assert!(!log.is_read());
        let reader = log.open();
        assert!(log.is_read());
        drop(reader);
        log.append(b"line\n");
        assert!(!log.is_read());
    }

    #[test]
    fn a_slow_reader_is_told_once_that_lines_were_dropped() {
        let log = AccessLog::default();
        let reader = log.open();
        log.append(&vec![b'x'; WAITING_MAX]);
        log.append(b"lost\n");
        log.append(b"lost\n");
        let mut text = Vec::new();
        while text.len() < WAITING_MAX + DROPPED.len() {
            text.extend(reader.next(100_000, Duration::ZERO));
        }
        assert_eq!(&text[WAITING_MAX..], DROPPED);
        log.append(b"heard\n");
        assert_eq!(reader.next(100, Duration::ZERO), b"heard\n");
        assert_eq!(reader.next(100, Duration::ZERO), SILENCE);
    }
}

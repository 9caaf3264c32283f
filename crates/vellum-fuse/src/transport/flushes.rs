//! Requests of the device that wait for the disk.
//!
//! All requests that wait at the same time share one flush of the disk. So that many can wait, each does so in a thread
//! of its own, and the threads that read the device continue to read. Otherwise no more requests could share a flush
//! than there are such threads, and none of them would read meanwhile. Only the first request is answered by the thread
//! that read it: to wake another thread can take as long as the flush.
//!
//! Invariant: at most one thread that reads the device waits for the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::device::FuseDevice;
use super::service::{RequestService, answer_device_request};
use crate::wire::{FuseOperation, FuseRequest};

/// Threads for requests that are not the first: this many programs can share one flush.
const THREADS: usize = 8;

/// Hands requests that wait for the disk to other threads.
#[derive(Clone)]
pub(super) struct FlushQueue {
    taken: Arc<AtomicBool>,
    others: Sender<WaitingFlush>,
}

/// A request as it was read, with the descriptor that it was read from.
struct WaitingFlush {
    device: Arc<FuseDevice>,
    bytes: Vec<u8>,
}

/// The right of a thread that reads the device to wait for the disk itself.
pub(super) struct FirstFlushPermit(Arc<AtomicBool>);

impl FlushQueue {
    /// Starts the threads. They end when all clones of the queue are dropped.
    pub fn start<S: RequestService>(service: &Arc<S>) -> io::Result<(Self, Vec<JoinHandle<io::Result<()>>>)> {
        let (others, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let start = |_| {
            let service = service.clone();
            let waiting = waiting.clone();
            let work = move || {
                run_flush_worker(service.as_ref(), &waiting);
                Ok(())
            };
            std::thread::Builder::new().name("vellum-flush".into()).spawn(work)
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<_>>()?;
        Ok((Self { taken: Arc::default(), others }, threads))
    }

    /// Returns the permit to wait for the disk; None if another thread that reads the device has it.
    pub fn acquire_permit(&self) -> Option<FirstFlushPermit> {
        // Acquire here and release in the permit's drop: one flush at a time in the reading threads.
        let free = !self.taken.swap(true, Ordering::Acquire);
        free.then(|| FirstFlushPermit(self.taken.clone()))
    }

    /// Has another thread answer the request.
    pub fn enqueue_flush(&self, device: &Arc<FuseDevice>, request: &[u8]) {
        // Copied: the reader's buffer takes the next request while this one waits. Such a request has less than a
        // hundred bytes.
        let sent = self.others.send(WaitingFlush { device: device.clone(), bytes: request.to_vec() });
        debug_assert!(sent.is_ok(), "the threads for flushes end after those that read");
    }
}

impl Drop for FirstFlushPermit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether a request waits for the disk.
pub(super) fn needs_disk_flush(operation: &FuseOperation<'_>) -> bool {
    matches!(operation, FuseOperation::Fsync { .. } | FuseOperation::Fsyncdir { .. })
}

fn run_flush_worker(service: &impl RequestService, waiting: &Mutex<Receiver<WaitingFlush>>) {
    loop {
        // One thread waits at the channel, and the others for the lock: a receiver serves one thread at a time.
        let next = waiting.lock().recv();
        let Ok(WaitingFlush { device, bytes }) = next else { return };
        // It was decoded before it was enqueued, so this succeeds.
        let Ok(request) = FuseRequest::decode(&bytes) else { continue };
        let answer = answer_device_request(service, &device, &request, request.decode_operation());
        device.send_answer(request.header.unique, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reader_waits_at_a_time() {
        let (others, _waiting) = channel();
        let flushes = FlushQueue { taken: Arc::default(), others };
        let first = flushes.acquire_permit();
        assert!(first.is_some() && flushes.acquire_permit().is_none());
        drop(first);
        assert!(flushes.acquire_permit().is_some());
    }
}

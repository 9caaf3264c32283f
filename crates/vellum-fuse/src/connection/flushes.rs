//! Requests that wait for the disk, of those that come through the device.
//!
//! One flush is for all who wait: so that they do, each waits in a thread of its own, and those who read the device go on
//! reading. Else no more could share a flush than there are readers, and while it lasts nobody would be heard. Only the
//! first is answered by the thread that read it, since waking another one may take as long as the flush. Invariant: at
//! most one thread that reads the device waits here.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::{Device, Service, carry_out};
use crate::wire::{Operation, Request};

/// Threads for those who are not the first: programs that flush at the same time share one flush up to this many.
const THREADS: usize = 8;

/// Where requests go that wait for the disk.
#[derive(Clone)]
pub struct Flushes {
    taken: Arc<AtomicBool>,
    others: Sender<Waiting>,
}

/// A request as it was read, and the descriptor that it was read from.
struct Waiting {
    device: Arc<Device>,
    bytes: Vec<u8>,
}

/// The right of a thread that reads the device to wait for the disk by itself.
pub struct First(Arc<AtomicBool>);

impl Flushes {
    /// Starts the threads. They end when nobody has this any more.
    pub fn start<S: Service>(service: &Arc<S>) -> io::Result<(Self, Vec<JoinHandle<io::Result<()>>>)> {
        let (others, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let start = |_| {
            let (service, waiting) = (service.clone(), waiting.clone());
            let work = move || {
                serve(service.as_ref(), &waiting);
                Ok(())
            };
            std::thread::Builder::new().name("vellum-flush".into()).spawn(work)
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<_>>()?;
        Ok((Self { taken: Arc::default(), others }, threads))
    }

    /// The right to wait, unless another thread that reads has it.
    pub fn first(&self) -> Option<First> {
        let free = !self.taken.swap(true, Ordering::Acquire);
        free.then(|| First(self.taken.clone()))
    }

    /// Lets another thread answer.
    pub fn pass_on(&self, device: &Arc<Device>, request: &[u8]) {
        let sent = self.others.send(Waiting { device: device.clone(), bytes: request.to_vec() });
        debug_assert!(sent.is_ok(), "the threads for flushes end after those that read");
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether a request waits for the disk.
pub fn waits(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Fsync { .. } | Operation::Fsyncdir { .. })
}

fn serve(service: &impl Service, waiting: &Mutex<Receiver<Waiting>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Waiting { device, bytes }) = next else { return };
        // It was decoded before.
        let Ok(request) = Request::decode(&bytes) else { continue };
        let answer = carry_out(service, &device, &request, request.operation());
        device.answer(request.header.unique, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reader_waits_at_a_time() {
        let (others, _waiting) = channel();
        let flushes = Flushes { taken: Arc::default(), others };
        let first = flushes.first();
        assert!(first.is_some() && flushes.first().is_none());
        drop(first);
        assert!(flushes.first().is_some());
    }
}

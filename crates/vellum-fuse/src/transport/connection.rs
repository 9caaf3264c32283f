//! The connection to the kernel: the threads that read requests, have them answered, and continue.
//!
//! Invariant: all threads end when the mount does. If a ring fails, the mount is to be ended: the kernel sends the requests of
//! its processor to no other place, and programs would wait for them for ever.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::Pid;

use super::device::{FuseDevice, REQUEST_MAX};
use super::flushes::{FlushQueue, needs_disk_flush};
use super::pending::PendingRequests;
use super::readers::{DeviceReaders, is_long_operation};
use super::rings::RingTransport;
use super::service::{RequestService, answer_device_request};
use super::waiting_writes::{WaitingWrites, is_waiting_write};
use super::watchdog::{Watchdog, WatchedService};
use crate::wire::FuseRequest;

/// How long the device's thread sleeps after each request if there are rings. The device then carries only the nodes
/// that the kernel has forgotten; after a pause it reads many of them at once, and a program that removes files does
/// not wake the thread for each.
const FORGET_PAUSE: Duration = Duration::from_millis(10);

/// The threads that serve a mount.
pub struct FuseConnection {
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The first message says how the mount ended, or which ring has failed.
    end: Receiver<io::Result<()>>,
    ended: Sender<io::Result<()>>,
    pending: Arc<PendingRequests>,
}

impl FuseConnection {
    /// Starts the threads that answer requests, after the handshake: those of the rings, or else `threads` threads that
    /// read the device, each with its own descriptor.
    pub fn start<S: RequestService>(
        device: FuseDevice,
        rings: Option<RingTransport>,
        service: S,
        threads: usize,
    ) -> io::Result<Self> {
        let service = Arc::new(WatchedService::new(service));
        // With rings, only `forget` requests come through the device, and nothing waits for them.
        let (threads, pause) = if rings.is_some() { (1, Some(FORGET_PAUSE)) } else { (threads, None) };
        let writes = WaitingWrites::start(&service)?;
        let (ended, end) = channel();
        let mut serving =
            rings.map_or_else(|| Ok(Vec::new()), |rings| rings.start_threads(&service, &writes, &ended))?;
        let (flushes, waiting) = FlushQueue::start(&service)?;
        serving.extend(waiting);
        let readers = Arc::new(DeviceReaders::new(threads));
        // The watch needs a descriptor of its own, since it asks for waiting requests while the readers sleep in
        // `read`.
        serving.extend(readers.start_watch(&device)?);
        // Each reader has its own descriptor (`FUSE_DEV_IOC_CLONE`): the kernel then keeps its requests apart, and an
        // answer must be written to the descriptor that its request was read from.
        let clones: io::Result<Vec<FuseDevice>> = (1..threads).map(|_| device.reopen()).collect();
        let devices = clones?.into_iter().chain([device]);
        let start = |(i, device): (usize, FuseDevice)| {
            let service = service.clone();
            let flushes = flushes.clone();
            let writes = writes.clone();
            let readers = readers.clone();
            let work = move || {
                let thread = rustix::thread::gettid();
                let reader = DeviceReader { thread, device: Arc::new(device), flushes, writes, readers };
                let served = reader.serve_requests(service.as_ref(), pause);
                // A thread ends when the mount does, or when it fails. Threads that are parked must not wait for it.
                reader.readers.finish_readers();
                served
            };
            std::thread::Builder::new().name(format!("vellum-fuse-{i}")).spawn(work)
        };
        for thread in devices.enumerate().map(start) {
            serving.push(thread?);
        }
        Ok(Self { threads: serving, end, ended, pending: service.pending_requests() })
    }

    /// Starts the watchdog. `connection` is the kernel's number of the mount.
    pub fn start_watchdog(
        &self,
        connection: u32,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> io::Result<Watchdog> {
        Watchdog::start(self.pending.clone(), connection, report)
    }

    /// Waits until the mount ends, or a ring fails: then the mount still exists. Fails with the first error of a thread.
    pub fn wait_until_unmounted(self) -> io::Result<()> {
        let Self { threads, end, ended, .. } = self;
        let join = move || {
            let done = join_threads(threads);
            // Nobody waits for it any more if a ring has failed.
            let _ = ended.send(done);
        };
        // In a thread of its own: the failure of a ring ends this wait while other threads go on.
        std::thread::Builder::new().name("vellum-joining".into()).spawn(join)?;
        end.recv().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount died")))
    }
}

fn join_threads(threads: Vec<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    let mut end = Ok(());
    for thread in threads {
        let done = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount died")));
        // The first error counts, and all threads are waited for.
        end = end.and(done);
    }
    end
}

/// One of the threads that read the device.
struct DeviceReader {
    thread: Pid,
    device: Arc<FuseDevice>,
    flushes: FlushQueue,
    writes: WaitingWrites,
    readers: Arc<DeviceReaders>,
}

impl DeviceReader {
    /// Answers requests until the mount ends. Sleeps for `pause` after each request.
    fn serve_requests(&self, service: &impl RequestService, pause: Option<Duration>) -> io::Result<()> {
        let mut room = vec![0; REQUEST_MAX];
        while let Some(bytes) = self.device.read_request(&mut room)? {
            let request = FuseRequest::decode(bytes).map_err(io::Error::other)?;
            let operation = request.decode_operation();
            let is_waiting = operation.as_ref().is_ok_and(|operation| is_waiting_write(service, operation));
            let is_long = is_waiting || operation.as_ref().is_ok_and(is_long_operation);
            self.readers.begin_request(self.thread, &request.header, is_long);
            if is_waiting {
                self.writes.enqueue_device_write(&self.device, bytes);
                continue;
            }
            let _first = if operation.as_ref().is_ok_and(needs_disk_flush) {
                let Some(first) = self.flushes.acquire_permit() else {
                    // Copied and handed over. This thread reads on, so that further requests can share the flush.
                    self.flushes.enqueue_flush(&self.device, bytes);
                    continue;
                };
                Some(first)
            } else {
                None
            };
            let answer = answer_device_request(service, &self.device, &request, operation);
            self.readers
                .answer_request(self.thread, || self.device.send_answer(request.header.unique, answer));
            if let Some(pause) = pause {
                std::thread::sleep(pause);
            }
            // Another thread may have become the sole reader meanwhile.
            self.readers.wait_for_sole_reader(self.thread);
        }
        Ok(())
    }
}

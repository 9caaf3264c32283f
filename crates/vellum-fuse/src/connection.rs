//! The connection to the kernel: threads that read requests from the device, have them answered, and continue.
//!
//! Invariants: each request is answered by the descriptor that it was read from, once, if it wants an answer; a thread
//! that answers requests tells the kernel nothing else. When the mount is gone, all threads end. Absent: interrupts
//! (the kernel waits for our answer instead), and what requests mean.

mod busy_poll;
mod device;
mod flushes;
mod handshake;
mod readers;
mod ring;
mod ring_turn;
mod rings;
mod schedule;
mod watchdog;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use device::{FuseDevice, KernelNotifier};
use flushes::FlushQueue;
pub use handshake::perform_handshake;
use readers::DeviceReaders;
use ring::{RequestRing, RingSlot};
pub use rings::RingTransport;
use rustix::io::Errno;
use rustix::thread::Pid;
pub use watchdog::Watchdog;
use watchdog::{PendingRequests, WatchedService};

use crate::wire::{FuseAnswer, FuseOperation, FuseRequest, MalformedRequest};

/// Bytes of the largest write that the kernel sends in one request: the most that it does without being told otherwise
/// by its administrator.
pub const MAX_WRITE: usize = 1 << 20;

/// Room for a request: the largest write, and what stands in front of it, rounded up to a page.
const REQUEST_MAX: usize = MAX_WRITE + 4096;

/// How long a thread that only hears what the kernel has forgotten sleeps in between. It hears of many at once then,
/// and whoever removes files does not wake it for each.
const FORGET_PAUSE: Duration = Duration::from_millis(10);

/// Who answers requests.
pub trait RequestService: Send + Sync + 'static {
    /// Answers a request. With [`FuseAnswer::Later`], `later` must be used.
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer;

    /// Whether content that is asked for only has to be copied. It may be said of none.
    fn is_content_cached(&self, _node: u64, _offset: u64, _len: u32) -> bool {
        false
    }
}

/// Where an answer goes: the way that the request came.
#[derive(Clone)]
enum ReplyPath {
    Device(Arc<FuseDevice>),
    Ring(Arc<RequestRing>, RingSlot),
}

/// The right to answer a request later, from another thread.
#[derive(Clone, Copy)]
pub struct DeferredReply<'w> {
    way: &'w ReplyPath,
    unique: u64,
    in_hand: Option<&'w Arc<PendingRequests>>,
}

/// A request that is answered later: with an error, if it is dropped.
pub struct PendingAnswer {
    way: ReplyPath,
    unique: u64,
    in_hand: Option<Arc<PendingRequests>>,
    answered: bool,
}

impl DeferredReply<'_> {
    /// Takes the request along.
    #[must_use]
    pub fn into_pending(self) -> PendingAnswer {
        let way = self.way.clone();
        let in_hand = self.in_hand.cloned();
        PendingAnswer { way, unique: self.unique, in_hand, answered: false }
    }
}

impl PendingAnswer {
    /// Answers it.
    pub fn send_answer(mut self, answer: FuseAnswer) {
        self.deliver_answer(answer);
    }

    fn deliver_answer(&mut self, answer: FuseAnswer) {
        self.answered = true;
        match &self.way {
            ReplyPath::Device(device) => device.send_answer(self.unique, answer),
            ReplyPath::Ring(ring, slot) => {
                // If the ring is gone, nobody waits for the answer.
                let _ = ring.answer_slot(*slot, self.unique, answer);
                ring.defer_submission();
            }
        }
        if let Some(in_hand) = &self.in_hand {
            in_hand.end_request(self.unique);
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if !self.answered {
            self.deliver_answer(FuseAnswer::Failed(Errno::IO));
        }
    }
}

/// The threads that serve a mount.
pub struct FuseConnection {
    threads: Vec<JoinHandle<io::Result<()>>>,
    in_hand: Arc<PendingRequests>,
}

impl FuseConnection {
    /// Lets threads answer requests: those of the rings, or else as many as said that read the device, each with a
    /// descriptor of its own. The handshake is done.
    pub fn start<S: RequestService>(
        device: FuseDevice,
        rings: Option<RingTransport>,
        service: S,
        threads: usize,
    ) -> io::Result<Self> {
        let service = Arc::new(WatchedService::new(service));
        // Beside rings, the device says no more than what the kernel has forgotten.
        let (threads, pause) = if rings.is_some() { (1, Some(FORGET_PAUSE)) } else { (threads, None) };
        let mut serving = rings.map_or_else(|| Ok(Vec::new()), |rings| rings.start_threads(&service))?;
        let (flushes, waiting) = FlushQueue::start(&service)?;
        serving.extend(waiting);
        let readers = Arc::new(DeviceReaders::new(threads));
        serving.extend(readers.start_watch(&device)?);
        let clones: io::Result<Vec<FuseDevice>> = (1..threads).map(|_| device.reopen()).collect();
        let devices = clones?.into_iter().chain([device]);
        let start = |(i, device): (usize, FuseDevice)| {
            let service = service.clone();
            let flushes = flushes.clone();
            let readers = readers.clone();
            let work = move || {
                let thread = rustix::thread::gettid();
                let reader = DeviceReader { thread, device: Arc::new(device), flushes, readers };
                let served = reader.serve_requests(service.as_ref(), pause);
                reader.readers.finish_readers();
                served
            };
            std::thread::Builder::new().name(format!("vellum-fuse-{i}")).spawn(work)
        };
        for thread in devices.enumerate().map(start) {
            serving.push(thread?);
        }
        Ok(Self { threads: serving, in_hand: service.pending_requests() })
    }

    /// Lets somebody look whether requests are answered. `connection` is the kernel's number of the mount.
    pub fn start_watchdog(
        &self,
        connection: u32,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> io::Result<Watchdog> {
        Watchdog::start(self.in_hand.clone(), connection, report)
    }

    /// Waits until the mount is gone.
    pub fn wait_until_unmounted(self) -> io::Result<()> {
        let mut end = Ok(());
        for thread in self.threads {
            let done = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount died")));
            end = end.and(done);
        }
        end
    }
}

/// One of the threads that read the device.
struct DeviceReader {
    thread: Pid,
    device: Arc<FuseDevice>,
    flushes: FlushQueue,
    readers: Arc<DeviceReaders>,
}

impl DeviceReader {
    /// Answers requests until the mount is gone.
    fn serve_requests(&self, service: &impl RequestService, pause: Option<Duration>) -> io::Result<()> {
        let mut room = vec![0; REQUEST_MAX];
        while let Some(bytes) = self.device.read_request(&mut room)? {
            let request = FuseRequest::decode(bytes).map_err(io::Error::other)?;
            let operation = request.decode_operation();
            self.readers.begin_request(
                self.thread,
                &request.header,
                operation.as_ref().is_ok_and(readers::is_long_operation),
            );
            let _first = if operation.as_ref().is_ok_and(flushes::needs_disk_flush) {
                let Some(first) = self.flushes.acquire_permit() else {
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
            self.readers.wait_for_sole_reader(self.thread);
        }
        Ok(())
    }
}

/// What is answered to a request of the device.
fn answer_device_request(
    service: &impl RequestService,
    device: &Arc<FuseDevice>,
    request: &FuseRequest<'_>,
    operation: Result<FuseOperation<'_>, MalformedRequest>,
) -> FuseAnswer {
    let way = ReplyPath::Device(device.clone());
    let unique = request.header.unique;
    match operation {
        Ok(operation) => {
            service.answer_request(request, operation, DeferredReply { way: &way, unique, in_hand: None })
        }
        Err(_) => FuseAnswer::Failed(Errno::IO),
    }
}

#[cfg(test)]
mod tests;

//! The rings of all processors, and the threads that serve them.
//!
//! A program's request is queued on the processor that the program runs on, and a thread there answers it. So no other
//! processor has to be woken, which is most of the cost of a request to the device. Requests that are known to take
//! long (large reads, waiting for disks) are handed to threads that may run on any processor, so that they do not delay
//! other requests of their processor.
//!
//! Invariant: everything that can fail is done before the handshake announces the rings to the kernel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::busy_poll::BusyPoll;
use super::device::FuseDevice;
use super::flushes::needs_disk_flush;
use super::ring::{RequestRing, RingSlot};
use super::ring_turn::{RingTurn, TurnWatch};
use super::service::{DeferredReply, ReplyPath, RequestService};
use super::waiting_writes::{WaitingWrites, is_waiting_write};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest};

/// Lists the processors that the machine may have: the kernel has one queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// On a machine with more processors than this, requests come through the device: each ring takes memory and threads.
const MAX_RINGS: u16 = 64;

/// Threads of one ring: one has the turn, and the other gets it if a request holds up the first.
const THREADS: usize = 2;

/// Threads that answer requests that take long, for all rings together.
const LONG_THREADS: usize = 8;

/// From this length on, a read takes longer than waking another processor, bytes: if the content has to be fetched and
/// decoded.
const LONG_READ: usize = 64 << 10;

/// The same for content that only has to be copied.
const LONG_CACHED_READ: usize = 512 << 10;

/// The rings of a mount.
pub struct RingTransport {
    queues: Vec<RingQueue>,
    watch: TurnWatch,
    poll: BusyPoll,
}

struct RingQueue {
    ring: Arc<RequestRing>,
    turn: RingTurn,
    /// Whether its slots were given to the kernel.
    registered: AtomicBool,
}

/// A request that takes long.
struct LongRequest {
    ring: Arc<RequestRing>,
    slot: RingSlot,
}

/// Who carries out requests that would delay others of their processor.
#[derive(Clone)]
struct SlowRequests {
    long: Sender<LongRequest>,
    writes: WaitingWrites,
}

impl RingTransport {
    /// Creates the rings. Fails if the machine has too many processors, or does not offer io_uring.
    pub fn new(device: &FuseDevice) -> io::Result<Self> {
        // Possible, not present: the kernel makes a queue for each processor that could be plugged in, and sends no
        // request until all of them are registered.
        let count = count_possible_processors()?;
        if count > MAX_RINGS {
            return Err(io::Error::other("too many processors"));
        }
        let queue = |number| {
            let ring = Arc::new(RequestRing::new(device.try_clone()?, number)?);
            Ok(RingQueue { ring, turn: RingTurn::default(), registered: AtomicBool::new(false) })
        };
        let queues = (0..count).map(queue).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { queues, watch: TurnWatch::default(), poll: BusyPoll::new() })
    }

    /// Starts the threads that serve the rings, after the handshake has announced them to the kernel. Failures of rings go to
    /// `failures`.
    pub(super) fn start_threads<S: RequestService>(
        self,
        service: &Arc<S>,
        writes: &WaitingWrites,
        failures: &Sender<io::Result<()>>,
    ) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        let rings = Arc::new(self);
        let (long, longs) = channel();
        let slow = SlowRequests { long, writes: writes.clone() };
        let longs = Arc::new(Mutex::new(longs));
        let (ready, registered) = channel();
        let mut threads = Vec::new();
        for number in 0..rings.queues.len() {
            for _ in 0..THREADS {
                let rings = rings.clone();
                let service = service.clone();
                let slow = slow.clone();
                let ready = ready.clone();
                let failures = failures.clone();
                threads.push(spawn_thread("ring", move || {
                    let served = rings.serve_ring(number, service.as_ref(), &slow, &ready);
                    report_ring_failure(served, &failures);
                    Ok(())
                })?);
            }
        }
        for _ in 0..LONG_THREADS {
            let service = service.clone();
            let longs = longs.clone();
            let failures = failures.clone();
            threads.push(spawn_thread("long", move || {
                report_ring_failure(run_long_worker(service.as_ref(), &longs), &failures);
                Ok(())
            })?);
        }
        rings.start_submitter()?;
        let watched = rings.clone();
        threads.push(spawn_thread("watch", move || {
            let turns: Vec<_> = watched.queues.iter().map(|queue| &queue.turn).collect();
            watched.watch.watch_turns(&turns);
            Ok(())
        })?);
        // The kernel sends no requests before all rings are registered.
        // A ring that cannot be registered fails the mount here. The kernel knows of the rings by now, and would wait
        // for the missing one without end.
        registered.iter().take(rings.queues.len()).collect::<io::Result<()>>()?;
        Ok(threads)
    }

    /// Makes every ring fail as soon as it needs the kernel.
    #[cfg(test)]
    pub(super) fn ring_breaker(&self) -> impl Fn() + use<> {
        let rings: Vec<_> = self.queues.iter().map(|queue| queue.ring.clone()).collect();
        move || rings.iter().for_each(|ring| ring.break_ring())
    }

    /// Starts the thread that submits answers of other threads. It ends with the rings.
    fn start_submitter(&self) -> io::Result<()> {
        let (submitter, rings) = channel::<Arc<RequestRing>>();
        for queue in &self.queues {
            // The ring is new, so it was not set before.
            let _ = queue.ring.submitter.set(submitter.clone());
        }
        let submit = move || {
            for ring in rings {
                // It fails only if the mount has ended.
                let _ = ring.submit_answers();
            }
            Ok(())
        };
        spawn_thread("submit", submit).map(|_| ())
    }

    /// The work of one thread of a ring.
    fn serve_ring(
        &self,
        number: usize,
        service: &impl RequestService,
        slow: &SlowRequests,
        ready: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        // The affinity is set before the slots are registered: the kernel delivers a slot's requests in the context
        // of the thread that submitted it, which should be here.
        let queue = &self.queues[number];
        pin_to_processor(number);
        while queue.turn.wait_for_turn() {
            // The first thread that gets the turn registers, and so receives the first requests.
            if !queue.registered.swap(true, Ordering::AcqRel) {
                // The receiver is gone only if another ring could not be registered.
                let _ = ready.send(queue.ring.register_slots());
            }
            let served = self.serve_turn(queue, service, slow);
            // The end of the mount is no failure of the ring.
            let served =
                served.or_else(|error| if queue.ring.is_connected() { Err(error) } else { Ok(false) });
            if !matches!(served, Ok(true)) {
                // The other thread of this ring, and the watch, learn that the mount has ended.
                queue.turn.finish_turns();
                self.watch.finish_watch();
                return served.map(|_| ());
            }
        }
        Ok(())
    }

    /// Answers requests. Returns true when another thread got the turn, and false when the mount has ended.
    fn serve_turn(
        &self,
        queue: &RingQueue,
        service: &impl RequestService,
        slow: &SlowRequests,
    ) -> io::Result<bool> {
        while let Some(slot) = queue.ring.next_request(&self.poll)? {
            let request = decode_slot_request(&queue.ring, slot);
            let is_waiting = |(_, operation): &_| is_waiting_write(service, operation);
            if request.as_ref().is_ok_and(is_waiting) {
                slow.writes.enqueue_ring_write(&queue.ring, slot);
                continue;
            }
            let is_long = |(request, operation): &_| is_long_request(service, request, operation);
            if request.as_ref().is_ok_and(is_long) {
                // The slot stays in use until a thread of the long requests answers it. Meanwhile the ring has its
                // other slots.
                let sent = slow.long.send(LongRequest { ring: queue.ring.clone(), slot });
                debug_assert!(sent.is_ok(), "the threads for what takes long end after those of the rings");
                continue;
            }
            // From here on the watch may give the turn away; the slot stays this thread's until it is answered.
            let work = queue.turn.begin_request(&self.watch);
            answer_slot_request(service, &queue.ring, slot, request)?;
            // Another thread takes requests now. The answer must not wait for that thread's next call of the kernel,
            // which it may make only after a long sleep.
            if !queue.turn.end_request(&work) {
                queue.ring.submit_answers()?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn spawn_thread(
    name: &str,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().name(format!("vellum-{name}")).spawn(work)
}

/// Tells whoever waits for the end of the mount that a ring has failed.
fn report_ring_failure(served: io::Result<()>, failures: &Sender<io::Result<()>>) {
    if served.is_err() {
        // Nobody waits any more if the mount has ended.
        let _ = failures.send(served);
    }
}

/// The number of queues that the kernel has.
fn count_possible_processors() -> io::Result<u16> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    // The text is a list of ranges in ascending order, such as `0-3` or `0,2-5`: the last number is the highest.
    let last = text.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<u16>().ok());
    last.and_then(|last| last.checked_add(1)).ok_or_else(|| io::Error::other(format!("{POSSIBLE}: {text:?}")))
}

/// Keeps this thread on its ring's processor. If that fails (the processor is off, or not allowed), the ring is only
/// slower.
fn pin_to_processor(processor: usize) {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Decodes the request in a slot. It is valid until the slot is answered.
fn decode_slot_request(
    ring: &RequestRing,
    slot: RingSlot,
) -> io::Result<(FuseRequest<'_>, FuseOperation<'_>)> {
    let request = FuseRequest::decode(ring.request_bytes(slot)?).map_err(io::Error::other)?;
    let operation = request.decode_operation().map_err(io::Error::other)?;
    Ok((request, operation))
}

/// Whether a request would delay others of its processor. If another kind of request does, [`TurnWatch`] notices it.
fn is_long_request(
    service: &impl RequestService,
    request: &FuseRequest<'_>,
    operation: &FuseOperation<'_>,
) -> bool {
    if let FuseOperation::Read { offset, len, .. } = *operation {
        let bytes = len as usize;
        bytes >= LONG_CACHED_READ
            || bytes >= LONG_READ && !service.is_content_cached(request.header.node, offset, len)
    } else {
        needs_disk_flush(operation)
    }
}

fn run_long_worker(service: &impl RequestService, longs: &Mutex<Receiver<LongRequest>>) -> io::Result<()> {
    loop {
        // The lock is held while waiting, which is fair enough: it is given back with the request, before the work on
        // it.
        let next = longs.lock().recv();
        let Ok(LongRequest { ring, slot }) = next else { return Ok(()) };
        answer_ring_request(service, &ring, slot)?;
    }
}

/// Has a request answered by a thread that takes none from the ring. Fails if the ring does: if the mount has ended, nobody
/// waits for the answer.
pub(super) fn answer_ring_request(
    service: &impl RequestService,
    ring: &Arc<RequestRing>,
    slot: RingSlot,
) -> io::Result<()> {
    let answered = answer_slot_request(service, ring, slot, decode_slot_request(ring, slot))
        .and_then(|()| ring.submit_answers());
    answered.or_else(|error| if ring.is_connected() { Err(error) } else { Ok(()) })
}

fn answer_slot_request(
    service: &impl RequestService,
    ring: &Arc<RequestRing>,
    slot: RingSlot,
    request: io::Result<(FuseRequest<'_>, FuseOperation<'_>)>,
) -> io::Result<()> {
    // Read before the answer: the slot's memory is overwritten by it, and is the kernel's again afterwards.
    let unique = ring.request_unique(slot);
    let answer = match request {
        Ok((request, operation)) => {
            let path = ReplyPath::Ring(ring.clone(), slot);
            service.answer_request(&request, operation, DeferredReply::new(&path, unique))
        }
        Err(_) => FuseAnswer::Failed(Errno::IO),
    };
    ring.answer_slot(slot, unique, answer)
}

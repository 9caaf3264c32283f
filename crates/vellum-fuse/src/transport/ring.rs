//! A ring: one processor's queue of requests. Requests and answers are in memory that the kernel shares with the
//! process.
//!
//! A ring has a number of slots. The kernel owns a slot until it has put a request into it and
//! [`RequestRing::next_request`] returns the slot. The caller then owns it, until [`RequestRing::answer_slot`] gives it
//! back.
//!
//! Invariants: only the owner of a slot touches its memory, and it answers once. A slot is given back even if its
//! request wants no answer, since the kernel waits for the slot.
//!
//! Deliberately absent: which thread waits for requests, and on which processor.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, types};
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::busy_poll::BusyPoll;
use super::device::{FuseDevice, MAX_WRITE};
use crate::wire::{FuseAnswer, REQUEST_HEAD_LEN, encode_answer_head};

/// Slots of a ring: requests that programs on one processor can have in progress at once; more wait in the kernel. A
/// slot takes as much memory as the largest request that it has carried.
pub const SLOTS: usize = 16;

/// Entries of the submission queue. There are more than slots: the kernel may hand out a slot again before it has freed
/// the entry by which the slot was answered.
const ENTRIES: u32 = 4 * SLOTS as u32;

/// The commands of FUSE over io_uring (`FUSE_IO_URING_CMD_…`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The layout of a slot's memory: the headers (`fuse_uring_req_header`), the descriptors of the two parts, and the
/// payload. The room in front of the payload is used to join a request's parts into the form that the device delivers.
const OPERATION_AT: usize = 128;
const OPERATION_MAX: usize = 128;
const ENTRY_AT: usize = 256;
const COMMIT_ID_AT: usize = ENTRY_AT + 8;
const PAYLOAD_LEN_AT: usize = ENTRY_AT + 16;
const HEADERS_LEN: usize = 288;
const PARTS_AT: usize = 512;
const PAYLOAD_AT: usize = 4096;
const PAYLOAD_LEN: usize = MAX_WRITE;

/// The parts of a slot: headers and payload (`FUSE_URING_IOV_SEGS`).
const PARTS: u32 = 2;

/// The offset at which an entry of the submission queue has the number of parts (`io_uring_sqe.len`).
const ENTRY_LEN_AT: usize = 24;

/// The requests of one processor.
pub struct RequestRing {
    uring: IoUring<Entry128, cqueue::Entry>,
    device: FuseDevice,
    queue: u16,
    slots: Vec<MmapRaw>,
    /// Slots that are still in use. The kernel retires a slot if it rejects a command for it.
    alive: AtomicUsize,
    submitting: Mutex<()>,
    /// Requests that arrived while the slots were registered.
    completing: Mutex<Vec<RingSlot>>,
    /// Leads to the thread that submits answers of other threads; see [`RequestRing::defer_submission`].
    pub submitter: OnceLock<Sender<Arc<RequestRing>>>,
    #[cfg(test)]
    is_broken: std::sync::atomic::AtomicBool,
}

/// A slot of a ring, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSlot(usize);

impl RequestRing {
    /// Creates the ring of a queue. The kernel does not know it yet.
    pub fn new(device: FuseDevice, queue: u16) -> io::Result<Self> {
        // Entries of 128 bytes, because the commands of FUSE do not fit into the usual 64.
        let uring = IoUring::<Entry128, cqueue::Entry>::builder().build(ENTRIES)?;
        // Anonymous pages take memory only when they are touched, so a slot costs little until it carries a large
        // request.
        let room = || Ok(MmapRaw::from(MmapOptions::new().len(PAYLOAD_AT + PAYLOAD_LEN).map_anon()?));
        let slots = (0..SLOTS).map(|_| room()).collect::<io::Result<Vec<_>>>()?;
        let alive = AtomicUsize::new(SLOTS);
        Ok(Self {
            uring,
            device,
            queue,
            slots,
            alive,
            submitting: Mutex::default(),
            completing: Mutex::default(),
            submitter: OnceLock::new(),
            #[cfg(test)]
            is_broken: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// Gives all slots to the kernel. Requests are delivered to the thread that calls this, or to one that has answered
    /// a request since.
    pub fn register_slots(&self) -> io::Result<()> {
        for number in 0..self.slots.len() {
            let parts = self.write_slot_descriptor(RingSlot(number));
            self.push_command(RingSlot(number), REGISTER, 0, Some(parts))?;
        }
        // All registrations in one call of the kernel.
        self.submit_answers()?;
        let mut early = Vec::new();
        while let Some((slot, code)) = self.take_completion() {
            // The kernel answers a registration at once only if it refuses it. Anything else that completes this
            // early is a first request.
            if code < 0 {
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            early.push(slot);
        }
        self.completing.lock().extend(early);
        Ok(())
    }

    /// Writes the descriptors of a slot's two parts, and returns their address.
    fn write_slot_descriptor(&self, slot: RingSlot) -> u64 {
        let at = |offset: usize| self.slot_address(slot, offset) as usize as u64;
        let parts = [at(0), HEADERS_LEN as u64, at(PAYLOAD_AT), PAYLOAD_LEN as u64];
        for (number, word) in parts.into_iter().enumerate() {
            self.write_slot(slot, PARTS_AT + 8 * number, &word.to_ne_bytes());
        }
        at(PARTS_AT)
    }

    /// Waits for a request, and returns its slot; None when the mount has ended.
    pub fn next_request(&self, poll: &BusyPoll) -> io::Result<Option<RingSlot>> {
        loop {
            match self.take_completion() {
                Some((slot, 0..)) => {
                    poll.record_request();
                    // Earlier answers must not wait until this request is answered.
                    self.submit_answers()?;
                    return Ok(Some(slot));
                }
                Some((_, code)) if is_unmounted_code(code) => return Ok(None),
                // A slot whose command was rejected never completes again. The ring goes on with the others, and
                // fails with the last one.
                Some((_, code)) if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 => {
                    return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                }
                Some(_) => {}
                None => self.submit_and_wait(poll)?,
            }
        }
    }

    /// Submits answers, and waits for a request.
    fn submit_and_wait(&self, poll: &BusyPoll) -> io::Result<()> {
        if let Some(permit) = poll.acquire_permit() {
            // Answers first: the kernel may already have the next request for one of these slots.
            self.enter_ring(0)?;
            if permit.poll_until(|| self.has_completion()) {
                return Ok(());
            }
        }
        self.enter_ring(1)
    }

    fn has_completion(&self) -> bool {
        let early = self.completing.lock();
        #[expect(unsafe_code, reason = "the ring is shared by threads")]
        // SAFETY: the lock is held, so no other thread uses the queue.
        let none = unsafe { self.uring.completion_shared().is_empty() };
        !none || !early.is_empty()
    }

    fn take_completion(&self) -> Option<(RingSlot, i32)> {
        let mut early = self.completing.lock();
        // Requests that arrived during the registration come before those in the queue.
        if let Some(slot) = early.pop() {
            return Some((slot, 0));
        }
        #[expect(unsafe_code, reason = "the ring is shared by threads")]
        // SAFETY: the lock is held, so no other thread uses the queue.
        let entry = unsafe { self.uring.completion_shared().next() }?;
        Some((RingSlot(usize::try_from(entry.user_data()).ok()?), entry.result()))
    }

    /// Submits all answers to the kernel, including those of threads that will not submit them.
    pub fn submit_answers(&self) -> io::Result<()> {
        while !self.is_submitted() {
            self.enter_ring(0)?;
        }
        Ok(())
    }

    /// Has another thread submit the answers. The kernel delivers a slot's next request in the context of the thread
    /// that submitted the slot. So a thread that may go on to wait for the kernel must not submit: it could wait for
    /// the request that it would have to deliver.
    pub fn defer_submission(self: &Arc<Self>) {
        if let Some(submitter) = self.submitter.get() {
            // The thread ends only with the mount, when no process waits for the answer.
            let _ = submitter.send(self.clone());
        }
    }

    /// Whether the mount still exists.
    pub fn is_connected(&self) -> bool {
        self.device.is_connected()
    }

    fn is_submitted(&self) -> bool {
        let _one = self.submitting.lock();
        #[expect(unsafe_code, reason = "the ring is shared by threads")]
        // SAFETY: the lock is held, so no other thread uses the queue. Even reading it needs the lock: dropping the
        // queue writes its tail back, and entries that another thread had pushed meanwhile would be lost.
        unsafe {
            self.uring.submission_shared().is_empty()
        }
    }

    /// Makes the ring fail when it needs the kernel the next time.
    #[cfg(test)]
    pub fn break_ring(&self) {
        self.is_broken.store(true, Ordering::Release);
    }

    fn enter_ring(&self, wait_for: usize) -> io::Result<()> {
        #[cfg(test)]
        if self.is_broken.load(Ordering::Acquire) {
            return Err(Errno::BADFD.into());
        }
        match self.uring.submit_and_wait(wait_for) {
            Ok(_) => Ok(()),
            // A signal, or a kernel that is short of memory: the caller tries again.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The request in a slot, in the form that the device delivers.
    ///
    /// The slice is valid until the slot is answered; the caller must drop it before that.
    pub fn request_bytes(&self, slot: RingSlot) -> io::Result<&[u8]> {
        // The kernel states three lengths. They must agree before any byte is used.
        let word = |offset| u32::from_ne_bytes(self.read_slot(slot, offset));
        let whole = word(0) as usize;
        let payload = word(PAYLOAD_LEN_AT) as usize;
        let operation = whole.checked_sub(REQUEST_HEAD_LEN + payload);
        let operation = operation.filter(|len| *len <= OPERATION_MAX && payload <= PAYLOAD_LEN);
        let operation =
            operation.ok_or_else(|| io::Error::other("a request's length is not that of its parts"))?;
        // The parts are joined in front of the payload, which stays where it is: it is the largest part.
        let begin = PAYLOAD_AT - operation - REQUEST_HEAD_LEN;
        let from = self.slot_address(slot, 0);
        let to = self.slot_address(slot, begin);
        #[expect(unsafe_code, reason = "the kernel wrote this memory")]
        // SAFETY: we own the slot, and all of these places are in it: `begin` is at least `PAYLOAD_AT - 168`, which
        // lies behind the headers, and `payload` was checked.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, REQUEST_HEAD_LEN);
            std::ptr::copy_nonoverlapping(from.add(OPERATION_AT), to.add(REQUEST_HEAD_LEN), operation);
            Ok(std::slice::from_raw_parts(to, whole))
        }
    }

    /// The unique number of the request in a slot. It can be read even if the request is malformed.
    pub fn request_unique(&self, slot: RingSlot) -> u64 {
        u64::from_ne_bytes(self.read_slot(slot, 8))
    }

    /// Answers the request in a slot, and gives the slot back. [`RequestRing::submit_answers`] makes the kernel notice.
    pub fn answer_slot(&self, slot: RingSlot, unique: u64, answer: FuseAnswer) -> io::Result<()> {
        match answer {
            FuseAnswer::Later => Ok(()),
            FuseAnswer::Failed(error) => {
                self.commit_answer(slot, unique, error.raw_os_error().wrapping_neg(), &[])
            }
            // A request that wants no answer is finished when it was read from the device. In a ring, the kernel waits
            // for the slot: a process that lists a directory while others move its names makes the kernel send a
            // `forget` through the ring, and would wait forever.
            FuseAnswer::None | FuseAnswer::Done => self.commit_answer(slot, unique, 0, &[]),
            FuseAnswer::Small(small) => self.commit_answer(slot, unique, 0, small.answer_body()),
            FuseAnswer::Bytes(bytes) => self.commit_answer(slot, unique, 0, &bytes),
            FuseAnswer::Shared(bytes) => self.commit_answer(slot, unique, 0, &bytes),
        }
    }

    fn commit_answer(&self, slot: RingSlot, unique: u64, code: i32, body: &[u8]) -> io::Result<()> {
        // An answer that does not fit into the slot fails its request.
        if body.len() > PAYLOAD_LEN {
            return self.commit_answer(slot, unique, Errno::IO.raw_os_error().wrapping_neg(), &[]);
        }
        // The kernel recognises the request by this number when the slot is committed.
        let commit_id = u64::from_ne_bytes(self.read_slot(slot, COMMIT_ID_AT));
        self.write_slot(slot, 0, &encode_answer_head(body.len(), code, unique));
        self.write_slot(slot, PAYLOAD_AT, body);
        self.write_slot(slot, PAYLOAD_LEN_AT, &u32::try_from(body.len()).unwrap_or_default().to_ne_bytes());
        self.push_command(slot, COMMIT_AND_FETCH, commit_id, None)
    }

    /// Pushes a command to the submission queue.
    fn push_command(
        &self,
        slot: RingSlot,
        command: u32,
        commit_id: u64,
        parts: Option<u64>,
    ) -> io::Result<()> {
        // `struct fuse_uring_cmd_req`: flags, of which none is set, then the commit id and the number of the queue.
        let mut words = [0; 80];
        words[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        words[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let device = types::Fd(self.device.as_fd().as_raw_fd());
        let mut entry =
            UringCmd80::new(device, command).cmd(words).addr(parts).build().user_data(slot.0 as u64);
        const { assert!(size_of::<Entry128>() == 128) };
        #[expect(
            unsafe_code,
            reason = "the crate cannot set the number of parts; the kernel reads this memory"
        )]
        // SAFETY: the layout of an entry is fixed by the kernel, and this field is within it.
        unsafe {
            std::ptr::from_mut(&mut entry).cast::<u8>().add(ENTRY_LEN_AT).cast::<u32>().write(PARTS);
        }
        // The queue is full only until the kernel has processed it.
        while !self.try_push_entry(&entry) {
            self.enter_ring(0)?;
        }
        Ok(())
    }

    /// Pushes an entry. Returns false if the submission queue is full.
    fn try_push_entry(&self, entry: &Entry128) -> bool {
        let _one = self.submitting.lock();
        #[expect(unsafe_code, reason = "the kernel reads what the entry points to")]
        // SAFETY: it points to the slot's memory, which lives as long as the ring. The lock is held while the queue is
        // changed.
        unsafe {
            self.uring.submission_shared().push(entry).is_ok()
        }
    }

    fn slot_address(&self, slot: RingSlot, offset: usize) -> *mut u8 {
        self.slots[slot.0].as_mut_ptr().wrapping_add(offset)
    }

    fn read_slot<const N: usize>(&self, slot: RingSlot, offset: usize) -> [u8; N] {
        assert!(offset + N <= PAYLOAD_AT, "outside of a slot");
        #[expect(unsafe_code, reason = "the kernel wrote this memory")]
        // SAFETY: it lies within the slot, which we own.
        unsafe {
            self.slot_address(slot, offset).cast::<[u8; N]>().read_unaligned()
        }
    }

    fn write_slot(&self, slot: RingSlot, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAYLOAD_AT + PAYLOAD_LEN, "outside of a slot");
        #[expect(unsafe_code, reason = "the kernel reads this memory")]
        // SAFETY: it lies within the slot, which we own, and `bytes` are not of it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.slot_address(slot, offset), bytes.len());
        }
    }
}

/// Whether a slot was returned because the mount has ended.
fn is_unmounted_code(code: i32) -> bool {
    let gone = [Errno::NOTCONN, Errno::CANCELED, Errno::NODEV];
    gone.into_iter().any(|error| error.raw_os_error() == code.wrapping_neg())
}

//! A ring: one processor's queue of requests, which come and are answered through memory that the kernel shares with us.
//!
//! It has a number of slots. A slot is the kernel's until a request was put into it (`RequestRing::next_request` names it), and ours
//! until the request is answered (`RequestRing::answer_slot` gives it back). Invariants: only who was given a slot touches its memory,
//! and answers once; a slot is given back also if its request wants no answer, since the kernel waits for the slot. Absent:
//! who waits for requests, and on which processor.

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

/// Requests that one processor's programs can have under way at once; more wait in the kernel. Each slot takes as much
/// memory as the largest request that it has carried.
const SLOTS: usize = 16;

/// Entries of the submission queue: more than slots, since the kernel frees an entry only after it has handed out the slot
/// again, which may be answered before.
const ENTRIES: u32 = 4 * SLOTS as u32;

/// The commands of FUSE over io_uring (`FUSE_IO_URING_CMD_…`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// A slot's memory: what the kernel calls its headers (`fuse_uring_req_header`), the two parts that it is told of, and
/// the payload, with room in front of it in which a request is put together as it would come from the device.
const OPERATION_AT: usize = 128;
const OPERATION_MAX: usize = 128;
const ENTRY_AT: usize = 256;
const COMMIT_ID_AT: usize = ENTRY_AT + 8;
const PAYLOAD_LEN_AT: usize = ENTRY_AT + 16;
const HEADERS_LEN: usize = 288;
const PARTS_AT: usize = 512;
const PAYLOAD_AT: usize = 4096;
const PAYLOAD_LEN: usize = MAX_WRITE;

/// How many parts a slot has (`FUSE_URING_IOV_SEGS`).
const PARTS: u32 = 2;

/// Where an entry of the submission queue says how many parts there are (`io_uring_sqe.len`).
const ENTRY_LEN_AT: usize = 24;

/// One processor's requests.
pub struct RequestRing {
    uring: IoUring<Entry128, cqueue::Entry>,
    device: FuseDevice,
    queue: u16,
    slots: Vec<MmapRaw>,
    /// Slots that can still be used: the kernel takes back one whose answer it does not understand.
    alive: AtomicUsize,
    submitting: Mutex<()>,
    /// Requests that came before anybody waited.
    completing: Mutex<Vec<RingSlot>>,
    /// The way to a thread that hands over what others have answered.
    pub submitter: OnceLock<Sender<Arc<RequestRing>>>,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSlot(usize);

impl RequestRing {
    /// Makes the ring of a queue. The kernel is not told of it yet.
    pub fn new(device: FuseDevice, queue: u16) -> io::Result<Self> {
        let uring = IoUring::<Entry128, cqueue::Entry>::builder().build(ENTRIES)?;
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
        })
    }

    /// Gives all slots to the kernel. Requests come to the thread that calls this, or to one that answers one.
    pub fn register_slots(&self) -> io::Result<()> {
        for number in 0..self.slots.len() {
            let parts = self.write_slot_descriptor(RingSlot(number));
            self.push_command(RingSlot(number), REGISTER, 0, Some(parts))?;
        }
        self.submit_answers()?;
        let mut early = Vec::new();
        while let Some((slot, code)) = self.take_completion() {
            if code < 0 {
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            early.push(slot);
        }
        self.completing.lock().extend(early);
        Ok(())
    }

    /// Writes down where a slot's two parts are, and says where that stands.
    fn write_slot_descriptor(&self, slot: RingSlot) -> u64 {
        let at = |offset: usize| self.slot_address(slot, offset) as usize as u64;
        let parts = [at(0), HEADERS_LEN as u64, at(PAYLOAD_AT), PAYLOAD_LEN as u64];
        for (number, word) in parts.into_iter().enumerate() {
            self.write_slot(slot, PARTS_AT + 8 * number, &word.to_ne_bytes());
        }
        at(PARTS_AT)
    }

    /// Waits for a request, and says where it stands. None when the mount is gone.
    pub fn next_request(&self, poll: &BusyPoll) -> io::Result<Option<RingSlot>> {
        loop {
            match self.take_completion() {
                Some((slot, 0..)) => {
                    poll.record_request();
                    // What was answered before must not wait until this is.
                    self.submit_answers()?;
                    return Ok(Some(slot));
                }
                Some((_, code)) if is_unmounted_code(code) => return Ok(None),
                Some((_, code)) if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 => {
                    return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                }
                Some(_) => {}
                None => self.submit_and_wait(poll)?,
            }
        }
    }

    /// Hands to the kernel what was answered, and waits.
    fn submit_and_wait(&self, poll: &BusyPoll) -> io::Result<()> {
        if let Some(permit) = poll.acquire_permit() {
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
        // SAFETY: the lock is held, so that nobody else has the queue.
        let none = unsafe { self.uring.completion_shared().is_empty() };
        !none || !early.is_empty()
    }

    fn take_completion(&self) -> Option<(RingSlot, i32)> {
        let mut early = self.completing.lock();
        if let Some(slot) = early.pop() {
            return Some((slot, 0));
        }
        #[expect(unsafe_code, reason = "the ring is shared by threads")]
        // SAFETY: the lock is held, so that nobody else has the queue.
        let entry = unsafe { self.uring.completion_shared().next() }?;
        Some((RingSlot(usize::try_from(entry.user_data()).ok()?), entry.result()))
    }

    /// Hands to the kernel what was answered: whoever has answered may not come again, so all of it.
    pub fn submit_answers(&self) -> io::Result<()> {
        while !self.is_submitted() {
            self.enter_ring(0)?;
        }
        Ok(())
    }

    /// Lets another thread hand over what was answered. The kernel delivers a slot's next request by the thread that
    /// handed it over; so one that goes on to wait for the kernel must not: it could wait for that very request.
    pub fn defer_submission(self: &Arc<Self>) {
        if let Some(submitter) = self.submitter.get() {
            // If the thread is gone, nobody waits for the answer.
            let _ = submitter.send(self.clone());
        }
    }

    fn is_submitted(&self) -> bool {
        let _one = self.submitting.lock();
        #[expect(unsafe_code, reason = "the ring is shared by threads")]
        // SAFETY: the lock is held, so that nobody else has the queue. Merely to look at it takes the lock, too: when
        // it is let go, its end is written back, and what another thread had put there meanwhile would be lost.
        unsafe {
            self.uring.submission_shared().is_empty()
        }
    }

    fn enter_ring(&self, wait_for: usize) -> io::Result<()> {
        match self.uring.submit_and_wait(wait_for) {
            Ok(_) => Ok(()),
            // A signal, or a kernel that has no memory right now: the caller comes again.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The request in a slot, as it would have come from the device.
    ///
    /// The slice is valid until the slot is answered; the caller must drop it before.
    pub fn request_bytes(&self, slot: RingSlot) -> io::Result<&[u8]> {
        let word = |offset| u32::from_ne_bytes(self.read_slot(slot, offset));
        let whole = word(0) as usize;
        let payload = word(PAYLOAD_LEN_AT) as usize;
        let operation = whole.checked_sub(REQUEST_HEAD_LEN + payload);
        let operation = operation.filter(|len| *len <= OPERATION_MAX && payload <= PAYLOAD_LEN);
        let operation =
            operation.ok_or_else(|| io::Error::other("a request's length is not that of its parts"))?;
        let begin = PAYLOAD_AT - operation - REQUEST_HEAD_LEN;
        let from = self.slot_address(slot, 0);
        let to = self.slot_address(slot, begin);
        #[expect(unsafe_code, reason = "the kernel wrote this memory")]
        // SAFETY: the slot is ours, and all of these places are in it: `begin` is at least `PAYLOAD_AT - 168`, which lies
        // behind the headers, and `payload` was checked.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, REQUEST_HEAD_LEN);
            std::ptr::copy_nonoverlapping(from.add(OPERATION_AT), to.add(REQUEST_HEAD_LEN), operation);
            Ok(std::slice::from_raw_parts(to, whole))
        }
    }

    /// The number of the request in a slot, also of one that makes no sense otherwise.
    pub fn request_unique(&self, slot: RingSlot) -> u64 {
        u64::from_ne_bytes(self.read_slot(slot, 8))
    }

    /// Answers the request in a slot, which is the kernel's again; [`RequestRing::submit_answers`] makes sure that it knows.
    pub fn answer_slot(&self, slot: RingSlot, unique: u64, answer: FuseAnswer) -> io::Result<()> {
        match answer {
            FuseAnswer::Later => Ok(()),
            FuseAnswer::Failed(error) => {
                self.commit_answer(slot, unique, error.raw_os_error().wrapping_neg(), &[])
            }
            // From the device, what wants no answer is done when it was read. Here the kernel waits for the slot: whoever
            // lists a directory whose names others move has it forget a node by a ring, and would wait for ever.
            FuseAnswer::None | FuseAnswer::Done => self.commit_answer(slot, unique, 0, &[]),
            FuseAnswer::Small(small) => self.commit_answer(slot, unique, 0, small.answer_body()),
            FuseAnswer::Bytes(bytes) => self.commit_answer(slot, unique, 0, &bytes),
            FuseAnswer::Shared(bytes) => self.commit_answer(slot, unique, 0, &bytes),
        }
    }

    fn commit_answer(&self, slot: RingSlot, unique: u64, code: i32, body: &[u8]) -> io::Result<()> {
        if body.len() > PAYLOAD_LEN {
            return self.commit_answer(slot, unique, Errno::IO.raw_os_error().wrapping_neg(), &[]);
        }
        let commit_id = u64::from_ne_bytes(self.read_slot(slot, COMMIT_ID_AT));
        self.write_slot(slot, 0, &encode_answer_head(body.len(), code, unique));
        self.write_slot(slot, PAYLOAD_AT, body);
        self.write_slot(slot, PAYLOAD_LEN_AT, &u32::try_from(body.len()).unwrap_or_default().to_ne_bytes());
        self.push_command(slot, COMMIT_AND_FETCH, commit_id, None)
    }

    /// Puts a command into the submission queue.
    fn push_command(
        &self,
        slot: RingSlot,
        command: u32,
        commit_id: u64,
        parts: Option<u64>,
    ) -> io::Result<()> {
        let mut words = [0; 80];
        words[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        words[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let device = types::Fd(self.device.as_fd().as_raw_fd());
        let mut entry =
            UringCmd80::new(device, command).cmd(words).addr(parts).build().user_data(slot.0 as u64);
        const { assert!(size_of::<Entry128>() == 128) };
        #[expect(
            unsafe_code,
            reason = "the crate has no word for the number of parts; the kernel reads this memory"
        )]
        // SAFETY: an entry is laid out as the kernel says, and this field is within it.
        unsafe {
            std::ptr::from_mut(&mut entry).cast::<u8>().add(ENTRY_LEN_AT).cast::<u32>().write(PARTS);
        }
        // It is full only as long as the kernel is at work on it.
        while !self.try_push_entry(&entry) {
            self.enter_ring(0)?;
        }
        Ok(())
    }

    /// False if the submission queue is full.
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
        // SAFETY: it lies within the slot, which is ours.
        unsafe {
            self.slot_address(slot, offset).cast::<[u8; N]>().read_unaligned()
        }
    }

    fn write_slot(&self, slot: RingSlot, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAYLOAD_AT + PAYLOAD_LEN, "outside of a slot");
        #[expect(unsafe_code, reason = "the kernel reads this memory")]
        // SAFETY: it lies within the slot, which is ours, and `bytes` are not of it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.slot_address(slot, offset), bytes.len());
        }
    }
}

/// Whether a slot came back because the mount is gone.
fn is_unmounted_code(code: i32) -> bool {
    let gone = [Errno::NOTCONN, Errno::CANCELED, Errno::NODEV];
    gone.into_iter().any(|error| error.raw_os_error() == code.wrapping_neg())
}

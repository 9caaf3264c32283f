//! The threads that read the device: all of them, or only one, on the processor of the calling program.
//!
//! A request costs several times less if the thread that answers runs on the processor of the program: no other
//! processor has to be woken, which in a virtual machine takes longer than most requests. The kernel lets both share a
//! processor if the thread that wakes the program has the policy for idle time (`SCHED_IDLE`): the program then
//! continues where it is, instead of moving to a processor that sleeps. So while one program sends small requests, one
//! thread reads alone and the others are parked. This sole reader has that policy while it sends an answer. It carries
//! out requests with the normal policy, so that no thread waits for a lock whose owner gets no processor time, and so
//! that threads that it starts do not inherit the policy.
//!
//! If other programs compute on its processor, the sole reader may get no time right after an answer, and while a
//! request holds it up no other thread reads. So sole reading ends, and all threads read again, as soon as another
//! program sends a request, a request takes long, or a watch sees in two looks that the reader makes no progress
//! although it has work. Each time that sole reading did not pay, it takes longer until it begins again.
//!
//! Invariants: a thread has the policy for idle time only while it sends an answer, and the watch runs then; the thread
//! may run on all processors that it had before. If the kernel does not let threads leave that policy (which needs the
//! right to raise priorities), all threads read, always.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, Pid};

use super::device::FuseDevice;
use super::schedule::{
    SchedulingPolicy, allowed_processors, can_change_policy, current_processor, find_thread_processor,
    is_machine_overloaded, move_to_processor, set_thread_policy,
};
use crate::wire::{FuseOperation, RequestHeader};

/// After this many requests of the same thread in succession, its program is assumed to be the only one.
const STREAK: u32 = 16;

/// How often the sole reader checks on which processor the program runs.
const FOLLOW: Duration = Duration::from_millis(1);

/// How often the watch looks. A request waits at most twice as long for a sole reader that makes no progress.
const TICK: Duration = Duration::from_millis(2);

/// After this many looks without any request, sole reading ends, and the watch sleeps.
const QUIET_TICKS: u32 = 5;

/// How long no thread reads alone after sole reading did not pay: at first. Each further time doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// How long at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Sole reading that lasted so long before the reader was held up has gained more than that cost.
const WORTH: Duration = Duration::from_millis(250);

/// Sole reading in which this many requests were answered before another program came has gained more than the change
/// costs.
const WORTH_REQUESTS: u64 = 128;

/// A read of more bytes, or a write of at least this many, takes long: other threads should read meanwhile. Larger
/// reads are the kernel's readahead, during which the program continues; for a smaller one it waits.
const LONG_READ: usize = 256 << 10;
const LONG_WRITE: usize = 64 << 10;

/// The value of `sole` while all threads read.
const ALL: i32 = 0;

/// The last bit of `progress`: a request is in progress.
const BUSY: u64 = 1;

/// The threads that read the device.
#[derive(Debug)]
pub(super) struct DeviceReaders {
    /// Whether a thread may read alone.
    is_allowed: AtomicBool,
    /// Whether more threads than the given number are ready to run on this machine.
    is_crowded: fn(u32) -> bool,
    /// The sole reader, or [`ALL`].
    sole: AtomicI32,
    /// The thread that sent the last request, and how many it has sent in succession.
    caller: AtomicU32,
    streak: AtomicU32,
    /// Counts the requests of sole readers, in steps of two.
    progress: AtomicU64,
    state: Mutex<DeviceReadersState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DeviceReadersState {
    sole: Option<SoleReader>,
    /// The last sole reader, until the watch has made sure that it has the normal policy.
    ended: Option<Pid>,
    is_over: bool,
    /// No thread reads alone before that.
    free: Instant,
    /// The pause after sole reading did not pay the next time.
    pause: Duration,
}

/// The thread that reads alone.
#[derive(Debug)]
struct SoleReader {
    thread: Pid,
    since: Instant,
    /// The value of [`DeviceReaders::progress`] then.
    progress: u64,
    looked: Instant,
    /// The processors on which it may run.
    processors: CpuSet,
}

/// Why sole reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SoleReaderEnd {
    /// There are no requests, or one takes long.
    Useless,
    /// Another program sent a request.
    Stranger,
    /// The reader made no progress although it had work.
    HeldUp,
}

impl DeviceReaders {
    /// All of the `count` threads read at first.
    pub fn new(count: usize) -> Self {
        Self::with_settings(count > 1 && can_change_policy(), is_machine_overloaded)
    }

    fn with_settings(is_allowed: bool, is_crowded: fn(u32) -> bool) -> Self {
        let state = DeviceReadersState {
            sole: None,
            ended: None,
            is_over: false,
            free: Instant::now(),
            pause: PAUSE_MIN,
        };
        Self {
            is_allowed: AtomicBool::new(is_allowed),
            is_crowded,
            sole: AtomicI32::new(ALL),
            caller: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            progress: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Starts the watch, if one is needed. It ends when the mount does.
    pub fn start_watch(
        self: &Arc<Self>,
        device: &FuseDevice,
    ) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
        if !self.is_allowed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let readers = self.clone();
        let device = device.try_clone()?;
        let work = move || {
            readers.watch_device(&device);
            Ok(())
        };
        Ok(Some(std::thread::Builder::new().name("vellum-watch".into()).spawn(work)?))
    }

    /// A thread begins a request.
    pub fn begin_request(&self, thread: Pid, head: &RequestHeader, is_long: bool) {
        // Requests that the kernel sends by itself, such as write-back, have no caller.
        // Relaxed, here and below: these two are a guess about who calls. A lost update makes sole reading begin or
        // end some requests later, and never wrongly.
        let is_stranger = head.pid != 0 && head.pid != self.caller.load(Ordering::Relaxed);
        if is_stranger {
            self.caller.store(head.pid, Ordering::Relaxed);
        }
        if is_stranger || is_long {
            self.streak.store(0, Ordering::Relaxed);
        } else if head.pid != 0 {
            self.streak.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_sole_reader(thread) {
            // The last bit is clear between requests, so this sets it and counts one more. By the count the watch
            // distinguishes a reader that is stuck in one request from one that is busy with many.
            self.progress.fetch_add(2 | BUSY, Ordering::AcqRel);
            if is_stranger || is_long {
                self.end_sole_reading(if is_stranger {
                    SoleReaderEnd::Stranger
                } else {
                    SoleReaderEnd::Useless
                });
            }
        }
    }

    /// Ends a thread's request: `send` sends the answer.
    pub fn answer_request(&self, thread: Pid, send: impl FnOnce()) {
        // Before the answer is sent: the program that gets it may send its next request at once.
        self.end_request(thread);
        // The answer wakes the program. Under this policy, the kernel lets the program continue on this processor.
        let is_idle =
            self.is_sole_reader(thread) && set_thread_policy(thread, SchedulingPolicy::Idle).is_ok();
        // If sole reading ended meanwhile, the policy may have been restored before it was set.
        if is_idle && !self.is_sole_reader(thread) {
            self.restore_policy(thread);
        }
        // The program continues now, and this thread when the program waits again.
        send();
        if is_idle {
            self.restore_policy(thread);
        }
    }

    /// Restores the normal policy of a thread. If that fails, although it worked when it was tried at the start, no
    /// thread reads alone any more.
    fn restore_policy(&self, thread: Pid) {
        if set_thread_policy(thread, SchedulingPolicy::Normal).is_err() {
            self.is_allowed.store(false, Ordering::Relaxed);
            self.end_sole_reading(SoleReaderEnd::Useless);
        }
    }

    /// A thread has carried out its request.
    fn end_request(&self, thread: Pid) {
        if !self.is_allowed.load(Ordering::Relaxed) {
            return;
        }
        if self.is_sole_reader(thread) {
            self.progress.fetch_and(!BUSY, Ordering::AcqRel);
            self.follow_caller();
        } else if self.streak.load(Ordering::Relaxed) >= STREAK && self.sole.load(Ordering::Relaxed) == ALL {
            self.begin_sole_reading(thread);
        }
    }

    /// Waits while another thread reads alone.
    pub fn wait_for_sole_reader(&self, thread: Pid) {
        if self.sole.load(Ordering::Acquire) == ALL || self.is_sole_reader(thread) {
            return;
        }
        // The number above was read without the lock. Only what stands under the lock counts now: otherwise a reader
        // could go to sleep just after sole reading has ended, and nothing would wake it.
        let is_idle = |state: &mut DeviceReadersState| !state.is_over && state.sole.is_some();
        self.changed.wait_while(&mut self.state.lock(), is_idle);
    }

    /// The mount has ended: no thread waits any more.
    pub fn finish_readers(&self) {
        self.end_sole_reading(SoleReaderEnd::Useless);
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    fn is_sole_reader(&self, thread: Pid) -> bool {
        self.sole.load(Ordering::SeqCst) == thread.as_raw_nonzero().get()
    }

    /// Lets a thread read alone, unless that did not pay lately, or the processor of the program is unknown.
    fn begin_sole_reading(&self, thread: Pid) {
        let mut state = self.state.lock();
        let now = Instant::now();
        // Several threads may see the same streak. The first one that gets the lock wins.
        if state.sole.is_some() || state.is_over || now < state.free {
            return;
        }
        match self.move_to_caller(thread, now) {
            Some(sole) => {
                self.sole.store(sole.thread.as_raw_nonzero().get(), Ordering::Release);
                state.sole = Some(sole);
                // Wakes the watch.
                self.changed.notify_all();
            }
            None => {
                self.streak.store(0, Ordering::Relaxed);
                state.free = now + PAUSE_MIN;
            }
        }
    }

    /// Moves this thread to the processor of the program.
    fn move_to_caller(&self, thread: Pid, now: Instant) -> Option<SoleReader> {
        let processors = allowed_processors().ok()?;
        // Asked each time: the administrator may change the processors of a running process (`taskset -p`, cpusets).
        let count = processors.count();
        let wanted = find_thread_processor(self.caller.load(Ordering::Relaxed))?;
        // With one processor, both share it anyway.
        // A program on a processor that this process may not use cannot be followed.
        if !processors.is_set(wanted) || count < 2 || (self.is_crowded)(count) {
            return None;
        }
        move_to_processor(wanted, &processors).ok()?;
        // A sole reader before it may have lost that role in the middle of a request: then the bit is still set.
        let progress = self.progress.fetch_and(!BUSY, Ordering::AcqRel) & !BUSY;
        Some(SoleReader { thread, since: now, progress, looked: now, processors })
    }

    /// Moves to the processor of the program, if one of both has moved.
    fn follow_caller(&self) {
        let mut state = self.state.lock();
        // The watch may have ended it meanwhile.
        let Some(sole) = state.sole.as_mut() else { return };
        let now = Instant::now();
        if now.saturating_duration_since(sole.looked) < FOLLOW {
            return;
        }
        sole.looked = now;
        let found = find_thread_processor(self.caller.load(Ordering::Relaxed));
        if let Some(wanted) = found.filter(|&it| it != current_processor() && sole.processors.is_set(it)) {
            // If this fails, requests are only slower.
            let _ = move_to_processor(wanted, &sole.processors);
        }
    }

    /// Ends sole reading.
    fn end_sole_reading(&self, ending: SoleReaderEnd) {
        let mut state = self.state.lock();
        // The reader, another reader's stranger and the watch may all end it. Only the first counts, or the pause
        // would double several times.
        let Some(sole) = state.sole.take() else { return };
        // In this order: a thread that sets the policy after this store sees it, and restores the policy.
        self.sole.store(ALL, Ordering::SeqCst);
        // The policy may be what keeps it from continuing. It fails if the thread has ended, which needs no policy.
        let _ = set_thread_policy(sole.thread, SchedulingPolicy::Normal);
        state.ended = Some(sole.thread);
        self.streak.store(0, Ordering::Relaxed);
        let answered = (self.progress.load(Ordering::Relaxed) - sole.progress) / 2;
        let now = Instant::now();
        state.schedule_next_sole(ending, now.saturating_duration_since(sole.since), answered, now);
        self.changed.notify_all();
    }

    fn watch_device(&self, device: &FuseDevice) {
        loop {
            let is_idle = |state: &mut DeviceReadersState| !state.is_over && state.sole.is_none();
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, is_idle);
            if state.is_over {
                return;
            }
            drop(state);
            self.watch_sole_reader(|| device.has_request(), || std::thread::sleep(TICK));
            // The reader may have been held up between setting the policy and checking whether it still reads alone.
            std::thread::sleep(TICK);
            self.restore_ended_reader();
        }
    }

    /// Restores the normal policy of the last sole reader, unless there is one again.
    fn restore_ended_reader(&self) {
        let mut state = self.state.lock();
        if let (Some(thread), None) = (state.ended.take(), &state.sole) {
            let _ = set_thread_policy(thread, SchedulingPolicy::Normal);
        }
    }

    /// Watches the sole reader until sole reading ends.
    fn watch_sole_reader(&self, has_request: impl Fn() -> bool, pause: impl Fn()) {
        let mut quiet = 0;
        let mut before = None;
        while self.sole.load(Ordering::Acquire) != ALL {
            pause();
            let progress = self.progress.load(Ordering::Acquire);
            // A reader that waits in the kernel for its next request is not held up, however long it waits.
            let has_work = progress & BUSY != 0 || has_request();
            match before {
                // Two looks in succession with the same request, or with none taken although one waits. One look may
                // have come between two steps of a healthy reader.
                Some(seen) if seen == (progress, true) && has_work => {
                    self.end_sole_reading(SoleReaderEnd::HeldUp)
                }
                Some((seen, false)) if seen == progress && !has_work => quiet += 1,
                _ => quiet = 0,
            }
            if quiet == QUIET_TICKS {
                self.end_sole_reading(SoleReaderEnd::Useless);
            }
            before = Some((progress, has_work));
        }
    }
}

impl DeviceReadersState {
    /// Decides when a thread may read alone again: sole reading lasted for `lasted`, with `answered` requests.
    fn schedule_next_sole(&mut self, ending: SoleReaderEnd, lasted: Duration, answered: u64, now: Instant) {
        let was_worth_it = match ending {
            SoleReaderEnd::Useless => return,
            SoleReaderEnd::Stranger => answered >= WORTH_REQUESTS,
            SoleReaderEnd::HeldUp => lasted >= WORTH,
        };
        if was_worth_it {
            self.pause = PAUSE_MIN;
        }
        // If programs send their requests one after the other, the next one can have a sole reader at once.
        if !(was_worth_it && ending == SoleReaderEnd::Stranger) {
            self.free = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Whether other threads should read while a request is in progress. If another kind of request takes long, the watch
/// notices it.
pub fn is_long_operation(operation: &FuseOperation<'_>) -> bool {
    match operation {
        FuseOperation::Read { len, .. } => *len as usize > LONG_READ,
        FuseOperation::Write { data, .. } => data.len() >= LONG_WRITE,
        FuseOperation::Fsync { .. }
        | FuseOperation::Fsyncdir { .. }
        | FuseOperation::Fallocate { .. }
        | FuseOperation::CopyFileRange { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;

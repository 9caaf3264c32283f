//! The threads that read the device: all of them, or only one, on the processor of the calling program.
//!
//! A request costs less by several times if who answers runs where the program runs, since no other processor has to
//! be woken, which in a virtual machine takes longer than most answers do. The kernel lets both share a processor if
//! the thread that wakes the program is one that uses idle time only (`SCHED_IDLE`): the program then goes on where it
//! is instead of moving to a processor that sleeps. So while one program asks for small things, one thread reads
//! alone, the others are parked, and it takes that policy on while it tells an answer. What was asked is carried out
//! with the normal policy, so that nobody waits for a lock that is held by a thread without time, and threads that are
//! made have nothing of this.
//!
//! If others compute on its processor, that thread may get no time right after an answer, and while it is held up
//! nobody else reads. So it stops being alone, and all read again, as soon as another program asks, a request takes
//! long, or a watch sees that for two looks it has not gone on though it had something to do. Each time that it was of
//! no use, it takes longer until one is alone again. Invariants: a thread has the policy for idle time only while it
//! tells an answer, and the watch looks then; it may run on all processors that it had before. Where the kernel lets
//! nobody leave that policy (it wants the right to raise priorities), all threads read, always.

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

/// So many requests one after the other of one thread of a program, and it is taken to be the only one that asks.
const STREAK: u32 = 16;

/// How often who is alone looks where the program runs.
const FOLLOW: Duration = Duration::from_millis(1);

/// How often the watch looks. A request waits at most twice as long for a thread that gets no time, or is held up.
const TICK: Duration = Duration::from_millis(2);

/// After so many looks at nothing, all read again, and the watch rests.
const QUIET_TICKS: u32 = 5;

/// How long nobody is alone after it was in somebody's way: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// Who was alone for so long before it was held up gained more than was lost by that.
const WORTH: Duration = Duration::from_millis(250);

/// Who answered so many requests before another program asked gained more than it costs that all read again.
const WORTH_REQUESTS: u64 = 128;

/// A read of more bytes, or a write of so many, should leave others free to be heard. Larger reads are those that the kernel
/// makes ahead of a program, which goes on meanwhile; for a smaller one it waits.
const LONG_READ: usize = 256 << 10;
const LONG_WRITE: usize = 64 << 10;

/// Nobody is alone.
const ALL: i32 = 0;

/// At the end of `progress`: a request is at work.
const BUSY: u64 = 1;

/// The threads that read the device.
#[derive(Debug)]
pub struct DeviceReaders {
    /// Whether one may be alone.
    is_allowed: AtomicBool,
    /// Whether more threads than so many want a processor.
    is_crowded: fn(u32) -> bool,
    /// The thread that is alone, or [`ALL`].
    sole: AtomicI32,
    /// The program's thread that asked last, and how often it did so in a row.
    asker: AtomicU32,
    streak: AtomicU32,
    /// Counts requests of who is alone, in steps of two.
    progress: AtomicU64,
    state: Mutex<DeviceReadersState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DeviceReadersState {
    sole: Option<SoleReader>,
    /// The thread that was alone last, until the watch has looked after it.
    ended: Option<Pid>,
    is_over: bool,
    /// Nobody is alone before that.
    free: Instant,
    /// For how long nobody will be, the next time.
    pause: Duration,
}

/// The thread that reads alone.
#[derive(Debug)]
struct SoleReader {
    thread: Pid,
    since: Instant,
    /// How far [`DeviceReaders::progress`] was then.
    progress: u64,
    looked: Instant,
    /// Where it may run.
    processors: CpuSet,
}

/// Why nobody is alone any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SoleReaderEnd {
    /// There is no use in it now: nothing is asked, or something that takes long.
    Useless,
    /// Another program asks.
    Stranger,
    /// It did not go on though it had something to do.
    HeldUp,
}

impl DeviceReaders {
    /// All read. `count`: how many there are.
    pub fn new(count: usize) -> Self {
        Self::with_settings(count > 1 && can_change_policy(), is_machine_overloaded)
    }

    fn with_settings(is_allowed: bool, is_crowded: fn(u32) -> bool) -> Self {
        let state = DeviceReadersState {
            sole: None,
            ended: None,
            is_over: false,
            free: Instant::now(),
            pause: PAUSE.0,
        };
        Self {
            is_allowed: AtomicBool::new(is_allowed),
            is_crowded,
            sole: AtomicI32::new(ALL),
            asker: AtomicU32::new(0),
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

    /// A thread has read a request.
    pub fn begin_request(&self, thread: Pid, head: &RequestHeader, is_long: bool) {
        // Of what the kernel does by itself nobody is the asker.
        let is_stranger = head.pid != 0 && head.pid != self.asker.load(Ordering::Relaxed);
        if is_stranger {
            self.asker.store(head.pid, Ordering::Relaxed);
        }
        if is_stranger || is_long {
            self.streak.store(0, Ordering::Relaxed);
        } else if head.pid != 0 {
            self.streak.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_sole_reader(thread) {
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

    /// Tells the answer to a thread's request.
    pub fn answer_request(&self, thread: Pid, tell: impl FnOnce()) {
        self.end_request(thread);
        let is_idle =
            self.is_sole_reader(thread) && set_thread_policy(thread, SchedulingPolicy::Idle).is_ok();
        // Whoever ended it meanwhile may have set the policy back before it was taken on.
        if is_idle && !self.is_sole_reader(thread) {
            self.restore_policy(thread);
        }
        // The program goes on now, and this thread when that waits again.
        tell();
        if is_idle {
            self.restore_policy(thread);
        }
    }

    /// Gives a thread the normal policy back. If that cannot be, though it was tried at first, nobody takes the other on any
    /// more.
    fn restore_policy(&self, thread: Pid) {
        if set_thread_policy(thread, SchedulingPolicy::Normal).is_err() {
            self.is_allowed.store(false, Ordering::Relaxed);
            self.end_sole_reading(SoleReaderEnd::Useless);
        }
    }

    /// A thread's request is carried out.
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

    /// Waits while another thread than this one reads alone.
    pub fn wait_for_sole_reader(&self, thread: Pid) {
        if self.sole.load(Ordering::Acquire) == ALL || self.is_sole_reader(thread) {
            return;
        }
        let is_idle = |state: &mut DeviceReadersState| !state.is_over && state.sole.is_some();
        self.changed.wait_while(&mut self.state.lock(), is_idle);
    }

    /// The mount is gone.
    pub fn finish_readers(&self) {
        self.end_sole_reading(SoleReaderEnd::Useless);
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    fn is_sole_reader(&self, thread: Pid) -> bool {
        self.sole.load(Ordering::SeqCst) == thread.as_raw_nonzero().get()
    }

    /// Lets a thread read alone, unless that was in the way lately, or it is not known where the program runs.
    fn begin_sole_reading(&self, thread: Pid) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.sole.is_some() || state.is_over || now < state.free {
            return;
        }
        match self.move_to_caller(thread, now) {
            Some(sole) => {
                self.sole.store(sole.thread.as_raw_nonzero().get(), Ordering::Release);
                state.sole = Some(sole);
                // The watch has to look.
                self.changed.notify_all();
            }
            None => {
                self.streak.store(0, Ordering::Relaxed);
                state.free = now + PAUSE.0;
            }
        }
    }

    /// Moves this thread to the program's processor.
    fn move_to_caller(&self, thread: Pid, now: Instant) -> Option<SoleReader> {
        let processors = allowed_processors().ok()?;
        let count = processors.count();
        let wanted = find_thread_processor(self.asker.load(Ordering::Relaxed))?;
        // On a machine with one processor both share it anyway.
        if !processors.is_set(wanted) || count < 2 || (self.is_crowded)(count) {
            return None;
        }
        move_to_processor(wanted, &processors).ok()?;
        let progress = self.progress.load(Ordering::Relaxed);
        Some(SoleReader { thread, since: now, progress, looked: now, processors })
    }

    /// Goes after the program, if one of both has moved.
    fn follow_caller(&self) {
        let mut state = self.state.lock();
        // The watch may have ended it meanwhile.
        let Some(sole) = state.sole.as_mut() else { return };
        let now = Instant::now();
        if now.saturating_duration_since(sole.looked) < FOLLOW {
            return;
        }
        sole.looked = now;
        let found = find_thread_processor(self.asker.load(Ordering::Relaxed));
        if let Some(wanted) = found.filter(|&it| it != current_processor() && sole.processors.is_set(it)) {
            // If it cannot, it is only slower.
            let _ = move_to_processor(wanted, &sole.processors);
        }
    }

    /// Lets all read again.
    fn end_sole_reading(&self, ending: SoleReaderEnd) {
        let mut state = self.state.lock();
        let Some(sole) = state.sole.take() else { return };
        // In this order: a thread that takes the policy on after that looks again, and leaves it.
        self.sole.store(ALL, Ordering::SeqCst);
        // It may be the policy that keeps it from going on. A thread that is gone needs none.
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
            // It may have been held up between taking the policy on and looking again.
            std::thread::sleep(TICK);
            self.restore_ended_reader();
        }
    }

    /// Gives the thread that was alone last the normal policy, unless it is alone again.
    fn restore_ended_reader(&self) {
        let mut state = self.state.lock();
        if let (Some(thread), None) = (state.ended.take(), &state.sole) {
            let _ = set_thread_policy(thread, SchedulingPolicy::Normal);
        }
    }

    /// Looks after who is alone, until nobody is.
    fn watch_sole_reader(&self, has_request: impl Fn() -> bool, pause: impl Fn()) {
        let mut quiet = 0;
        let mut before = None;
        while self.sole.load(Ordering::Acquire) != ALL {
            pause();
            let progress = self.progress.load(Ordering::Acquire);
            let has_work = progress & BUSY != 0 || has_request();
            match before {
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
    /// Somebody was alone for `lasted`, and answered so many requests.
    fn schedule_next_sole(&mut self, ending: SoleReaderEnd, lasted: Duration, answered: u64, now: Instant) {
        let was_worth_it = match ending {
            SoleReaderEnd::Useless => return,
            SoleReaderEnd::Stranger => answered >= WORTH_REQUESTS,
            SoleReaderEnd::HeldUp => lasted >= WORTH,
        };
        if was_worth_it {
            self.pause = PAUSE.0;
        }
        // A program that comes after another one is in nobody's way.
        if !(was_worth_it && ending == SoleReaderEnd::Stranger) {
            self.free = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
    }
}

/// Whether others should be heard while a request is at work.
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

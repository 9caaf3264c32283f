//! The threads that carry out the requests of one session.
//!
//! Invariant: requests that may wait for long, for the disk or for room, keep no others waiting.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use vellum_fuse::transport::RequestService;
use vellum_fuse::wire::FuseOperation;

/// Threads for requests that are answered soon.
const QUICK_THREADS: usize = 4;
/// Threads for requests that wait: this many can share one flush of the disk.
const SLOW_THREADS: usize = 4;

/// Work for a thread.
pub type SessionTask = Box<dyn FnOnce() + Send>;

/// The threads of a session. They end when this is dropped, and what was begun is done.
pub struct SessionWorkers {
    quick: Sender<SessionTask>,
    slow: Sender<SessionTask>,
}

impl SessionWorkers {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            quick: start_lane("session-quick", QUICK_THREADS)?,
            slow: start_lane("session-slow", SLOW_THREADS)?,
        })
    }

    /// Has a thread do something. The protocol limits how much waits.
    pub fn enqueue_task(&self, is_slow: bool, task: SessionTask) {
        let lane = if is_slow { &self.slow } else { &self.quick };
        let sent = lane.send(task);
        debug_assert!(sent.is_ok(), "the threads end after the session");
    }
}

/// Whether a request may wait for long.
pub fn is_slow_operation(service: &dyn RequestService, operation: &FuseOperation<'_>) -> bool {
    match operation {
        // Most writes only go to memory. If these queued behind a flush, one fsync would stop all writes of its machine.
        FuseOperation::Write { data, .. } => service.may_write_wait(data.len()),
        FuseOperation::Fsync { .. }
        | FuseOperation::Fsyncdir { .. }
        | FuseOperation::Fallocate { .. }
        // It may have to read the index of the store.
        | FuseOperation::WriteStored { .. }
        | FuseOperation::CopyFileRange { .. } => true,
        _ => false,
    }
}

fn start_lane(name: &str, threads: usize) -> io::Result<Sender<SessionTask>> {
    // Without a bound of its own: the session refuses requests above its limits, and the thread that receives frames must
    // never wait here, since it also takes the confirmations of recalls.
    let (tasks, waiting) = channel();
    let waiting = Arc::new(Mutex::new(waiting));
    for _ in 0..threads {
        let waiting = waiting.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || run_tasks(&waiting))?;
    }
    Ok(tasks)
}

fn run_tasks(waiting: &Mutex<Receiver<SessionTask>>) {
    loop {
        // One thread waits at the channel, and the others for the lock: a receiver serves one thread at a time.
        let next = waiting.lock().recv();
        let Ok(task) = next else { return };
        task();
    }
}

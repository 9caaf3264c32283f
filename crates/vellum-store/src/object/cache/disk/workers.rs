//! Threads for work that the system may hold for ever, used again as long as it does not.
//!
//! Starting a thread takes several times as long as waking one. Invariant: a thread that is held is never given other work;
//! it is idle, at work, or gone. Threads that were idle for [`IDLE_TIME`] end, and so do all idle ones with the pool.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use vellum_host::fork_safe::{Condvar, Mutex};

/// How long a thread waits for further work.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Threads that wait for work at most, a count: a mount seldom reads in more at once.
const IDLE_MAX: usize = 16;

type DiskCacheTask = Box<dyn FnOnce(&IdlePlace) + Send>;

/// The threads of a disk.
pub(super) struct DiskWorkers {
    idle: Arc<Mutex<Vec<Arc<DiskWorker>>>>,
}

/// A thread.
struct DiskWorker {
    next: Mutex<NextTask>,
    woken: Condvar,
}

enum NextTask {
    None,
    Run(DiskCacheTask),
    End,
}

/// Where a thread waits when its work is done.
pub(super) struct IdlePlace {
    worker: Arc<DiskWorker>,
    idle: Arc<Mutex<Vec<Arc<DiskWorker>>>>,
    /// Whether the present work has offered the thread for more.
    is_offered: Cell<bool>,
}

impl DiskWorkers {
    pub fn new() -> Self {
        Self { idle: Arc::default() }
    }

    /// Starts work on a thread that has nothing else to do. The work calls [`IdlePlace::become_idle`] when it cannot be held
    /// any more; otherwise its thread ends.
    pub fn start(&self, task: impl FnOnce(&IdlePlace) + Send + 'static) -> io::Result<()> {
        let task: DiskCacheTask = Box::new(task);
        // The one that was at work last: what it used is still near.
        let idle = self.idle.lock().pop();
        if let Some(worker) = idle {
            *worker.next.lock() = NextTask::Run(task);
            worker.woken.notify_one();
            return Ok(());
        }
        let worker = Arc::new(DiskWorker { next: Mutex::new(NextTask::Run(task)), woken: Condvar::new() });
        let place = IdlePlace { worker, idle: Arc::clone(&self.idle), is_offered: Cell::new(false) };
        std::thread::Builder::new().name("vellum-cache".into()).spawn(move || place.run_tasks())?;
        Ok(())
    }

    #[cfg(test)]
    pub fn count_idle(&self) -> usize {
        self.idle.lock().len()
    }
}

impl Drop for DiskWorkers {
    fn drop(&mut self) {
        // One that is at work is not told: it ends by itself when it has been idle for a while.
        for worker in self.idle.lock().drain(..) {
            *worker.next.lock() = NextTask::End;
            worker.woken.notify_one();
        }
    }
}

impl IdlePlace {
    /// Offers the thread for further work, which it begins when the present work returns.
    pub fn become_idle(&self) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(Arc::clone(&self.worker));
            self.is_offered.set(true);
        }
    }

    fn run_tasks(&self) {
        while let Some(task) = self.wait_for_task() {
            self.is_offered.set(false);
            task(self);
            if !self.is_offered.get() {
                return;
            }
        }
    }

    /// The next work; none if the thread is to end.
    fn wait_for_task(&self) -> Option<DiskCacheTask> {
        let mut next = self.worker.next.lock();
        loop {
            match std::mem::replace(&mut *next, NextTask::None) {
                NextTask::Run(task) => return Some(task),
                NextTask::End => return None,
                NextTask::None => {}
            }
            let has_waited = self.worker.woken.wait_for(&mut next, IDLE_TIME).timed_out();
            // One lock at a time: whoever takes a thread from the list holds that lock and then this one.
            if has_waited && matches!(*next, NextTask::None) {
                drop(next);
                if self.leave_idle() {
                    return None;
                }
                next = self.worker.next.lock();
            }
        }
    }

    /// Takes the thread out of those that are idle. False if somebody is about to give it work.
    fn leave_idle(&self) -> bool {
        let mut idle = self.idle.lock();
        let place = idle.iter().position(|worker| Arc::ptr_eq(worker, &self.worker));
        place.map(|place| idle.remove(place)).is_some()
    }
}

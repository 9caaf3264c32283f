//! A worker pool that shares a stack of tasks, each of which may add more.
//!
//! Invariant: the work is done when no task is queued and none is running. Deliberately absent: the meaning of tasks,
//! and threads; the caller provides both.

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The stack, and the number of workers that execute a task.
#[derive(Debug)]
pub struct WorkerPool<T> {
    state: Mutex<WorkerPoolState<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct WorkerPoolState<T> {
    tasks: Vec<T>,
    busy: usize,
    has_given_up: bool,
}

impl<T> WorkerPool<T> {
    /// A pool that begins with one task.
    #[must_use]
    pub fn with_first_task(first: T) -> Self {
        Self {
            state: Mutex::new(WorkerPoolState { tasks: vec![first], busy: 0, has_given_up: false }),
            wake: Condvar::new(),
        }
    }

    /// Executes tasks until all are done, together with other workers.
    pub fn run_worker(&self, mut perform: impl FnMut(T)) {
        while self.run_next_task(&mut perform) {}
    }

    /// Executes one task, and waits if there may be one later; false if all are done.
    pub fn run_next_task(&self, perform: impl FnOnce(T)) -> bool {
        let Some(task) = self.take_task() else { return false };
        // Even a panic must release the others, who would wait for this task for ever.
        let _busy = BusyWorker(self);
        perform(task);
        true
    }

    /// Adds tasks; the last one is taken first.
    pub fn add_tasks(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        // A task that runs while the pool is given up may still add some.
        if state.has_given_up {
            return;
        }
        let before = state.tasks.len();
        state.tasks.extend(tasks);
        // The thread that adds tasks executes one of them itself.
        if state.tasks.len() > before + 1 {
            self.wake.notify_all();
        }
    }

    /// Drops the queued tasks, and those that are added later.
    pub fn discard_tasks(&self) {
        let mut state = self.lock();
        state.has_given_up = true;
        // Those who wait for tasks are woken when the last busy worker is done.
        state.tasks.clear();
    }

    /// The number of queued tasks.
    #[must_use]
    pub fn count_waiting_tasks(&self) -> usize {
        self.lock().tasks.len()
    }

    fn take_task(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop() {
                state.busy += 1;
                return Some(task);
            }
            // Nothing is queued, and no worker is left that could add a task.
            if state.busy == 0 {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WorkerPoolState<T>> {
        self.state.lock()
    }
}

/// A worker that executes a task; at its end, it may have to wake all others.
struct BusyWorker<'c, T>(&'c WorkerPool<T>);

impl<T> Drop for BusyWorker<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        // Either all is done, which those who wait have to see, or there are tasks for them.
        if state.busy == 0 || !state.tasks.is_empty() {
            self.0.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::WorkerPool;

    /// Each task with a height above 0 adds two lower ones.
    fn grow(pool: &WorkerPool<u32>, height: u32) {
        if height > 0 {
            pool.add_tasks([height - 1, height - 1]);
        }
    }

    #[test]
    fn all_that_tasks_bring_is_done_once() {
        let pool = WorkerPool::with_first_task(12);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    pool.run_worker(|height| {
                        done.fetch_add(1, Ordering::Relaxed);
                        grow(&pool, height);
                    });
                });
            }
        });
        assert_eq!(done.into_inner(), (1 << 13) - 1);
    }

    #[test]
    fn the_task_added_last_is_taken_first() {
        let pool = WorkerPool::with_first_task(0);
        let mut order = Vec::new();
        pool.run_worker(|task| {
            order.push(task);
            if task == 0 {
                pool.add_tasks([1, 2, 3]);
            }
        });
        assert_eq!(order, [0, 3, 2, 1]);
    }

    #[test]
    fn a_worker_that_panics_leaves_the_others_free_to_end() {
        let pool = WorkerPool::with_first_task(3);
        std::thread::scope(|scope| {
            let work = || {
                pool.run_worker(|height| if height == 0 { panic!("on purpose") } else { grow(&pool, height) })
            };
            for _ in 0..8 {
                scope.spawn(move || catch_unwind(AssertUnwindSafe(work)).is_err());
            }
        });
        assert_eq!(pool.count_waiting_tasks(), 0);
    }

    #[test]
    fn nothing_is_begun_after_giving_up() {
        let pool = WorkerPool::with_first_task(9);
        let mut done = 0;
        pool.run_worker(|height| {
            done += 1;
            grow(&pool, height);
            pool.discard_tasks();
            grow(&pool, height);
        });
        assert_eq!(done, 1);
    }
}

//! Threads that work at once, and how long they took together.
//!
//! Invariant: the time is from the first thread's start to the last one's end, by the threads' own clocks; what it
//! takes to make them is not in it.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{BenchError, Result};

/// Most threads of a bench: above this the machine measures its scheduler.
pub const THREADS_MAX: usize = 1024;

/// What some threads did.
pub struct ThreadGroupResult<T> {
    /// When the first began.
    pub start: Instant,
    /// Until the last had ended.
    pub elapsed: Duration,
    /// What each gave.
    pub results: Vec<T>,
}

impl<T> ThreadGroupResult<T> {
    /// How long it took, in seconds.
    pub fn elapsed_seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }
}

/// Closed until all threads are there, so that they start at once.
#[derive(Default)]
struct StartBarrier(Mutex<Option<bool>>, Condvar);

impl StartBarrier {
    /// Lets all threads begin, or ends them without work.
    fn open_barrier(&self, work: bool) {
        *self.0.lock() = Some(work);
        self.1.notify_all();
    }

    fn wait_until_open(&self) -> bool {
        let mut state = self.0.lock();
        self.1.wait_while(&mut state, |state| state.is_none());
        state.unwrap_or(false)
    }
}

/// Runs `work` in a number of threads, each with its number. The first failure is the result, once all have ended.
pub fn run_in_threads<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<ThreadGroupResult<T>> {
    let gate = StartBarrier::default();
    let one = |number: usize| {
        // Another thread could not be started. The caller reports that, and not this error.
        if !gate.wait_until_open() {
            return Err(BenchError::Interrupted);
        }
        let start = Instant::now();
        work(number).map(|result| (start, Instant::now(), result))
    };
    let ended = std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(threads);
        for number in 0..threads {
            let one = &one;
            // By a builder, since the function of the scope panics if no thread can be started.
            match std::thread::Builder::new().spawn_scoped(scope, move || one(number)) {
                Ok(thread) => running.push(thread),
                Err(source) => {
                    // Those that wait must not begin: fewer threads would give the figure of another bench.
                    gate.open_barrier(false);
                    return Err(BenchError::io_error("start", "a thread")(source));
                }
            }
        }
        // Only now, when all threads exist: none works alone at the beginning.
        gate.open_barrier(true);
        Ok(running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>())
    })?;
    let mut done = Vec::with_capacity(ended.len());
    for result in ended {
        match result {
            Ok(result) => done.push(result?),
            // A panic is a mistake in the bench, and must not become a figure or a message about the target.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let start = done.iter().map(|(start, ..)| *start).min().unwrap_or_else(Instant::now);
    let end = done.iter().map(|(_, end, _)| *end).max().unwrap_or(start);
    let results = done.into_iter().map(|(.., result)| result).collect();
    Ok(ThreadGroupResult { start, elapsed: end.duration_since(start), results })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_works_once_and_a_failure_is_told() {
        let group = run_in_threads(5, Ok).unwrap();
        assert_eq!(group.results, [0, 1, 2, 3, 4]);
        let failed = run_in_threads(3, |number| match number {
            1 => Err(BenchError::NotEmpty("x".into())),
            _ => Ok(()),
        });
        assert!(matches!(failed, Err(BenchError::NotEmpty(_))));
    }
}

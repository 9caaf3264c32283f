//! Walking a directory tree with several threads: a stack of directories to visit, and open directories for them.
//!
//! Invariant: a directory is kept open only while subdirectories wait to be opened through it, and only up to a limit;
//! others are opened again from the root. Threads are started when there is work for them, because most trees are
//! small. Deliberately absent: what a visit does with a directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;

use crate::beneath::{HeldDir, raise_open_files_limit};
use crate::worker_pool::WorkerPool;

/// The share of the limit of open files that a walk uses for directories.
const HELD_SHARE: u64 = 4;
/// Most directories that are kept open: a wide tree needs as many as its depth, and few trees are deeper.
const HELD_MAX: usize = 4096;

/// A walk; `T` is a directory to be visited.
#[derive(Debug)]
pub struct ParallelWalk<T> {
    pool: WorkerPool<T>,
    held: Arc<AtomicUsize>,
    held_max: usize,
    threads_max: usize,
    threads: AtomicUsize,
}

/// A directory that is open for its subdirectories. It is closed after the last of them was visited.
#[derive(Debug, Clone)]
pub struct WalkParent(Arc<CountedDir>);

#[derive(Debug)]
struct CountedDir {
    dir: HeldDir,
    held: Arc<AtomicUsize>,
}

impl WalkParent {
    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &HeldDir {
        &self.0.dir
    }
}

impl Drop for CountedDir {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T: Send> ParallelWalk<T> {
    /// Begins a walk with one directory, on at most `threads_max` threads.
    #[must_use]
    pub fn new(first: T, threads_max: usize) -> Self {
        // Other parts of the process need descriptors as well.
        let share = usize::try_from(raise_open_files_limit() / HELD_SHARE).unwrap_or(HELD_MAX);
        Self {
            pool: WorkerPool::with_first_task(first),
            held: Arc::default(),
            held_max: share.min(HELD_MAX),
            threads_max,
            threads: AtomicUsize::new(1),
        }
    }

    /// Visits all directories, on this thread and others.
    pub fn run_walk(&self, visit: impl Fn(T) + Sync) {
        std::thread::scope(|scope| self.run_thread(scope, &visit));
    }

    /// Keeps a directory open for its subdirectories; None if too many are open already.
    #[must_use]
    pub fn hold_dir(&self, dir: HeldDir) -> Option<WalkParent> {
        // Two threads can pass this check at once. The limit is far below the system's, so one more does no
        // harm.
        if self.held.load(Ordering::Relaxed) >= self.held_max {
            return None;
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        Some(WalkParent(Arc::new(CountedDir { dir, held: self.held.clone() })))
    }

    /// Adds directories to be visited.
    pub fn add_dirs(&self, dirs: impl DoubleEndedIterator<Item = T>) {
        // The last one added is taken first: the walk keeps to the order of names, more or less.
        self.pool.add_tasks(dirs.rev());
    }

    /// Ends the walk: no further directory is visited.
    pub fn give_up(&self) {
        self.pool.discard_tasks();
    }

    fn run_thread<'s, F: Fn(T) + Sync>(&'s self, scope: &'s Scope<'s, '_>, visit: &'s F) {
        loop {
            // Each thread starts the next one before its own work, so that all run soon where much waits.
            if self.takes_thread() {
                scope.spawn(move || self.run_thread(scope, visit));
            }
            if !self.pool.run_next_task(visit) {
                return;
            }
        }
    }

    /// Whether there are more directories than this thread takes next, and another thread may be started for them.
    fn takes_thread(&self) -> bool {
        // The first look keeps the counter from growing with each call. Two threads can pass it, and the last one
        // decides.
        self.threads.load(Ordering::Relaxed) < self.threads_max
            && self.pool.count_waiting_tasks() > 1
            && self.threads.fetch_add(1, Ordering::Relaxed) < self.threads_max
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn every_directory_is_visited_once_by_as_many_threads_as_there_is_work_for() {
        for (threads_max, children) in [(1, 3_usize), (4, 3), (4, 1)] {
            let walk = ParallelWalk::new(6, threads_max);
            let visited = AtomicUsize::new(0);
            walk.run_walk(|height: u32| {
                visited.fetch_add(1, Ordering::Relaxed);
                walk.add_dirs((0..if height == 0 { 0 } else { children }).map(|_| height - 1));
            });
            let all: usize = (0..=6).map(|level| children.pow(level)).sum();
            assert_eq!(visited.into_inner(), all);
            let started = walk.threads.load(Ordering::Relaxed);
            assert!(started >= 1 && (children > 1 || started == 1), "{started}");
        }
    }

    #[test]
    fn a_wide_directory_below_a_root_with_one_child_is_visited_by_several_threads() {
        let walk = ParallelWalk::new(0, 4);
        walk.run_walk(|level: u32| {
            let children = [1, 9].get(level as usize).copied().unwrap_or(0);
            walk.add_dirs((0..children).map(|_| level + 1));
        });
        assert!(walk.threads.load(Ordering::Relaxed) > 1);
    }

    #[test]
    fn no_more_directories_are_held_open_than_permitted() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let walk = ParallelWalk { held_max: 2, ..ParallelWalk::new((), 1) };
        let first = walk.hold_dir(dir.clone()).unwrap();
        let second = walk.hold_dir(dir.clone()).unwrap();
        assert!(walk.hold_dir(dir.clone()).is_none());
        let again = second.clone();
        drop(second);
        assert!(walk.hold_dir(dir.clone()).is_none(), "a child still waits");
        drop((first, again));
        assert!(walk.hold_dir(dir).is_some());
    }
}

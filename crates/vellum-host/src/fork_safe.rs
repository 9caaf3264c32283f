//! Locks and conditions on which threads may be waiting while the process forks: those of the standard library.
//!
//! `parking_lot`, whose locks everything else uses, keeps a table of all threads that wait, with pointers into their memory.
//! After `fork(2)` the new process has the table and none of the threads, and as soon as somebody waits or is woken there, it
//! walks over memory that was given back. A waiting thread of the standard library is known to the kernel alone. So threads
//! that wait for work, or for something slow such as a network, wait here. Invariant: as with `parking_lot`, a panic under
//! a lock leaves it usable. Deliberately absent: everything that short waits need.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub use std::sync::WaitTimeoutResult;

/// A lock on a value.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// A lock that is held.
// None only while its thread waits for a condition, and nobody else can reach it.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<std::sync::MutexGuard<'a, T>>);

/// A condition for which threads wait that hold a lock. A thread may wake up although nobody woke it.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn wait_with<R>(
        &mut self,
        wait: impl FnOnce(std::sync::MutexGuard<'a, T>) -> (std::sync::MutexGuard<'a, T>, R),
    ) -> R {
        let (guard, outcome) = wait(self.0.take().expect("held"));
        self.0 = Some(guard);
        outcome
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held")
    }
}

impl Condvar {
    /// A condition for which nobody waits.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits without the lock, and takes it again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.wait_with(|held| (self.0.wait(held).unwrap_or_else(PoisonError::into_inner), ()));
    }

    /// The same for a time at most; whether that has passed.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        guard.wait_with(|held| self.0.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner))
    }

    /// The same until a moment at most.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, moment: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, moment.saturating_duration_since(Instant::now()))
    }

    /// Waits while something is so of the value, for a time at most; whether that has passed and it is still so.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        is_so: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        guard.wait_with(|held| {
            self.0.wait_timeout_while(held, time, is_so).unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_thread_waits_until_it_is_woken_or_the_time_has_passed() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let of_thread = Arc::clone(&shared);
        let worker = std::thread::spawn(move || {
            let (number, changed) = &*of_thread;
            let mut number = number.lock();
            while *number == 0 {
                changed.wait(&mut number);
            }
            *number += 1;
            changed.notify_all();
        });
        let (number, changed) = &*shared;
        let mut guard = number.lock();
        assert!(changed.wait_for(&mut guard, Duration::from_millis(1)).timed_out());
        assert!(changed.wait_until(&mut guard, Instant::now()).timed_out());
        assert!(changed.wait_while_for(&mut guard, |number| *number == 0, Duration::ZERO).timed_out());
        *guard = 1;
        changed.notify_one();
        assert!(
            !changed.wait_while_for(&mut guard, |number| *number == 1, Duration::from_secs(60)).timed_out()
        );
        assert_eq!(*guard, 2);
        drop(guard);
        worker.join().expect("no panic");
    }

    #[test]
    fn a_panic_under_the_lock_leaves_it_usable() {
        let shared = Arc::new(Mutex::new(1));
        let of_thread = Arc::clone(&shared);
        let worker = std::thread::spawn(move || {
            *of_thread.lock() = 2;
            let _held = of_thread.lock();
            panic!("under the lock");
        });
        assert!(worker.join().is_err());
        assert_eq!(*shared.lock(), 2);
    }
}

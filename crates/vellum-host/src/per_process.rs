//! Values that a process shares among its threads, and that a fork of it must not use.
//!
//! After `fork(2)` the new process has one thread. What the threads of the old one were to do is never done, and a lock that
//! one of them had stays locked. So whatever has threads or locks is made anew. Invariant: a value is given only to the
//! process that made it. Deliberately absent: freeing the values of the process before, whose threads are not here.

use std::sync::OnceLock;

/// A value of each process that uses it, for a `static`.
pub struct PerProcess<T> {
    first: OnceLock<Box<ProcessValue<T>>>,
}

/// The value of one process. A fork adds its own to those that it has inherited.
struct ProcessValue<T> {
    process: u32,
    value: T,
    next: OnceLock<Box<ProcessValue<T>>>,
}

impl<T> PerProcess<T> {
    /// No process has a value yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Returns the value of this process, which `make` makes if it has none.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let process = std::process::id();
        let mut cell = &self.first;
        // No lock is taken, since a thread that is not here may have it. A `OnceLock` that is set needs none.
        loop {
            let found =
                cell.get_or_init(|| Box::new(ProcessValue { process, value: make(), next: OnceLock::new() }));
            if found.process == process {
                return &found.value;
            }
            cell = &found.next;
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_value_and_none_of_another() {
        let values = PerProcess::new();
        let inherited = ProcessValue { process: 0, value: "of another process", next: OnceLock::new() };
        assert!(values.first.set(Box::new(inherited)).is_ok());
        assert_eq!(*values.get_or_init(|| "of this one"), "of this one");
        assert_eq!(*values.get_or_init(|| "of nobody"), "of this one");
    }
}

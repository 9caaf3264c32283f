//! Handles that can be closed, and that do not outlive a fork.

use parking_lot::RwLock;
use pyo3::prelude::*;

use crate::error::unusable_handle;

/// Something of the library that Python holds, until it is closed.
pub struct Handle<T> {
    /// The process that opened it.
    process: u32,
    /// What it is, for messages.
    what: &'static str,
    value: RwLock<Option<T>>,
}

impl<T: Clone> Handle<T> {
    /// Holds a value of this process.
    pub fn new(what: &'static str, value: T) -> Self {
        Self { process: std::process::id(), what, value: RwLock::new(Some(value)) }
    }

    /// Returns the value. Fails if it was closed, or if this process is a fork of the one that opened it.
    pub fn get(&self, py: Python<'_>) -> PyResult<T> {
        self.check_process(py)?;
        // A clone, so that the lock is free while the library works: otherwise closing would wait for all calls under way.
        let value = self.value.read().clone();
        value.ok_or_else(|| unusable_handle(py, format!("the {} is closed", self.what)))
    }

    /// Takes the value away; None if it was closed before.
    pub fn close(&self, py: Python<'_>) -> PyResult<Option<T>> {
        self.check_process(py)?;
        Ok(self.value.write().take())
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        // In this order: after a fork, nobody may be left to release the lock.
        self.process != std::process::id() || self.value.read().is_none()
    }

    // Before the lock: another thread may have held it at the moment of the fork, and that thread is not here.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(unusable_handle(
            py,
            format!("the {} was opened before a fork: open it again in this process", self.what),
        ))
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The threads and the lease of an open worktree belong to the process before the fork: dropping it here would
            // wait for threads that do not exist, and give up the lease of the other process.
            std::mem::forget(self.value.get_mut().take());
        }
    }
}

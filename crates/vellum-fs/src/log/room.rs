//! How much the write log may take, and the waiting of writers when it takes more.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long a writer waits before it asks once more that something be freed.
const REMINDER: Duration = Duration::from_millis(500);

type Hook = Box<dyn Fn() + Send + Sync>;

/// How full the write log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that its segments take.
    pub used: u64,
    /// Bytes at which writers wait.
    pub limit: u64,
    /// Writers that wait now.
    pub waiting: u64,
    /// How often a writer had to wait.
    pub waits: u64,
}

/// The room in the log.
pub struct Room {
    usage: Mutex<Usage>,
    freed: Condvar,
    hook: OnceLock<Hook>,
}

impl Room {
    pub fn new(used: u64, limit: u64) -> Self {
        let usage = Usage { used, limit, waiting: 0, waits: 0 };
        Self { usage: Mutex::new(usage), freed: Condvar::new(), hook: OnceLock::new() }
    }

    pub fn on_pressure(&self, hook: Hook) {
        // The first one stays: there is one publisher for a log.
        let _ = self.hook.set(hook);
    }

    /// Waits until there is room for so many bytes. One writer may exceed the limit when there is nothing else.
    pub fn wait(&self, bytes: u64) {
        let Some(hook) = self.hook.get() else { return };
        let full = |usage: &mut Usage| usage.used > 0 && usage.used.saturating_add(bytes) > usage.limit;
        let mut usage = self.lock();
        if !full(&mut usage) {
            return;
        }
        usage.waits += 1;
        usage.waiting += 1;
        while full(&mut usage) {
            drop(usage);
            hook();
            let held = self.lock();
            usage = match self.freed.wait_timeout_while(held, REMINDER, |usage| full(usage)) {
                Ok((usage, _)) => usage,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        usage.waiting -= 1;
    }

    pub fn take(&self, bytes: u64) {
        let mut usage = self.lock();
        usage.used = usage.used.saturating_add(bytes);
    }

    pub fn give(&self, bytes: u64) {
        let mut usage = self.lock();
        usage.used = usage.used.saturating_sub(bytes);
        self.freed.notify_all();
    }

    pub fn set_limit(&self, limit: u64) {
        self.lock().limit = limit;
        self.freed.notify_all();
    }

    pub fn limit(&self) -> u64 {
        self.lock().limit
    }

    pub fn usage(&self) -> Usage {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

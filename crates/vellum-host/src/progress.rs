//! Progress of long operations: counters that any thread may increase, read by the caller that shows them.
//!
//! Also carries the request to stop: every long loop asks `stopped` between two items.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Somebody asked the operation to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operation was stopped")]
pub struct OperationStopped;

/// Counters of one long operation.
#[derive(Debug, Default)]
pub struct ProgressMeter {
    items: AtomicU64,
    bytes: AtomicU64,
    total_items: AtomicU64,
    total_bytes: AtomicU64,
    stop: AtomicBool,
}

/// A reading of a [`ProgressMeter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgressReading {
    /// Items (files, packs, snapshots) done.
    pub items: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Items in all; 0 while unknown.
    pub total_items: u64,
    /// Bytes in all; 0 while unknown.
    pub total_bytes: u64,
}

impl ProgressMeter {
    /// Adds what was just done.
    pub fn add_progress(&self, items: u64, bytes: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says how much there is to do in all.
    pub fn set_expected_total(&self, items: u64, bytes: u64) {
        self.total_items.store(items, Ordering::Relaxed);
        self.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What was counted until now was preparation: says how much there is to do in all, and counts from nothing.
    pub fn begin_phase(&self, items: u64, bytes: u64) {
        self.set_expected_total(items, bytes);
        self.items.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// What was done so far.
    #[must_use]
    pub fn read_progress(&self) -> ProgressReading {
        ProgressReading {
            items: self.items.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            total_items: self.total_items.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether somebody asked to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks the operation to stop at the next item.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// An error once somebody asked to stop.
    pub fn check_stopped(&self) -> Result<(), OperationStopped> {
        if self.is_stopped() { Err(OperationStopped) } else { Ok(()) }
    }
}

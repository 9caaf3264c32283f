//! Progress of long operations: counters that any thread may increase, read by the caller that shows them.
//!
//! It also carries the request to stop, which every long loop checks between two items.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The operation was stopped on request.
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
    /// Adds to the counters.
    pub fn add_progress(&self, items: u64, bytes: u64) {
        // Relaxed is enough: the counters are shown, and no other data depends on them.
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the expected totals.
    pub fn set_expected_total(&self, items: u64, bytes: u64) {
        self.total_items.store(items, Ordering::Relaxed);
        self.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Begins a phase with these expected totals, and resets the counters: everything before was preparation.
    pub fn begin_phase(&self, items: u64, bytes: u64) {
        self.set_expected_total(items, bytes);
        self.items.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The present counters.
    #[must_use]
    pub fn read_progress(&self) -> ProgressReading {
        ProgressReading {
            items: self.items.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            total_items: self.total_items.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed is enough: the flag stands for itself, and no other data is published with it.
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests the operation to stop at the next item.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Fails with [`OperationStopped`] once a stop was requested.
    pub fn check_stopped(&self) -> Result<(), OperationStopped> {
        if self.is_stopped() { Err(OperationStopped) } else { Ok(()) }
    }
}

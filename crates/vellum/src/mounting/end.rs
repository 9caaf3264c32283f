//! The end of a mount: the process that serves it receives a request to end, or finds that it was unmounted; those
//! who wait for that learn what is in the store and what is not.
//!
//! Invariant: those who wait for the report are answered before the process ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long the process waits for those who are being answered.
const ANSWERING_MAX: Duration = Duration::from_secs(2);

/// What became of everything that was written.
#[derive(Debug, Clone, Default)]
pub struct UnmountReport {
    /// Why not everything is in the store; None: it is.
    pub failure: Option<String>,
    /// Whether that is because another took the worktree over: then it never goes there.
    pub is_fenced: bool,
    /// Snapshots that are not in the store.
    pub snapshots: u64,
    /// Bytes of file data that are in the write log only.
    pub log_bytes: u64,
}

#[derive(Default)]
struct UnmountProgress {
    is_asked: bool,
    is_unmounted: bool,
    report: Option<UnmountReport>,
    listeners: usize,
}

/// Why a process begins to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownCause {
    /// The kernel has ended the mount.
    Unmounted,
    /// The end was requested, and the mount may still be visible somewhere.
    Asked,
}

/// Where a mount's end is announced and waited for.
#[derive(Default)]
pub struct ShutdownSignal {
    progress: Mutex<UnmountProgress>,
    changed: Condvar,
    /// What is not in the store stays on this machine.
    skips_publishing: AtomicBool,
    /// What was written is given up.
    is_discarded: AtomicBool,
}

impl ShutdownSignal {
    /// Asks the process to end, even if the mount is still visible somewhere.
    pub fn request_shutdown(&self) {
        self.lock().is_asked = true;
        self.changed.notify_all();
    }

    /// Sets whether the mount ends without the store.
    pub fn set_skips_publishing(&self, skips: bool) {
        self.skips_publishing.store(skips, Ordering::Release);
    }

    /// Returns whether the mount ends without the store.
    pub fn skips_publishing(&self) -> bool {
        self.skips_publishing.load(Ordering::Acquire)
    }

    /// Asks the process to end, and to give up what was written.
    pub fn request_discard(&self) {
        // Set before the end is requested: the thread that wakes asks whether it has to publish.
        self.is_discarded.store(true, Ordering::Release);
        self.request_shutdown();
    }

    /// Returns whether what was written is given up.
    pub fn is_discarded(&self) -> bool {
        self.is_discarded.load(Ordering::Acquire)
    }

    /// The mount is gone.
    pub fn signal_unmounted(&self) {
        self.lock().is_unmounted = true;
        self.changed.notify_all();
    }

    /// Waits until the process has to end.
    pub fn wait_for_cause(&self) -> ShutdownCause {
        let begun = |progress: &mut UnmountProgress| !progress.is_asked && !progress.is_unmounted;
        let mut progress = self.lock();
        self.changed.wait_while(&mut progress, begun);
        // If both happened, the mount is gone everywhere, and there is nothing to report about where it is still
        // visible.
        if progress.is_unmounted { ShutdownCause::Unmounted } else { ShutdownCause::Asked }
    }

    /// Waits until the kernel has ended the mount, for some time; whether it has.
    pub fn wait_until_unmounted(&self, time: Duration) -> bool {
        let mut progress = self.lock();
        self.changed.wait_while_for(&mut progress, |progress| !progress.is_unmounted, time);
        progress.is_unmounted
    }

    /// Waits until the process has to end, for some time; whether it has.
    pub fn wait_until_ending(&self, time: Duration) -> bool {
        let begun = |progress: &mut UnmountProgress| !progress.is_asked && !progress.is_unmounted;
        let mut progress = self.lock();
        self.changed.wait_while_for(&mut progress, begun, time);
        progress.is_asked || progress.is_unmounted
    }

    /// Waits for the report, and hands it to `answer`. From when `begun` is called, the process does not end before that.
    pub fn wait_for_report(&self, begun: impl FnOnce(), answer: impl FnOnce(&UnmountReport)) {
        // Counted before `begun` answers: from that answer on, the caller relies on a second one.
        self.lock().listeners += 1;
        begun();
        let mut progress = self.lock();
        self.changed.wait_while(&mut progress, |progress| progress.report.is_none());
        let report = progress.report.clone();
        // The answer is written without the lock: others may ask meanwhile.
        drop(progress);
        answer(&report.unwrap_or_default());
        self.lock().listeners -= 1;
        // `publish_report` waits until the last listener has its answer.
        self.changed.notify_all();
    }

    /// Wakes all waiting threads. Returns when those that wait have been answered.
    pub fn publish_report(&self, report: UnmountReport) {
        self.lock().report = Some(report);
        self.changed.notify_all();
        let answering = |progress: &mut UnmountProgress| progress.listeners > 0;
        // A client that does not read its answer must not keep the process alive.
        self.changed.wait_while_for(&mut self.lock(), answering, ANSWERING_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, UnmountProgress> {
        self.progress.lock()
    }
}
